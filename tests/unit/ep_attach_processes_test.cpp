// labels: quick addresses asan
// A rank dies, and the map routes around its experts; its replacement attaches to the EP object by name
// and takes them back. And EP objects that come and go while a joiner is on its way.
#include <sys/resource.h>

#include "support/delays.hpp"
#include "support/ep_rounds.hpp"
#include "support/join_job.hpp"

using namespace mep_test;

namespace {

constexpr int kRanks = 3;

EpCase mapped_case(uint64_t seed) {
  EpCase c = random_ep_case(seed, kRanks);
  c.mapped_experts = true;
  c.experts = std::min(c.experts, (kRanks - 1) * c.local_experts);
  c.top_k = std::min(c.top_k, c.experts);
  c.replicas = 2;
  return c;
}

mep_ep_t make_object(const EpCase& c, const char* name, mep_comm_t comm, Report& report,
                     bool attach = false) {
  mep_ep_config_t config = c.config();
  config.name = name;
  mep_ep_t ep = nullptr;
  COLL_OK(report, attach ? mep_ep_attach(comm, &config, &ep) : mep_ep_create(comm, &config, &ep));
  return ep;
}

void set_map(const EpCase& c, mep_ep_t ep, Report& report) {
  const std::vector<int32_t> map = c.expert_map();
  COLL_OK(report, mep_ep_set_expert_map(ep, map.data()));
}

// Rounds in which nothing may be missing but the tokens of `gone`.
void run_rounds(const EpCase& c, int rank, mep_ep_t ep, uint64_t first,
                const std::vector<uint8_t>& gone, Report& report) {
  EpRound buffer(c, rank, ep, 0, report);
  for (uint64_t round = first; round < first + 4 && !report.bad(); ++round) {
    buffer.begin(round);
    COLL_OK(report, buffer.dispatch(Halves::kBoth));
    buffer.check_received(gone);
    buffer.run_experts(gone);
    COLL_OK(report, buffer.combine(Halves::kBoth));
    buffer.check_combined();
  }
}

void take_back(uint64_t seed, int32_t victim, uint32_t flags) {
  const EpCase whole = mapped_case(seed);
  EpCase around = whole;
  around.avoided_rank = victim;
  std::vector<uint8_t> gone(kRanks, 0);
  gone[static_cast<size_t>(victim)] = 1;
  Meeting all(kRanks);
  Report report;
  JoinJob job(kRanks, patient_config(flags), report, [&](int rank, mep_comm_t comm, Report& found) {
    mep_ep_t ep = make_object(whole, "moe", comm, found);
    if (ep == nullptr) return;
    set_map(whole, ep, found);
    run_rounds(whole, rank, ep, 0, {}, found);
    lose_rank(victim, rank, comm, all, found);
    set_map(around, ep, found);
    run_rounds(around, rank, ep, 4, gone, found);
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
    set_map(whole, ep, found);
    run_rounds(whole, rank, ep, 8, {}, found);
    COLL_OK(found, mep_ep_destroy(ep));
  });
  job.expect_killed(static_cast<size_t>(victim));
  job.join(victim, [&](int rank, mep_comm_t comm, Report& found) {
    mep_ep_config_t config = whole.config();
    mep_ep_t ep = nullptr;
    config.name = "another";
    COLL_EXPECT(found, MEP_ERR_NOT_FOUND, mep_ep_attach(comm, &config, &ep));
    config.name = "moe";
    config.max_tokens_per_rank += 1;
    COLL_EXPECT(found, MEP_ERR_MISMATCH, mep_ep_attach(comm, &config, &ep));
    COLL_CHECK(found, ep == nullptr);
    ep = make_object(whole, "moe", comm, found, true);
    if (ep == nullptr) return;
    set_map(whole, ep, found);
    run_rounds(whole, rank, ep, 8, {}, found);
    COLL_OK(found, mep_ep_destroy(ep));
  });
  job.expect_clean_end();
  if (report.bad()) {
    fail_msg("seed %llu, victim %d, %s%s", static_cast<unsigned long long>(test_seed()), victim,
             whole.describe().c_str(), report.text().c_str());
  }
}

void experts_are_taken_back(uint32_t flags) {
  for (size_t i = 0; i < slice(6, 200); ++i) {
    take_back(mix(test_seed() + flags, i), static_cast<int32_t>(i % kRanks), flags);
  }
}
void experts_are_taken_back_mapped(void**) {
  experts_are_taken_back(0);
}
void experts_are_taken_back_put_only(void**) {
  experts_are_taken_back(kPutOnly);
}

// Two joiners at a time have no member's word for each other.
void two_at_once(uint32_t flags) {
  for (size_t i = 0; i < slice(4, 100); ++i) {
    EpCase c = random_ep_case(mix(test_seed() + flags + 7, i), 4);
    c.mapped_experts = false;
    c.replicas = 1;
    const int32_t victims[] = {static_cast<int32_t>(i % 3), 3};
    Meeting all(4);
    Report report;
    JoinJob job(4, patient_config(flags), report, [&](int rank, mep_comm_t comm, Report& found) {
      mep_ep_t ep = make_object(c, "moe", comm, found);
      if (ep == nullptr) return;
      run_rounds(c, rank, ep, 0, {}, found);
      all.pass(found);
      if (rank == victims[0] || rank == victims[1]) die();
      call_until_few(2, comm, found);
      int32_t admitted = 0;
      COLL_OK(found, mep_recover_ranks(comm, victims, 2, kNeverMs, &admitted));
      COLL_CHECK(found, admitted == 2);
      check_contributors(rank, comm, 0x1111, found);
      run_rounds(c, rank, ep, 4, {}, found);
      COLL_OK(found, mep_ep_destroy(ep));
    });
    for (const int32_t victim : victims) job.expect_killed(static_cast<size_t>(victim));
    for (const int32_t victim : victims) {
      job.join(victim, [&](int rank, mep_comm_t comm, Report& found) {
        check_contributors(rank, comm, 0x1111, found);
        mep_ep_t ep = make_object(c, "moe", comm, found, true);
        if (ep == nullptr) return;
        run_rounds(c, rank, ep, 4, {}, found);
        COLL_OK(found, mep_ep_destroy(ep));
      });
    }
    job.expect_clean_end();
    if (report.bad()) fail_msg("%s:%s", c.describe().c_str(), report.text().c_str());
  }
}
void two_at_once_mapped(void**) {
  two_at_once(0);
}
void two_at_once_put_only(void**) {
  two_at_once(kPutOnly);
}

enum Stage { kOthersSettled, kJoinerWelcomed };

// Rank 2 has not received its dispatch when rank 1 dies, so its memory may be in use and no joiner is
// let in; rank 0 lets one in and tells it of the object: the test goes on once it has. Then both destroy
// the object and make another.
void objects_come_and_go_meanwhile(void**) {
  EpCase c = mapped_case(mix(test_seed(), 99));
  c.slotted = true;  // so that a send waits for nobody
  const auto page = JoinJob::shared_page();
  Report report;
  JoinJob job(kRanks, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    mep_ep_t ep = make_object(c, "early", comm, found);
    if (ep == nullptr) return;
    {
      EpRound buffer(c, rank, ep, 0, found);
      buffer.begin(0);
      if (rank == 1) {
        page->await(kOthersSettled, 1);
        die();
      }
      if (rank == 2) {
        COLL_OK(found, buffer.dispatch(Halves::kSend));
        page->reach(kOthersSettled);
        page->await(kJoinerWelcomed, 1);
        COLL_EXPECT(found, MEP_ERR_PEER_FAILED, buffer.dispatch(Halves::kReceive));
        COLL_EXPECT(found, MEP_ERR_PEER_FAILED, mep_barrier(comm, nullptr));  // as rank 0 met it
      } else {
        COLL_OK(found, mep::failpoint_arm("joiner welcomed=stop"));
        meet_failure(comm, found);
        page->await(kJoinerWelcomed, 1);
      }
    }
    COLL_OK(found, mep_ep_destroy(ep));
    COLL_OK(found, mep_barrier(comm, nullptr));
    ep = make_object(c, "late", comm, found);
    const int32_t victim = 1;
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
    check_contributors(rank, comm, 0x111, found);
    COLL_OK(found, mep_ep_destroy(ep));
    mep_ep_t again = make_object(c, "again", comm, found);
    set_map(c, again, found);
    run_rounds(c, rank, again, 4, {}, found);
    COLL_OK(found, mep_ep_destroy(again));
  });
  job.expect_killed(1);
  job.join(1, [&](int rank, mep_comm_t comm, Report& found) {
    check_contributors(rank, comm, 0x111, found);
    mep_ep_config_t config = c.config();
    mep_ep_t ep = nullptr;
    // It has what was there when the members offered it their windows: perhaps an object that they destroyed since.
    for (const char* name : {"early", "late"}) {
      config.name = name;
      const mep_result_t attached = mep_ep_attach(comm, &config, &ep);
      COLL_CHECK(found, attached == MEP_SUCCESS || attached == MEP_ERR_NOT_FOUND);
      if (attached == MEP_SUCCESS) COLL_OK(found, mep_ep_destroy(ep));
    }
    ep = make_object(c, "again", comm, found);
    set_map(c, ep, found);
    run_rounds(c, rank, ep, 4, {}, found);
    COLL_OK(found, mep_ep_destroy(ep));
  });
  job.await_stopped(0);
  kill(job.pid(0), SIGCONT);
  page->reach(kJoinerWelcomed);
  job.expect_clean_end();
  report.require_clean();
}

// The same with many objects, which rank 2 destroys as soon as it has left its dispatch: while its control thread
// forgets who died, whose windows they are too.
void objects_end_while_a_joiner_asks(void**) {
  EpCase c = mapped_case(mix(test_seed(), 98));
  c.slotted = true;
  const auto page = JoinJob::shared_page();
  Report report;
  JoinJob job(kRanks, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    constexpr int kObjects = 16;
    std::vector<mep_ep_t> eps;
    for (int i = 0; i < kObjects && !found.bad(); ++i) {
      eps.push_back(make_object(c, ("object" + std::to_string(i)).c_str(), comm, found));
    }
    if (found.bad()) return;
    {
      EpRound buffer(c, rank, eps[0], 0, found);
      buffer.begin(0);
      if (rank == 1) {
        page->await(kOthersSettled, 1);
        die();
      }
      if (rank == 2) {
        COLL_OK(found, buffer.dispatch(Halves::kSend));
        page->reach(kOthersSettled);
        page->await(kJoinerWelcomed, 1);
        COLL_EXPECT(found, MEP_ERR_PEER_FAILED, buffer.dispatch(Halves::kReceive));
      } else {
        COLL_OK(found, mep::failpoint_arm("joiner welcomed=stop"));
        meet_failure(comm, found);
        page->await(kJoinerWelcomed, 1);
      }
    }
    if (rank == 2) enable_delays(test_seed(), 1);
    while (!eps.empty()) {
      COLL_OK(found, mep_ep_destroy(eps.back()));
      eps.pop_back();
    }
    if (rank == 2) COLL_EXPECT(found, MEP_ERR_PEER_FAILED, mep_barrier(comm, nullptr));
    const int32_t victim = 1;
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
    check_contributors(rank, comm, 0x111, found);
  });
  job.expect_killed(1);
  job.join(1, [&](int rank, mep_comm_t comm, Report& found) {
    check_contributors(rank, comm, 0x111, found);
  });
  job.await_stopped(0);
  kill(job.pid(0), SIGCONT);
  page->reach(kJoinerWelcomed);
  job.expect_clean_end();
  report.require_clean();
}

// --- Few descriptors --------------------------------------------------------------------------------

constexpr int kManyObjects = 40;

// For the processes that are started while it lives.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t most) {
    (void)getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit narrow{most, before_.rlim_max};
    (void)setrlimit(RLIMIT_NOFILE, &narrow);
  }
  ~FewDescriptors() { (void)setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

EpCase small_case() {
  EpCase c = random_ep_case(mix(test_seed(), 97), 4);
  c.mapped_experts = false;
  c.replicas = 1;
  return c;
}

std::string object_name(int i) {
  return "object" + std::to_string(i);
}

std::vector<mep_ep_t> many_objects(const EpCase& c, mep_comm_t comm, bool attach, Report& report) {
  std::vector<mep_ep_t> eps;
  for (int i = 0; i < kManyObjects && !report.bad(); ++i) {
    eps.push_back(make_object(c, object_name(i).c_str(), comm, report, attach));
  }
  return eps;
}

// Room for all windows of a rank, and not for as many of each member: a replacement comes in all the same.
void a_joiner_keeps_no_descriptors_of_others(void**) {
  EpCase c = small_case();
  c.buffers = 1;
  Meeting all(4);
  Report report;
  const FewDescriptors few(kManyObjects + 80);
  const auto use = [&](int rank, mep_comm_t comm, const std::vector<mep_ep_t>& eps, Report& found) {
    check_contributors(rank, comm, 0x1111, found);
    if (!found.bad()) run_rounds(c, rank, eps.back(), 4, {}, found);
    for (mep_ep_t ep : eps) COLL_OK(found, mep_ep_destroy(ep));
  };
  JoinJob job(4, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    const std::vector<mep_ep_t> eps = many_objects(c, comm, false, found);
    lose_rank(1, rank, comm, all, found);
    const int32_t victim = 1;
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &victim, 1, 60'000, &admitted));
    use(rank, comm, eps, found);
  });
  job.expect_killed(1);
  job.join(1, [&](int rank, mep_comm_t comm, Report& found) {
    use(rank, comm, many_objects(c, comm, true, found), found);
  });
  job.expect_clean_end();
  report.require_clean();
}

// Not even room for its own: its error names the limit, and so does that of those who waited for it.
void a_joiner_without_descriptors_is_told_of(void**) {
#ifdef __SANITIZE_ADDRESS__
  skip();  // UBSan looks at objects through a pipe, and without descriptors takes each for a bad one
#endif
  EpCase c = small_case();
  c.buffers = 1;
  const auto page = JoinJob::shared_page();
  Meeting all(4);
  Report report;
  JoinJob job(4, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    const std::vector<mep_ep_t> eps = many_objects(c, comm, false, found);
    lose_rank(1, rank, comm, all, found);
    page->await(0, 1);
    const int32_t victim = 1;
    int32_t admitted = 0;
    COLL_EXPECT(found, MEP_ERR_TIMEOUT, mep_recover_ranks(comm, &victim, 1, 100, &admitted));
    const std::string text = mep_last_error();
    if (text.find("ulimit -n") == std::string::npos) found.add("%s", text.c_str());
    for (mep_ep_t ep : eps) COLL_OK(found, mep_ep_destroy(ep));
  });
  job.expect_killed(1);
  size_t joiner = 0;
  {
    const FewDescriptors few(kManyObjects);
    joiner = job.join_in_vain(1, MEP_ERR_NO_MEMORY);
  }
  if (job.status_of(joiner) != 0) report.add("the joiner");
  page->reach(0);
  job.expect_clean_end();
  report.require_clean();
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(experts_are_taken_back_mapped),
                              cmocka_unit_test(experts_are_taken_back_put_only),
                              cmocka_unit_test(two_at_once_mapped),
                              cmocka_unit_test(two_at_once_put_only),
                              cmocka_unit_test(objects_come_and_go_meanwhile),
                              cmocka_unit_test(objects_end_while_a_joiner_asks),
                              cmocka_unit_test(a_joiner_keeps_no_descriptors_of_others),
                              cmocka_unit_test(a_joiner_without_descriptors_is_told_of)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
