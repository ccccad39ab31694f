// labels: gate waits
// Ranks that come, go, stop and are refused, as processes: growth, automatic recovery, joiners that
// die, the fence by force, quorum policies, and how views are told.
#include "core/api/api_guard.hpp"
#include "core/world/witness.hpp"
#include "support/join_job.hpp"
#include "support/temporary_folder.hpp"

using namespace mep_test;

namespace {

mep_comm_config_t quick_config(uint32_t flags = 0) {
  mep_comm_config_t config = patient_config(flags);
  config.heartbeat_ms = 50;
  config.suspect_ms = 1000;
  return config;
}

// Up to max_size by ones, each call on the comm that the one before made; then there is no room.
void grow_up_to_max_size(void**) {
  Report report;
  mep_comm_config_t config = patient_config(0);
  config.max_size = 4;
  const auto go_on = [](int rank, mep_comm_t comm, Report& found) {
    mep_comm_t widest = comm;
    std::vector<mep_comm_t> made;
    for (int32_t size = 0; size < 4;) {
      COLL_OK(found, mep_comm_size(widest, &size));
      if (found.bad() || size >= 4) break;
      mep_comm_t grown = nullptr;
      COLL_OK(found, mep_comm_grow(widest, 1, kNeverMs, &grown));
      if (grown == nullptr) return;
      // The smaller one goes on, but no longer stands for the world.
      int32_t number = 0;
      mep_comm_t none = nullptr;
      COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT, mep_comm_grow(widest, 1, 1, &none));
      COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT,
                  mep_recover_ranks(widest, nullptr, 0, 1, &number));
      check_contributors(rank, widest, size == 2 ? 0x11 : 0x111, found);
      made.push_back(grown);
      widest = grown;
    }
    check_contributors(rank, widest, 0x1111, found);
    mep_comm_t none = nullptr;
    COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT, mep_comm_grow(widest, 1, 1, &none));
    COLL_CHECK(found, none == nullptr);
    COLL_OK(found, mep_barrier(widest, nullptr));
    for (const mep_comm_t each : made) COLL_OK(found, mep_comm_destroy(each));
  };
  JoinJob job(2, config, report, go_on);
  job.join(-1, go_on);
  job.join(-1, go_on);
  job.expect_clean_end();
  report.require_clean();
}

// A rank that came by growth dies and is replaced; so is one of the first, which the world before the growth goes on
// without.
void a_grown_rank_is_replaced(void**) {
  const auto page = JoinJob::shared_page();
  Meeting all(3);
  Report report;
  mep_comm_config_t config = patient_config(0);
  config.max_size = 3;
  const auto replace = [&](int rank, mep_comm_t comm, int32_t victim, Report& found) {
    page->reach(victim);
    meet_failure(comm, found);
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
    COLL_CHECK(found, admitted == 1);
    check_contributors(rank, comm, 0x111, found);
  };
  JoinJob job(2, config, report, [&](int rank, mep_comm_t comm, Report& found) {
    mep_comm_t grown = nullptr;
    COLL_OK(found, mep_comm_grow(comm, 1, kNeverMs, &grown));
    if (grown == nullptr) return;
    replace(rank, grown, 2, found);
    all.pass(found);
    if (rank == 1) die();
    replace(rank, grown, 1, found);
    call_until_few(1, comm, found);  // the others leave in one view or in two
    check_contributors(rank, comm, 0x1, found);
    COLL_CHECK(found, live_of(comm, found) == 1);
    COLL_OK(found, mep_comm_destroy(grown));
  });
  const size_t first = job.join(-1, [&](int, mep_comm_t, Report&) {
    page->await(2, 2);
    die();
  });
  job.expect_killed(first);
  job.join(2, [&](int rank, mep_comm_t comm, Report& found) {
    check_contributors(rank, comm, 0x111, found);
    all.pass(found);
    replace(rank, comm, 1, found);
  });
  job.expect_killed(1);
  job.join(1, [&](int rank, mep_comm_t comm, Report& found) {
    check_contributors(rank, comm, 0x111, found);
    mep_comm_t before = nullptr;
    COLL_EXPECT(found, MEP_ERR_NOT_FOUND, mep_comm_attach(comm, "world", &before));
  });
  job.expect_clean_end();
  report.require_clean();
}

// Nobody calls mep_recover_ranks: barriers admit who is ready.
void automatic_recovery(void**) {
  Meeting all(3);
  Report report;
  JoinJob job(3, patient_config(MEP_COMM_AUTO_RECOVER), report,
              [&](int rank, mep_comm_t comm, Report& found) {
                lose_rank(1, rank, comm, all, found);
                COLL_CHECK(found, live_of(comm, found) == 2);
                check_contributors(rank, comm, 0x101, found);
                while (!found.bad() && live_of(comm, found) < 3) {
                  COLL_OK(found, mep_barrier(comm, nullptr));
                }
                check_contributors(rank, comm, 0x111, found);
              });
  job.expect_killed(1);
  job.join(-1, [](int rank, mep_comm_t comm, Report& found) {
    COLL_CHECK(found, rank == 1);
    check_contributors(rank, comm, 0x111, found);
  });
  job.expect_clean_end();
  report.require_clean();
}

// Joiners that die at a point of their way in, until one did while the members waited: they do not
// wait out their time. Then one comes in.
void joiners_die_on_their_way(const char* point) {
  const auto page = JoinJob::shared_page();
  Meeting all(3);
  Report report;
  JoinJob job(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    lose_rank(1, rank, comm, all, found);
    const int32_t victim = 1;
    int32_t admitted = -1;
    COLL_EXPECT(found, MEP_ERR_TIMEOUT, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
    COLL_CHECK(found, admitted == 0 && live_of(comm, found) == 2);
    check_contributors(rank, comm, 0x101, found);
    page->reach(0);
    mep_result_t result = MEP_ERR_TIMEOUT;
    while (result == MEP_ERR_TIMEOUT) {
      result = mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted);
    }
    COLL_OK(found, result);
    check_contributors(rank, comm, 0x111, found);
  });
  job.expect_killed(1);
  while (page->at[0].load() < 2 && !report.bad()) {
    job.expect_killed(job.join(
        1, [](int, mep_comm_t, Report&) {}, point));
  }
  job.join(1, [](int rank, mep_comm_t comm, Report& found) {
    check_contributors(rank, comm, 0x111, found);
  });
  job.expect_clean_end();
  report.require_clean();
}

void joiners_die_when_welcomed(void**) {
  joiners_die_on_their_way("join welcomed=kill");
}
void joiners_die_when_ready(void**) {
  joiners_die_on_their_way("join ready=kill");
}

// The joiner, or the member that lets it in, stops for a while at a point of the way in.
void stop_on_the_way(const std::string& point, unsigned stop_ms) {
  const bool is_member = point.rfind("join ", 0) != 0;
  const std::string armed = point + "=stop";
  Meeting all(3);
  Report report;
  JoinJob job(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    if (is_member && rank == 2) COLL_OK(found, mep::failpoint_arm(armed));
    lose_rank(1, rank, comm, all, found);
    const int32_t victim = 1;
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
    check_contributors(rank, comm, 0x111, found);
  });
  job.expect_killed(1);
  const size_t joiner = job.join(
      1,
      [](int rank, mep_comm_t comm, Report& found) {
        check_contributors(rank, comm, 0x111, found);
      },
      is_member ? nullptr : armed.c_str());
  const size_t stopped = is_member ? 2 : joiner;
  job.await_stopped(stopped);
  pause_us(stop_ms * 1000);
  kill(job.pid(stopped), SIGCONT);
  job.expect_clean_end();
  if (report.bad()) fail_msg("%s, %u ms:%s", point.c_str(), stop_ms, report.text().c_str());
}

void stops_on_the_way(void**) {
  for (const unsigned stop_ms : {100u, 1000u, 10'000u}) {
    if (stop_ms > 100 && !soak_flag()) return;
    for (const char* point :
         {"join begin", "join connected", "join welcomed", "join ready", "joiner connect"}) {
      stop_on_the_way(point, stop_ms);
    }
  }
}

// A rank may start after a joiner has found the others.
void a_joiner_is_there_first(void**) {
  const auto page = JoinJob::shared_page();
  Report report;
  const auto grow = [](int rank, mep_comm_t comm, Report& found) {
    mep_comm_t grown = nullptr;
    if (rank < 2) COLL_OK(found, mep_comm_grow(comm, 1, kNeverMs, &grown));
    check_contributors(rank, grown != nullptr ? grown : comm, 0x111, found);
    if (grown != nullptr) COLL_OK(found, mep_comm_destroy(grown));
  };
  mep_comm_config_t config = patient_config(0);
  config.max_size = 3;
  JoinJob job(2, config, report, grow, [&](int rank) {
    if (rank == 0) page->await(0, 1);
  });
  job.join(2, grow);
  job.await_place(2);
  page->reach(0);
  job.expect_clean_end();
  report.require_clean();
}

// While a joiner stops on its way, a member ends and another joiner, which got no answer of it, is
// admitted in its place: the first one has no link to it and asks again.
void a_joiner_misses_another(void**) {
  const auto page = JoinJob::shared_page();
  Meeting all(3);
  Report report;
  const auto recover = [](mep_comm_t comm, int32_t victim, Report& found) {
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
    COLL_CHECK(found, admitted == 1);
  };
  JoinJob job(3, quick_config(), report, [&](int rank, mep_comm_t comm, Report& found) {
    lose_rank(1, rank, comm, all, found);
    if (rank == 2) {
      page->await(0, 1);
      die();
    }
    meet_failure(comm, found);
    recover(comm, 2, found);
    page->reach(1);
    recover(comm, 1, found);
    check_contributors(rank, comm, 0x111, found);
  });
  job.expect_killed(1);
  const size_t slow = job.join(
      1,
      [](int rank, mep_comm_t comm, Report& found) {
        check_contributors(rank, comm, 0x111, found);
      },
      "join connected=stop");
  job.await_stopped(slow);
  page->reach(0);
  job.expect_killed(2);
  job.join(2, [&](int rank, mep_comm_t comm, Report& found) {
    recover(comm, 1, found);
    check_contributors(rank, comm, 0x111, found);
  });
  page->await(1, 1);
  kill(job.pid(slow), SIGCONT);
  job.expect_clean_end();
  report.require_clean();
}

// A stopped process that is left out stays, and learns when it wakes that the others went on.
void a_stopped_rank_is_left_out(void**) {
  const auto page = JoinJob::shared_page();
  Report report;
  JoinJob job(3, quick_config(), report, [&](int rank, mep_comm_t comm, Report& found) {
    COLL_OK(found, mep_barrier(comm, nullptr));
    if (rank == 2) {
      raise(SIGSTOP);
      mep_result_t result = MEP_SUCCESS;
      while (result == MEP_SUCCESS) result = mep_barrier(comm, nullptr);
      COLL_CHECK(found, result == MEP_ERR_EVICTED);
      // For good, and so do the calls that ask for changes.
      COLL_EXPECT(found, MEP_ERR_EVICTED, mep_comm_revoke(comm));
      COLL_EXPECT(found, MEP_ERR_EVICTED, mep_comm_evict(comm, 0));
      int32_t admitted = 0;
      COLL_EXPECT(found, MEP_ERR_EVICTED, mep_recover_ranks(comm, nullptr, 0, 1, &admitted));
      return;
    }
    meet_failure(comm, found);
    uint32_t state = 0;
    COLL_OK(found, mep_comm_peer_state(comm, 2, &state));
    COLL_CHECK(found, state == MEP_PEER_EXCLUDED);
    check_contributors(rank, comm, 0x11, found);
    page->reach(0);
  });
  page->await(0, 2);
  kill(job.pid(2), SIGCONT);
  job.expect_clean_end();
  report.require_clean();
}

// Rank 0 of two stops until the other's part has ended, and then finds what became of it.
void with_rank_0_of_2_stopped(const mep_comm_config_t& config,
                              const std::function<void(mep_comm_t, Report&)>& other,
                              const std::function<void(mep_comm_t, Report&)>& woken) {
  const auto page = JoinJob::shared_page();
  Report report;
  JoinJob job(2, config, report, [&](int rank, mep_comm_t comm, Report& found) {
    COLL_OK(found, mep_barrier(comm, nullptr));
    if (rank == 0) {
      raise(SIGSTOP);
      woken(comm, found);
      return;
    }
    other(comm, found);
    page->reach(0);
  });
  page->await(0, 1);
  kill(job.pid(0), SIGCONT);
  job.expect_clean_end();
  report.require_clean();
}

// The higher rank goes on alone.
void require_that_rank_1_goes_on(const mep_comm_config_t& config) {
  with_rank_0_of_2_stopped(
      config,
      [](mep_comm_t comm, Report& found) {
        meet_failure(comm, found);
        check_contributors(1, comm, 0x10, found);
      },
      [](mep_comm_t comm, Report& found) { call_until(MEP_ERR_EVICTED, comm, found); });
}

void quorum_majority(void**) {
  with_rank_0_of_2_stopped(
      quick_config(),
      [](mep_comm_t comm, Report& found) { call_until(MEP_ERR_NO_QUORUM, comm, found); },
      [](mep_comm_t comm, Report& found) {
        meet_failure(comm, found);
        check_contributors(0, comm, 0x1, found);
      });
}

// A witness that ranks which are started meanwhile find.
class WitnessFolder {
 public:
  WitnessFolder() { setenv("MEP_WITNESS", folder_.path().c_str(), 1); }
  ~WitnessFolder() { unsetenv("MEP_WITNESS"); }
  WitnessFolder(const WitnessFolder&) = delete;
  WitnessFolder& operator=(const WitnessFolder&) = delete;
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

// Half of the view without its lowest rank goes on once the witness has written it down.
void quorum_witness(void**) {
  const WitnessFolder folder;
  mep_comm_config_t config = quick_config();
  config.quorum = MEP_QUORUM_WITNESS;
  require_that_rank_1_goes_on(config);
}

// The witness has decided for the other half and does not decide for this one.
void quorum_witness_has_decided(void**) {
  const WitnessFolder folder;
  mep_comm_config_t config = quick_config();
  config.quorum = MEP_QUORUM_WITNESS;
  with_rank_0_of_2_stopped(
      config,
      [&](mep_comm_t comm, Report& found) {
        const mep::membership::View view = comm->comm->world().view().snapshot();
        uint64_t held = 0;
        COLL_OK(found, mep::witness_store(folder.path() + "/mep-witness",
                                          mep::witness_name(view, 2), 12345, &held));
        call_until(MEP_ERR_NO_QUORUM, comm, found);
      },
      [](mep_comm_t, Report&) {});
}

void quorum_witness_needs_a_directory(void**) {
  mep_comm_config_t config = patient_config(0);
  config.quorum = MEP_QUORUM_WITNESS;
  mep_comm_t comms[2] = {};
  assert_int_equal(mep_comm_init_all(2, &config, comms), MEP_ERR_INVALID_ARGUMENT);
  assert_null(comms[0]);
  setenv("MEP_WITNESS", "/there/is/no/such/directory", 1);
  assert_int_equal(mep_comm_init_all(2, &config, comms), MEP_ERR_NOT_FOUND);
  assert_null(comms[0]);
  unsetenv("MEP_WITNESS");
}

// --- How views are told ---------------------------------------------------------------------------

struct Told {
  std::atomic<uint64_t> epoch{0};
  std::atomic<int32_t> live{-1};
  std::atomic<int> calls{0};
};

void note_view(void* user, uint64_t world_epoch, int32_t live) {
  auto* told = static_cast<Told*>(user);
  told->epoch = world_epoch;
  told->live = live;
  told->calls++;
}

void await_told(const Told& told, int calls) {
  while (told.calls.load() < calls) pause_us(500);
}

void views_are_told(void**) {
  Meeting all(3);
  Report report;
  JoinJob job(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    Told told;
    uint64_t epoch = 0;
    COLL_OK(found, mep_comm_set_view_callback(comm, note_view, &told));
    COLL_OK(found, mep_comm_epoch(comm, &epoch));
    COLL_CHECK(found, epoch == 1);
    COLL_EXPECT(found, MEP_ERR_TIMEOUT, mep_comm_wait_view(comm, epoch, 1));
    COLL_OK(found, mep_comm_wait_view(comm, epoch - 1, 0));  // it is larger already
    all.pass(found);
    if (rank == 1) die();
    COLL_OK(found, mep_comm_wait_view(comm, epoch, kNeverMs));
    await_told(told, 1);
    mep_view_t view;
    mep_view_defaults(&view);
    int32_t slots[3] = {};
    uint64_t incarnations[3] = {};
    uint32_t states[3] = {};
    view.slots = slots;
    view.incarnations = incarnations;
    view.states = states;
    view.capacity = 2;
    COLL_EXPECT(found, MEP_ERR_CAPACITY, mep_comm_view(comm, &view));
    view.capacity = 3;
    COLL_OK(found, mep_comm_view(comm, &view));
    COLL_CHECK(found, view.epoch == 2 && view.live == 2 && view.size == 3);
    COLL_CHECK(found, told.epoch.load() == view.world_epoch && told.live.load() == 2);
    COLL_CHECK(found, incarnations[1] == 0 && incarnations[0] != 0 && slots[2] == 2);
    COLL_CHECK(found, states[1] == MEP_PEER_DEAD);
    // Told by a view, not yet by a call.
    COLL_EXPECT(found, MEP_ERR_PEER_FAILED, mep_barrier(comm, nullptr));
    const int32_t victim = 1;
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
    await_told(told, 2);
    COLL_OK(found, mep_comm_wait_view(comm, 2, kNeverMs));
    COLL_CHECK(found, told.live.load() == 3);
    COLL_OK(found, mep_comm_set_view_callback(comm, nullptr, nullptr));
    check_contributors(rank, comm, 0x111, found);
    COLL_EXPECT(found, MEP_ERR_TIMEOUT, mep_comm_wait_view(comm, 3, 1));
    COLL_OK(found, mep_barrier(comm, nullptr));
    if (rank == 0) COLL_OK(found, mep_comm_revoke(comm));
    COLL_OK(found, mep_comm_wait_view(comm, 3, kNeverMs));
    COLL_EXPECT(found, MEP_ERR_REVOKED, mep_barrier(comm, nullptr));
    COLL_OK(found, mep_barrier(comm, nullptr));
    COLL_CHECK(found, told.calls.load() == 2);
  });
  job.expect_killed(1);
  job.join(1, [](int rank, mep_comm_t comm, Report& found) {
    check_contributors(rank, comm, 0x111, found);
    COLL_OK(found, mep_barrier(comm, nullptr));
    COLL_OK(found, mep_comm_wait_view(comm, 3, kNeverMs));
    COLL_EXPECT(found, MEP_ERR_REVOKED, mep_barrier(comm, nullptr));
    COLL_OK(found, mep_barrier(comm, nullptr));
  });
  job.expect_clean_end();
  report.require_clean();
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(grow_up_to_max_size),
      cmocka_unit_test(a_grown_rank_is_replaced),
      cmocka_unit_test(automatic_recovery),
      cmocka_unit_test(joiners_die_when_welcomed),
      cmocka_unit_test(joiners_die_when_ready),
      cmocka_unit_test(stops_on_the_way),
      cmocka_unit_test(a_joiner_is_there_first),
      cmocka_unit_test(a_joiner_misses_another),
      cmocka_unit_test(a_stopped_rank_is_left_out),
      cmocka_unit_test(quorum_majority),
      cmocka_unit_test(quorum_witness),
      cmocka_unit_test(quorum_witness_has_decided),
      cmocka_unit_test(quorum_witness_needs_a_directory),
      cmocka_unit_test(views_are_told),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
