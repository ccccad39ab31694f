// labels: gate processes
// Messages of rank processes of which one is killed or leaves, and of those that take its place.
#include <sys/time.h>

#include "support/join_job.hpp"
#include "support/message_losses.hpp"
#include "support/request_waits.hpp"

using namespace mep_test;

namespace {

void kill_after(uint64_t us) {
  signal(SIGALRM, [](int) { kill(getpid(), SIGKILL); });
  itimerval timer{};
  timer.it_value.tv_usec = static_cast<suseconds_t>(us) + 1;
  setitimer(ITIMER_REAL, &timer, nullptr);
}

void play(const NamedScene& scene, uint32_t flags, bool leaves) {
  const auto stages = make_shared_memory<Stages>();
  Report report;
  {
    JoinJob job(
        scene.size, patient_config(flags), report, [&](int rank, mep_comm_t comm, Report& found) {
          Loss loss{leaves ? MEP_ERR_PEER_LEFT : MEP_ERR_PEER_FAILED, [](mep_comm_t) {}, *stages};
          if (!leaves) {
            loss.go = [](mep_comm_t) { die(); };
            loss.go_after = kill_after;
          }
          scene.scene(loss, rank, comm, found);
        });
    if (!leaves) job.expect_killed(static_cast<size_t>(scene.victim));
    job.expect_clean_end();
  }
  if (report.bad()) {
    fail_msg("seed %llu, %s, %s, flags %u:%s", static_cast<unsigned long long>(test_seed()),
             scene.name, leaves ? "left" : "killed", flags, report.text().c_str());
  }
}

void play_all(uint32_t flags, bool leaves, size_t timed) {
  for (const NamedScene& scene : scenes()) play(scene, flags, leaves);
  for (size_t i = 0; i < timed; ++i) {
    const uint64_t seed = mix(mix(test_seed(), i), flags + (leaves ? 1 : 0));
    for (const NamedScene& scene : timed_scenes(seed)) play(scene, flags, leaves);
  }
}

void a_rank_is_killed(uint32_t flags) {
  play_all(flags, false, slice(8, 500));
}
void a_rank_leaves(uint32_t flags) {
  play_all(flags, true, slice(2, 100));
}

// --- Replaced ---------------------------------------------------------------------------------------

constexpr int kSize = 3;
constexpr int kVictim = 1;

// Small and large ones between all pairs, both ways; of this generation alone.
void exchange(int rank, uint64_t generation, mep_comm_t comm, Report& found) {
  const auto seed_of = [&](int source, int dest) {
    return mix(generation, static_cast<uint64_t>(source) * 10 + static_cast<uint64_t>(dest));
  };
  Sent sent;
  for (const size_t bytes : {size_t{50}, kLargeBytes, size_t{60}}) {
    for (int dest = 0; dest < kSize; ++dest) {
      sent.start(bytes, seed_of(rank, dest), dest, 5, comm, found);
    }
  }
  for (int i = 0; i < kSize; ++i) {
    const int source = (rank + i) % kSize;
    for (const size_t bytes : {size_t{50}, kLargeBytes, size_t{60}}) {
      expect_message(bytes, seed_of(source, rank), source, 5, comm, found);
    }
  }
  sent.finish_all(found);
}

// The ranks that are there now have what was sent now, and nothing else is left.
void exchange_all(int rank, uint64_t generation, mep_comm_t comm, Report& found) {
  exchange(rank, generation, comm, found);
  check_contributors(rank, comm, 0x111, found);
  int32_t there = 7;
  COLL_OK(found, mep_iprobe(MEP_ANY_SOURCE, MEP_ANY_TAG, comm, &there, nullptr));
  COLL_CHECK(found, there == 0);
  COLL_OK(found, mep_barrier(comm, nullptr));
}

// Between rank 1 and the others before it dies: messages in both directions that nobody receives.
void leave_unreceived(int rank, uint64_t generation, mep_comm_t comm, Stages& stages,
                      Report& found) {
  const int stage = static_cast<int>(generation);
  if (rank == kVictim) {
    for (const int dest : {0, 2}) {
      COLL_OK(found, send_bytes(50, generation + 1000, dest, 5, comm));
      COLL_OK(found, send_bytes(70, generation + 1000, dest, 6, comm));
    }
    for (const int source : {0, 2}) COLL_OK(found, mep_probe(source, 6, comm, nullptr));
    stages.await(stage, kSize - 1, found);
    die();
  }
  const Bytes content = message_bytes(kLargeBytes, generation);
  Inbox inbox(kLargeBytes);
  mep_request_t requests[2] = {};
  COLL_OK(found, send_bytes(50, generation + 2000, kVictim, 5, comm));
  COLL_OK(found, send_bytes(70, generation + 2000, kVictim, 6, comm));
  COLL_OK(found, mep_isend(content.data(), kLargeBytes, MEP_UINT8, kVictim, 5, comm, nullptr,
                           &requests[0]));
  COLL_OK(found, begin_receive(inbox, kVictim, 7, comm, &requests[1]));
  COLL_OK(found, mep_probe(kVictim, 5, comm, nullptr));
  COLL_OK(found, mep_probe(kVictim, 6, comm, nullptr));
  stages.reach(stage);
  mep_result_t results[2] = {};
  COLL_EXPECT(found, MEP_ERR_PEER_FAILED,
              mep_request_waitall(2, requests, MEP_TIMEOUT_DEFAULT, nullptr, results));
  COLL_CHECK(found, results[0] == MEP_ERR_PEER_FAILED && results[1] == MEP_ERR_PEER_FAILED);
  inbox.check_untouched(found);
}

void recover(mep_comm_t comm, Report& found) {
  const int32_t victim = kVictim;
  int32_t admitted = 0;
  meet_failure(comm, found);
  COLL_OK(found, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
  COLL_CHECK(found, admitted == 1);
}

// Rank 1 dies and is replaced, twice.
void a_rank_is_replaced(uint32_t flags) {
  const auto stages = make_shared_memory<Stages>();
  Report report;
  JoinJob job(kSize, patient_config(flags), report, [&](int rank, mep_comm_t comm, Report& found) {
    for (uint64_t generation = 0; generation < 2; ++generation) {
      leave_unreceived(rank, generation, comm, *stages, found);
      recover(comm, found);
      exchange_all(rank, generation, comm, found);
    }
  });
  job.expect_killed(kVictim);
  const size_t first = job.join(kVictim, [&](int rank, mep_comm_t comm, Report& found) {
    exchange_all(rank, 0, comm, found);
    leave_unreceived(rank, 1, comm, *stages, found);
  });
  job.expect_killed(first);
  job.join(kVictim,
           [](int rank, mep_comm_t comm, Report& found) { exchange_all(rank, 1, comm, found); });
  job.expect_clean_end();
  report.require_clean();
}

// A comm made by a split has its own messages; who replaces a rank of it finds none of those that came before.
void a_rank_of_a_child_is_replaced(uint32_t flags) {
  const auto stages = make_shared_memory<Stages>();
  Report report;
  JoinJob job(kSize, patient_config(flags), report, [&](int rank, mep_comm_t comm, Report& found) {
    mep_comm_t child = nullptr;
    COLL_OK(found, mep_comm_split(comm, 0, rank, &child));
    if (child == nullptr) return;
    COLL_OK(found, mep_comm_set_name(child, "child"));
    leave_unreceived(rank, 0, child, *stages, found);
    COLL_EXPECT(found, MEP_ERR_PEER_FAILED, mep_barrier(child, nullptr));
    recover(comm, found);
    check_contributors(rank, child, 0x111, found);
    exchange_all(rank, 3, child, found);
    exchange_all(rank, 4, comm, found);
    COLL_OK(found, mep_comm_destroy(child));
  });
  job.expect_killed(kVictim);
  job.join(kVictim, [&](int rank, mep_comm_t comm, Report& found) {
    mep_comm_t child = nullptr;
    COLL_OK(found, mep_comm_attach(comm, "child", &child));
    if (child == nullptr) return;
    check_contributors(rank, child, 0x111, found);
    exchange_all(rank, 3, child, found);
    exchange_all(rank, 4, comm, found);
    COLL_OK(found, mep_comm_destroy(child));
  });
  job.expect_clean_end();
  report.require_clean();
}

enum Stage { kReady, kHeld, kAsked };

// Rank 1 is replaced and rank 3 dies at once. While rank 0 stands still on the way to the next view, rank 2 calls
// for the first time since the replacement came: its messages go to it, and come from it. `looks`: its messages have
// seen before that rank 1 was lost.
void change_follows_an_admission(uint32_t flags, bool looks) {
  const auto page = JoinJob::shared_page();
  Meeting all(4);
  Report report;
  JoinJob job(4, patient_config(flags), report, [&](int rank, mep_comm_t comm, Report& found) {
    lose_rank(kVictim, rank, comm, all, found);
    int32_t there = 0;
    if (looks) COLL_OK(found, mep_iprobe(MEP_ANY_SOURCE, MEP_ANY_TAG, comm, &there, nullptr));
    const int32_t victim = kVictim;
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
    COLL_CHECK(found, admitted == 1);
    if (rank == 0) COLL_OK(found, mep::failpoint_arm("fence=stop"));
    page->reach(kReady);
    if (rank == 3) {
      page->await(kReady, 3);
      die();
    }
    page->await(kHeld, 1);
    if (rank == 2) {
      const Bytes content = message_bytes(50, 1);
      Inbox inbox(50);
      mep_request_t requests[2] = {};
      COLL_OK(found,
              mep_isend(content.data(), 50, MEP_UINT8, kVictim, 5, comm, nullptr, &requests[0]));
      COLL_OK(found, begin_receive(inbox, kVictim, 5, comm, &requests[1]));
      // They wait for the change, unless the others have ended it without rank 0.
      const mep_result_t now = wait_all_in(2, requests, 0);
      COLL_CHECK(found, now == MEP_IN_PROGRESS || now == MEP_SUCCESS);
      COLL_OK(found, mep_iprobe(kVictim, 6, comm, &there, nullptr));
      page->reach(kAsked);
      COLL_OK(found, mep_request_waitall(2, requests, MEP_TIMEOUT_DEFAULT, nullptr, nullptr));
      inbox.check(50, 2, found);
    }
    meet_failure(comm, found);
  });
  job.expect_killed(kVictim);
  job.join(kVictim, [&](int, mep_comm_t comm, Report& found) {
    expect_message(50, 1, 2, 5, comm, found);
    COLL_OK(found, send_bytes(50, 2, 2, 5, comm));
    meet_failure(comm, found);
  });
  job.await_stopped(0);
  page->reach(kHeld);
  page->await(kAsked, 1);
  kill(job.pid(0), SIGCONT);
  job.expect_killed(3);
  job.expect_clean_end();
  report.require_clean();
}

void a_change_follows_an_admission(uint32_t flags) {
  for (const bool looks : {false, true}) change_follows_an_admission(flags, looks);
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  (void)test_seed();
  const CMUnitTest tests[] = {
      cmocka_unit_test(both<a_rank_is_killed>),
      cmocka_unit_test(both<a_rank_leaves>),
      cmocka_unit_test(both<a_rank_is_replaced>),
      cmocka_unit_test(both<a_rank_of_a_child_is_replaced>),
      cmocka_unit_test(both<a_change_follows_an_admission>),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
