// labels: gate addresses asan
// Events that keep replacements out, and events that must not: a second death while ranks recover, children of the
// dead that live on. An object that a joiner has not attached survives a destroy that is refused. And a rank ends
// while the others start.
#include "support/join_job.hpp"

using namespace mep_test;

namespace {

void check_last_op_names(mep_comm_t comm, uint64_t failed, Report& found) {
  mep_op_info_t info;
  mep_op_info_defaults(&info);
  uint64_t bits = 0;
  info.failed = &bits;
  info.failed_words = 1;
  COLL_OK(found, mep_comm_last_op(comm, &info));
  COLL_CHECK(found, (bits & failed) == failed);
}

// Rank 1 dies, the others ask for a replacement of it, and rank 3 dies while they wait: the replacement that
// comes after that is let in.
void second_death_while_ranks_recover(void**) {
  Meeting all(4);
  Report report;
  JoinJob job(4, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    lose_rank(1, rank, comm, all, found);
    const int32_t victim = 1;
    int32_t admitted = 0;
    // When all are in the call.
    if (rank == 3) COLL_OK(found, mep::failpoint_arm("recover=kill"));
    COLL_OK(found, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
    COLL_CHECK(found, admitted == 1);
    COLL_EXPECT(found, MEP_ERR_PEER_FAILED, mep_barrier(comm, nullptr));
    check_last_op_names(comm, 0x8, found);
    check_contributors(rank, comm, 0x111, found);
  });
  job.expect_killed(1);
  job.expect_killed(3);
  job.join(1, [](int rank, mep_comm_t comm, Report& found) {
    check_contributors(rank, comm, 0x111, found);
  });
  job.expect_clean_end();
  report.require_clean();
}

// Rank 2 dies and takes part in no call: the others' meeting goes over its death.
void a_death_that_recovery_goes_over_is_told(void**) {
  Report report;
  JoinJob job(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    if (rank == 2) die();
    int32_t admitted = -1;
    COLL_OK(found, mep_recover_ranks(comm, nullptr, 0, 0, &admitted));
    COLL_CHECK(found, admitted == 0);
    COLL_EXPECT(found, MEP_ERR_PEER_FAILED, mep_barrier(comm, nullptr));
    check_last_op_names(comm, 0x4, found);
    check_contributors(rank, comm, 0x11, found);
  });
  job.expect_killed(2);
  job.expect_clean_end();
  report.require_clean();
}

// Where no rank knows of a joiner, no admission begins, and nothing is waited for.
void nobody_to_admit_is_told_without_an_admission(void**) {
  Report report;
  JoinJob job(2, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    COLL_OK(found, mep::failpoint_arm("recover=kill"));
    int32_t admitted = -1;
    COLL_OK(found, mep_recover_ranks(comm, nullptr, 0, 0, &admitted));
    COLL_CHECK(found, admitted == 0);
    check_contributors(rank, comm, 0x11, found);
  });
  job.expect_clean_end();
  report.require_clean();
}

enum Stage { kTold };

// Ranks 1 and 2 have a communicator. Rank 2 tells the replacement of rank 1 of it and dies before anybody is
// admitted: its own replacement is told by nobody, so neither has it.
void comm_goes_with_its_last_member(void**) {
  const auto page = JoinJob::shared_page();
  Meeting all(3);
  Report report;
  JoinJob job(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    mep_comm_t child = nullptr;
    COLL_OK(found, mep_comm_split(comm, rank == 0 ? 1 : 0, 0, &child));
    lose_rank(1, rank, comm, all, found);
    page->await(kTold, 1);
    if (rank == 2) die();
    meet_failure(comm, found);
    const int32_t victims[] = {1, 2};
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, victims, 2, kNeverMs, &admitted));
    COLL_CHECK(found, admitted == 2);
    check_contributors(rank, comm, 0x111, found);
    COLL_OK(found, mep_comm_destroy(child));
  });
  const auto body = [](int rank, mep_comm_t comm, Report& found) {
    check_contributors(rank, comm, 0x111, found);
    mep_comm_t child = nullptr;
    COLL_EXPECT(found, MEP_ERR_NOT_FOUND, mep_comm_attach(comm, "world/0.0", &child));
  };
  job.expect_killed(1);
  const size_t first = job.join(1, body, "join ready=stop");
  job.await_stopped(first);
  page->reach(kTold);
  job.expect_killed(2);
  job.join(2, body);
  kill(job.pid(first), SIGCONT);
  job.expect_clean_end();
  report.require_clean();
}

// Joiners for ranks 1 and 2 find each other while they look for the members. The one for rank 2 is let in first;
// it is the one that connects to the other, which waits for that.
void joiners_that_met_come_in_one_after_the_other(void**) {
  const auto page = JoinJob::shared_page();
  Meeting all(4);
  Report report;
  mep_comm_config_t config = patient_config(0);
  config.transports = "tcp";
  const auto let_in = [](mep_comm_t comm, int32_t rank, Report& found) {
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &rank, 1, 60'000, &admitted));
    COLL_CHECK(found, admitted == 1);
  };
  JoinJob job(4, config, report, [&](int rank, mep_comm_t comm, Report& found) {
    lose_rank(1, rank, comm, all, found);
    if (rank == 2) die();
    meet_failure(comm, found);
    let_in(comm, 2, found);
    if (rank == 0) page->reach(kTold);
    let_in(comm, 1, found);
    check_contributors(rank, comm, 0x1111, found);
  });
  job.expect_killed(1);
  job.expect_killed(2);
  const size_t lower = job.join(
      1,
      [](int rank, mep_comm_t comm, Report& found) {
        check_contributors(rank, comm, 0x1111, found);
      },
      "join begin=stop,join welcomed=stop");
  const size_t upper = job.join(
      2,
      [&](int rank, mep_comm_t comm, Report& found) {
        let_in(comm, 1, found);
        check_contributors(rank, comm, 0x1111, found);
      },
      "join begin=stop");
  job.await_stopped(lower);
  job.await_stopped(upper);
  kill(job.pid(lower), SIGCONT);
  kill(job.pid(upper), SIGCONT);
  job.await_stopped(lower);
  page->await(kTold, 1);
  kill(job.pid(lower), SIGCONT);
  job.expect_clean_end();
  report.require_clean();
}

enum LaterStage { kBegun, kMade, kLowerIsIn };

// Joiners for ranks 1 and 3 have found each other. Between their welcomes the members make an EP object, so only the
// second is told of it. The first is let in meanwhile: the second does not wait for its part of that object.
void a_joiner_lacks_what_another_is_told_of(void**) {
  const auto page = JoinJob::shared_page();
  Meeting all(4);
  Report report;
  mep_ep_config_t config;
  mep_ep_config_defaults(&config);
  config.max_tokens_per_rank = 1;
  config.hidden = 8;
  config.top_k = 1;
  config.num_experts = config.experts_per_rank = 1;
  config.name = "late";
  const auto let_in = [](mep_comm_t comm, int32_t rank, Report& found) {
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &rank, 1, 60'000, &admitted));
    COLL_CHECK(found, admitted == 1);
  };
  JoinJob job(4, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    lose_rank(1, rank, comm, all, found);
    if (rank == 3) raise(SIGSTOP);
    page->await(kBegun, 1);
    mep_ep_t ep = nullptr;
    COLL_OK(found, mep_ep_create(comm, &config, &ep));
    page->reach(kMade);
    page->await(kMade, 3);
    if (rank == 3) die();
    meet_failure(comm, found);
    let_in(comm, 1, found);
    if (rank == 0) page->reach(kLowerIsIn);
    let_in(comm, 3, found);
    check_contributors(rank, comm, 0x1111, found);
    COLL_OK(found, mep_ep_destroy(ep));
  });
  job.expect_killed(1);
  job.await_stopped(3);
  const pid_t old = job.pid(3);
  const size_t lower = job.join(
      1,
      [&](int rank, mep_comm_t comm, Report& found) {
        let_in(comm, 3, found);
        check_contributors(rank, comm, 0x1111, found);
      },
      "join begin=stop,join welcomed=stop");
  // In the place beside that of the rank that stands still, and taken in when that rank is out.
  const size_t upper = job.join(
      3,
      [](int rank, mep_comm_t comm, Report& found) {
        check_contributors(rank, comm, 0x1111, found);
      },
      "join begin=stop,join connected=stop,join welcomed=stop");
  job.await_stopped(lower);
  job.await_stopped(upper);
  kill(job.pid(lower), SIGCONT);
  job.await_place(1);
  kill(job.pid(upper), SIGCONT);
  job.await_stopped(upper);
  kill(old, SIGCONT);
  job.await_stopped(lower);
  page->reach(kBegun);
  job.expect_killed(3);
  kill(job.pid(upper), SIGCONT);
  job.await_stopped(upper);
  kill(job.pid(lower), SIGCONT);
  page->await(kLowerIsIn, 1);
  kill(job.pid(upper), SIGCONT);
  job.expect_clean_end();
  report.require_clean();
}

// The job ends while a joiner, which has been told of it, takes what it needs.
void job_ends_before_a_joiner_is_ready(void**) {
  const auto page = JoinJob::shared_page();
  Meeting all(3);
  Report report;
  JoinJob job(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    lose_rank(1, rank, comm, all, found);
    page->await(kTold, 1);
  });
  job.expect_killed(1);
  const size_t late = job.join_in_vain(1, MEP_ERR_BOOTSTRAP, "join welcomed=stop");
  job.await_stopped(late);
  page->reach(kTold);
  for (const size_t member : {size_t{0}, size_t{2}}) {
    if (job.status_of(member) != 0) report.add("member %zu", member);
  }
  kill(job.pid(late), SIGCONT);
  job.expect_clean_end();
  report.require_clean();
}

// A growth fails because a member dies after the admission. A joiner that was admitted is out when the call returns, so
// the next one is refused nowhere and lets others in.
void growth_again_after_a_death(void**) {
  const auto page = JoinJob::shared_page();
  Report report;
  mep_comm_config_t config = patient_config(0);
  config.max_size = 5;
  JoinJob job(4, config, report, [&](int rank, mep_comm_t comm, Report& found) {
    COLL_OK(found, mep_barrier(comm, nullptr));
    if (rank == 3) COLL_OK(found, mep::failpoint_arm("comm offered=kill"));
    mep_comm_t grown = nullptr;
    COLL_EXPECT(found, MEP_ERR_PEER_FAILED, mep_comm_grow(comm, 1, kNeverMs, &grown));
    if (rank == 0) page->reach(kTold);
    COLL_OK(found, mep_comm_grow(comm, 1, kNeverMs, &grown));
    if (grown == nullptr) return;
    check_contributors(rank, grown, 0x10111, found);
    COLL_OK(found, mep_comm_destroy(grown));
  });
  const size_t first = job.join(4, [](int, mep_comm_t, Report&) {});
  job.expect_killed(3);
  if (job.status_of(first) == 0) report.add("a joiner joined a growth that failed");
  page->await(kTold, 1);
  job.join(4, [](int rank, mep_comm_t comm, Report& found) {
    check_contributors(rank, comm, 0x10111, found);
  });
  job.expect_clean_end();
  report.require_clean();
}

// A second death, as above, while a world grows: both communicators tell of it, the new one the joiner too.
void death_while_a_world_grows(void**) {
  Report report;
  mep_comm_config_t config = patient_config(0);
  config.max_size = 4;
  JoinJob job(3, config, report, [&](int rank, mep_comm_t comm, Report& found) {
    COLL_OK(found, mep_barrier(comm, nullptr));
    if (rank == 2) COLL_OK(found, mep::failpoint_arm("recover=kill"));
    mep_comm_t grown = nullptr;
    COLL_OK(found, mep_comm_grow(comm, 1, kNeverMs, &grown));
    if (grown == nullptr) return;
    COLL_EXPECT(found, MEP_ERR_PEER_FAILED, mep_barrier(grown, nullptr));
    check_last_op_names(grown, 0x4, found);
    check_contributors(rank, grown, 0x1011, found);
    COLL_EXPECT(found, MEP_ERR_PEER_FAILED, mep_barrier(comm, nullptr));
    check_contributors(rank, comm, 0x11, found);
    COLL_OK(found, mep_comm_destroy(grown));
  });
  job.expect_killed(2);
  job.join(3, [](int rank, mep_comm_t comm, Report& found) {
    COLL_EXPECT(found, MEP_ERR_PEER_FAILED, mep_barrier(comm, nullptr));
    check_last_op_names(comm, 0x4, found);
    check_contributors(rank, comm, 0x1011, found);
  });
  job.expect_clean_end();
  report.require_clean();
}

// A replacement knows of a rank that went before it came.
void told_of_those_that_went_before(void**) {
  Meeting all(4);
  Report report;
  const auto check_state = [](mep_comm_t comm, Report& found) {
    uint32_t state = MEP_PEER_ALIVE;
    COLL_OK(found, mep_comm_peer_state(comm, 3, &state));
    COLL_CHECK(found, state == MEP_PEER_DEAD);
  };
  JoinJob job(4, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    all.pass(found);
    if (rank >= 2) die();
    call_until_few(2, comm, found);
    const int32_t victim = 2;
    int32_t admitted = 0;
    mep_result_t recovered = MEP_ERR_PEER_FAILED;
    while (recovered == MEP_ERR_PEER_FAILED) {
      recovered = mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted);
    }
    COLL_CHECK(found, recovered == MEP_SUCCESS && admitted == 1);
    check_state(comm, found);
    check_contributors(rank, comm, 0x111, found);
  });
  job.expect_killed(2);
  job.expect_killed(3);
  job.join(2, [&](int rank, mep_comm_t comm, Report& found) {
    check_state(comm, found);
    check_contributors(rank, comm, 0x111, found);
  });
  job.expect_clean_end();
  report.require_clean();
}

// Rank 2 stands still while the replacement of rank 3 connects, so that the members' windows get new pages while the
// replacement has the old ones and none of its own is known. Its writes as a member arrive all the same.
void connected_before_a_stopped_rank_is_excluded(void**) {
  const auto page = JoinJob::shared_page();
  Meeting all(4);
  Report report;
  mep_comm_config_t config = patient_config(0);
  config.suspect_ms = 1500;
  config.heartbeat_ms = 100;
  const auto as_a_member = [](int rank, mep_comm_t comm, Report& found) {
    for (int i = 0; i < 3; ++i) check_contributors(rank, comm, 0x1011, found);
    int sent = 33;
    int received = 0;
    if (rank == 3) COLL_OK(found, mep_send(&sent, 1, MEP_INT32, 0, 5, comm, nullptr));
    if (rank == 0) {
      COLL_OK(found, mep_recv(&received, 1, MEP_INT32, 3, 5, comm, nullptr, nullptr));
      COLL_CHECK(found, received == sent);
    }
    check_contributors(rank, comm, 0x1011, found);
  };
  JoinJob job(4, config, report, [&](int rank, mep_comm_t comm, Report& found) {
    lose_rank(3, rank, comm, all, found);
    if (rank == 2) {
      raise(SIGSTOP);
      call_until(MEP_ERR_EVICTED, comm, found);
      return;
    }
    meet_failure(comm, found);
    const int32_t victim = 3;
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
    COLL_CHECK(found, admitted == 1);
    as_a_member(rank, comm, found);
    page->reach(0);
  });
  job.await_stopped(2);
  job.join(3, as_a_member);
  page->await(0, 2);
  kill(job.pid(2), SIGCONT);
  job.expect_killed(3);
  job.expect_clean_end();
  report.require_clean();
}

// The rank that the others have left out stands still: it holds its place on the host, and another takes its number.
void a_stopped_rank_is_replaced(void**) {
  const auto page = JoinJob::shared_page();
  Report report;
  mep_comm_config_t config = patient_config(0);
  config.suspect_ms = 1500;
  config.heartbeat_ms = 100;
  JoinJob job(3, config, report, [&](int rank, mep_comm_t comm, Report& found) {
    COLL_OK(found, mep_barrier(comm, nullptr));
    if (rank == 1) {
      raise(SIGSTOP);
      call_until(MEP_ERR_EVICTED, comm, found);
      return;
    }
    const int32_t victim = 1;
    meet_failure(comm, found);
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
    COLL_CHECK(found, admitted == 1);
    check_contributors(rank, comm, 0x111, found);
    page->reach(0);
  });
  job.await_stopped(1);
  const pid_t stopped = job.pid(1);
  job.join(1, [&](int rank, mep_comm_t comm, Report& found) {
    check_contributors(rank, comm, 0x111, found);
  });
  page->await(0, 2);
  kill(stopped, SIGCONT);
  job.expect_clean_end();
  report.require_clean();
}

// A child that a rank has forked, such as a loader of data, lives on: it has neither the rank's place nor
// its connections.
void child_outlives_its_rank(void**) {
  const auto page = JoinJob::shared_page();
  Meeting all(3);
  Report report;
  JoinJob job(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    COLL_OK(found, mep_barrier(comm, nullptr));
    const int32_t victim = 1;
    if (rank == victim) {
      const pid_t pid = fork();
      if (pid == 0) {
        // The parent's end is not this one's.
        for (;;) pause();
      }
      page->at[0].store(pid);
      COLL_OK(found, mep_barrier(comm, nullptr));  // and the rank goes on unharmed
      all.pass(found);
      die();
    }
    COLL_OK(found, mep_barrier(comm, nullptr));
    all.pass(found);
    meet_failure(comm, found);
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
    check_contributors(rank, comm, 0x111, found);
  });
  job.expect_killed(1);
  job.join(1, [](int rank, mep_comm_t comm, Report& found) {
    check_contributors(rank, comm, 0x111, found);
  });
  job.expect_clean_end();
  COLL_CHECK(report, kill(page->at[0].load(), 0) == 0);  // it still lived
  kill(page->at[0].load(), SIGKILL);
  report.require_clean();
}

// A destroy that is refused has changed nothing: what was not attached to yet can still be.
void refused_destroy_keeps_all(void**) {
  mep_ep_config_t config;
  mep_ep_config_defaults(&config);
  config.max_tokens_per_rank = 1;
  config.hidden = 8;
  config.top_k = 1;
  config.num_experts = config.experts_per_rank = 1;
  const char* const names[] = {"first", "second"};
  const int32_t victim = 1;
  Meeting all(2);
  Report report;
  JoinJob job(2, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    mep_ep_t eps[2] = {};
    for (int i = 0; i < 2; ++i) {
      mep_ep_config_t given = config;
      given.name = names[i];
      COLL_OK(found, mep_ep_create(comm, &given, &eps[i]));
    }
    lose_rank(victim, rank, comm, all, found);
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
    check_contributors(rank, comm, 0x11, found);
    for (mep_ep_t ep : eps) COLL_OK(found, mep_ep_destroy(ep));
  });
  job.expect_killed(1);
  job.join(1, [&](int rank, mep_comm_t comm, Report& found) {
    check_contributors(rank, comm, 0x11, found);
    mep_ep_t eps[2] = {};
    for (int i = 0; i < 2; ++i) {
      mep_ep_config_t given = config;
      given.name = names[i];
      COLL_OK(found, mep_ep_attach(comm, &given, &eps[i]));
      COLL_EXPECT(found, MEP_ERR_BUSY, mep_comm_destroy(comm));
    }
    for (mep_ep_t ep : eps) COLL_OK(found, mep_ep_destroy(ep));
  });
  job.expect_clean_end();
  report.require_clean();
}

// A joiner knocks at a rank that has no windows yet, while the others have made theirs: it waits.
void a_joiner_comes_during_the_start(void**) {
  Report report;
  mep_comm_config_t config = patient_config(0);
  config.max_size = 4;
  JoinJob job(
      3, config, report,
      [&](int rank, mep_comm_t comm, Report& found) {
        mep_comm_t grown = nullptr;
        COLL_OK(found, mep_comm_grow(comm, 1, kNeverMs, &grown));
        if (grown == nullptr) return;
        check_contributors(rank, grown, 0x1111, found);
        COLL_OK(found, mep_comm_destroy(grown));
      },
      [](int rank) {
        if (rank == 2 && mep::failpoint_arm("world started=pause") != MEP_SUCCESS) _exit(1);
      });
  job.join(3, [](int rank, mep_comm_t comm, Report& found) {
    check_contributors(rank, comm, 0x1111, found);
  });
  job.expect_clean_end();
  report.require_clean();
}

// The start has failed for all, and the text says who ended.
void a_rank_ends_during_the_start(void**) {
  constexpr int kSize = 3;
  const std::string job = new_job_name();
  std::vector<pid_t> ranks;
  fflush(stdout);
  fflush(stderr);
  for (int rank = 0; rank < kSize; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      setenv("MEP_RANK", std::to_string(rank).c_str(), 1);
      setenv("MEP_SIZE", std::to_string(kSize).c_str(), 1);
      setenv("MEP_JOB", job.c_str(), 1);
      Report found;
      if (rank == 2) COLL_OK(found, mep::failpoint_arm("init connected=kill"));
      const mep_comm_config_t config = patient_config(0);
      mep_comm_t comm = nullptr;
      COLL_EXPECT(found, MEP_ERR_BOOTSTRAP, mep_comm_init(&config, &comm));
      const std::string text = mep_last_error();
      COLL_CHECK(found, comm == nullptr && text.find("rank 2") != std::string::npos);
      if (found.bad()) fprintf(stderr, "rank %d: %s%s\n", rank, text.c_str(), found.text().c_str());
      fflush(stderr);
      _exit(found.bad() ? 1 : 0);
    }
    ranks.push_back(pid);
  }
  for (int rank = 0; rank < kSize; ++rank) {
    int status = 0;
    assert_int_equal(waitpid(ranks[static_cast<size_t>(rank)], &status, 0),
                     ranks[static_cast<size_t>(rank)]);
    if (rank == 2) {
      assert_true(WIFSIGNALED(status));
    } else {
      assert_int_equal(status, 0);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(second_death_while_ranks_recover),
      cmocka_unit_test(a_death_that_recovery_goes_over_is_told),
      cmocka_unit_test(nobody_to_admit_is_told_without_an_admission),
      cmocka_unit_test(comm_goes_with_its_last_member),
      cmocka_unit_test(joiners_that_met_come_in_one_after_the_other),
      cmocka_unit_test(a_joiner_lacks_what_another_is_told_of),
      cmocka_unit_test(job_ends_before_a_joiner_is_ready),
      cmocka_unit_test(growth_again_after_a_death),
      cmocka_unit_test(death_while_a_world_grows),
      cmocka_unit_test(told_of_those_that_went_before),
      cmocka_unit_test(connected_before_a_stopped_rank_is_excluded),
      cmocka_unit_test(a_stopped_rank_is_replaced),
      cmocka_unit_test(child_outlives_its_rank),
      cmocka_unit_test(refused_destroy_keeps_all),
      cmocka_unit_test(a_joiner_comes_during_the_start),
      cmocka_unit_test(a_rank_ends_during_the_start),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
