// labels: gate
// Communicators that a joiner finds by their names, and ones that it makes with a member.
#include "support/join_job.hpp"

using namespace mep_test;

namespace {

// A comm made by a split, under a name of the user's: who replaces a rank finds it by that name.
void a_comm_is_found_by_its_name(void**) {
  Meeting all(3);
  Report report;
  const auto check = [](int rank, mep_comm_t child, Report& found) {
    check_contributors(rank, child, 0x11, found);
  };
  JoinJob job(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    mep_comm_t child = nullptr;
    COLL_OK(found, mep_comm_split(comm, rank == 0 ? 1 : 0, 0, &child));
    COLL_OK(found, mep_comm_set_name(child, rank == 0 ? "alone" : "pair"));
    COLL_OK(found, mep_comm_set_name(comm, "everybody"));
    lose_rank(1, rank, comm, all, found);
    if (rank == 2) COLL_EXPECT(found, MEP_ERR_PEER_FAILED, mep_barrier(child, nullptr));
    const int32_t victim = 1;
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
    check_contributors(rank, comm, 0x111, found);
    if (rank == 2) check(1, child, found);
    COLL_OK(found, mep_comm_destroy(child));
  });
  job.expect_killed(1);
  job.join(1, [&](int rank, mep_comm_t comm, Report& found) {
    check_contributors(rank, comm, 0x111, found);
    mep_comm_t child = nullptr;
    COLL_EXPECT(found, MEP_ERR_NOT_FOUND, mep_comm_attach(comm, "alone", &child));
    COLL_OK(found, mep_comm_attach(comm, "pair", &child));
    if (child == nullptr) return;
    check(0, child, found);
    COLL_OK(found, mep_comm_destroy(child));
  });
  job.expect_clean_end();
  report.require_clean();
}

// The same of one that only its members made; and one that the joiner makes with a member, under a name that the
// rank before it had used.
void a_comm_of_listed_ranks_is_found(void**) {
  Meeting all(3);
  Report report;
  const int32_t pair[] = {2, 1};
  JoinJob job(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    mep_comm_t child = nullptr;
    mep_comm_t lost = nullptr;
    if (rank != 0) {
      COLL_OK(found, mep_comm_create_from_ranks(comm, pair, 2, "kept", &child));
      COLL_OK(found, mep_comm_create_from_ranks(comm, pair, 2, "ended", &lost));
    }
    lose_rank(1, rank, comm, all, found);
    if (rank == 2) {
      COLL_EXPECT(found, MEP_ERR_PEER_FAILED, mep_barrier(child, nullptr));
      COLL_OK(found, mep_comm_destroy(lost));
      COLL_EXPECT(found, MEP_ERR_PEER_FAILED,
                  mep_comm_create_from_ranks(comm, pair, 2, "ended", &lost));
    }
    const int32_t victim = 1;
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
    if (rank == 2) {
      check_contributors(0, child, 0x11, found);
      COLL_OK(found, mep_comm_destroy(child));
      COLL_OK(found, mep_comm_create_from_ranks(comm, pair, 2, "ended", &child));
      if (child == nullptr) return;
      check_contributors(0, child, 0x11, found);
      COLL_OK(found, mep_comm_destroy(child));
    }
    check_contributors(rank, comm, 0x111, found);
  });
  job.expect_killed(1);
  job.join(1, [&](int rank, mep_comm_t comm, Report& found) {
    mep_comm_t child = nullptr;
    COLL_EXPECT(found, MEP_ERR_NOT_FOUND, mep_comm_attach(comm, "ended", &child));
    COLL_OK(found, mep_comm_attach(comm, "kept", &child));
    if (child == nullptr) return;
    check_contributors(1, child, 0x11, found);
    COLL_OK(found, mep_comm_destroy(child));
    COLL_OK(found, mep_comm_create_from_ranks(comm, pair, 2, "ended", &child));
    if (child == nullptr) return;
    check_contributors(1, child, 0x11, found);
    COLL_OK(found, mep_comm_destroy(child));
    check_contributors(rank, comm, 0x111, found);
  });
  job.expect_clean_end();
  report.require_clean();
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_comm_is_found_by_its_name),
      cmocka_unit_test(a_comm_of_listed_ranks_is_found),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
