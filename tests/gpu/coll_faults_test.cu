// Faults in stream collectives: a rank that does not call, one that dies between its signals, one that
// is a hundred times slower, a freeze at any moment. No kernel hangs, no sticky error, the report is
// right, and graphs captured before go on in the next epoch. The test plays membership. Deaths at a chosen moment
// of an operation are in coll_faults_deaths.cu.
//
// Kernels that lack something have to fail here: without the meeting of an epoch (MEP_MUTANT_NO_MEETING) slow_reader
// finds wrong values. Those without the confirmation of personal data fail in coll_faults_deaths.cu.
#include "coll_faults_rig.hpp"
#include "support/random_numbers.hpp"

namespace gpu_test {
namespace {

std::vector<cudaGraphExec_t> capture(const Ranks& ranks, int operations) {
  std::vector<cudaGraphExec_t> execs;
  for (uint32_t rank = 0; rank < ranks.rig.ranks(); ++rank) {
    execs.push_back(ranks.rig.capture(rank, [&] {
      for (int i = 0; i < operations; ++i) ranks.rig.launch(rank, ranks.call(rank));
    }));
  }
  ranks.rig.synchronize();
  return execs;
}

// The last rank stops calling. The others report it, park, get the decision, and replay their old graph
// among themselves. Operations of one rank are enqueued two deep, so one fails and the next goes on.
void stopped(uint32_t ranks, uint64_t timeout_ms, Places places, const Scene& scene = {},
             int replays = 100) {
  Rig rig(ranks, timeout_ms, places);
  Ranks members(rig, scene);
  const uint32_t gone = ranks - 1;
  const auto execs = capture(members, 1);
  members.clear();
  for (uint32_t rank = 0; rank < ranks; ++rank) rig.replay(rank, execs[rank]);
  rig.synchronize();
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    members.expect((uint64_t{1} << ranks) - 1, rank, "before");
  }
  members.clear();
  for (uint32_t rank = 0; rank < gone; ++rank) rig.replay(rank, execs[rank]);
  for (uint32_t rank = 0; rank < gone; ++rank) {
    CollPost* post = rig.post(rank);
    GPU_CHECK(wait_for([&] { return Rig::word_of(&post->late_epoch) == 1; }), "no report of %u",
              rank);
    GPU_CHECK(post->late_seq == 2 && post->late_missing == uint64_t{1} << gone,
              "rank %u reports operation %llu, missing %llx", rank,
              static_cast<unsigned long long>(post->late_seq),
              static_cast<unsigned long long>(post->late_missing));
  }
  for (uint32_t rank = 0; rank < gone; ++rank) rig.freeze(rank);
  for (uint32_t rank = 0; rank < gone; ++rank) {
    GPU_CHECK(rig.acknowledged(rank), "rank %u does not park", rank);
    GPU_CHECK(rig.post(rank)->done == 1 && rig.post(rank)->entered == 2, "rank %u: done", rank);
  }
  for (uint32_t rank = 0; rank < gone; ++rank) {
    rig.install(rank, decision_of(1, 3, all_but(ranks, gone)));
  }
  rig.synchronize();
  for (uint32_t rank = 0; rank < gone; ++rank) {
    GPU_CHECK(members.statuses[rank]->head.result == MEP_ERR_PEER_FAILED &&
                  members.statuses[rank]->failed[0] == uint64_t{1} << gone &&
                  members.statuses[rank]->head.seq == 2 && members.statuses[rank]->head.epoch == 1,
              "rank %u: status %d, failed %llx", rank, members.statuses[rank]->head.result,
              static_cast<unsigned long long>(members.statuses[rank]->failed[0]));
  }
  for (int replay = 0; replay < replays; ++replay) {
    members.clear();
    for (uint32_t rank = 0; rank < gone; ++rank) {
      rig.replay(rank, execs[rank]);
    }
    rig.synchronize();
    for (uint32_t rank = 0; rank < gone; ++rank) {
      members.expect(all_but(ranks, gone), rank, "replayed after the view change");
    }
  }
  for (const cudaGraphExec_t exec : execs) cuda(cudaGraphExecDestroy(exec));
  std::printf("  %u ranks: one stops calling %s; %d replays of the old graph without it\n", ranks,
              mep::name_of(scene.kind), replays);
}

// The view changes while nothing runs: the next operation tells it, once, and takes no number.
void between_operations(uint32_t ranks) {
  Rig rig(ranks, 5000);
  Ranks members(rig);
  const uint32_t gone = 0;
  for (uint32_t rank = 1; rank < ranks; ++rank) {
    rig.freeze(rank);
    GPU_CHECK(rig.acknowledged(rank), "rank %u does not park", rank);
    rig.install(rank, decision_of(0, 1, all_but(ranks, gone)));
  }
  for (const int32_t wanted : {MEP_ERR_PEER_FAILED, MEP_SUCCESS}) {
    members.clear();
    for (uint32_t rank = 1; rank < ranks; ++rank) rig.launch(rank, members.call(rank));
    rig.synchronize();
    for (uint32_t rank = 1; rank < ranks; ++rank) {
      if (wanted == MEP_SUCCESS) {
        members.expect(all_but(ranks, gone), rank, "after the report");
        GPU_CHECK(members.statuses[rank]->head.seq == 1 && members.statuses[rank]->head.epoch == 2,
                  "rank %u: seq %llu", rank,
                  static_cast<unsigned long long>(members.statuses[rank]->head.seq));
      } else {
        GPU_CHECK(members.statuses[rank]->head.result == wanted, "rank %u: %d, not the report",
                  rank, members.statuses[rank]->head.result);
      }
    }
  }
  std::printf("  %u ranks: a view change between operations is told once\n", ranks);
}

// A dying rank has served some members and not others: its words and bytes for them go astray. A member that
// has them completes; the decision says that the operation succeeds; the others take them from a member. It is the
// second operation: in the first the ranks meet, and who is not met serves nobody.
void half_served(uint32_t ranks, const Scene& scene = {}) {
  Rig rig(ranks, 2000);
  Ranks members(rig, scene);
  const uint32_t gone = ranks - 1;
  for (uint32_t rank = 0; rank < ranks; ++rank) rig.launch(rank, members.call(rank));
  rig.synchronize();
  uint8_t* nowhere = rig.make_window(gone);
  CollState state = rig.read_state(gone);
  for (uint32_t rank = 0; rank < gone; rank += 2) state.windows[rank] = nowhere;
  const uint32_t served = 1;  // as all odd ones
  GPU_CHECK(mep::device::coll_is_one_shot(rig.layout(), kCount * 4), "it goes in two steps");
  rig.write_state(gone, state);
  members.clear();
  for (uint32_t rank = 0; rank < ranks; ++rank) rig.launch(rank, members.call(rank));
  GPU_CHECK(wait_for([&] { return Rig::word_of(&rig.post(served)->done) == 2; }),
            "a served rank does not complete");
  for (uint32_t rank = 0; rank < gone; ++rank) rig.freeze(rank);
  for (uint32_t rank = 0; rank < gone; ++rank) {
    GPU_CHECK(rig.acknowledged(rank), "rank %u does not park", rank);
    GPU_CHECK(rig.post(rank)->done == 1 + rank % 2, "rank %u has done %llu", rank,
              static_cast<unsigned long long>(rig.post(rank)->done));
  }
  for (uint32_t rank = 0; rank < gone; ++rank) {
    rig.install(rank, decision_of(2, 4, all_but(ranks, gone)));
  }
  rig.synchronize();
  for (uint32_t rank = 0; rank < gone; ++rank) {
    members.expect((uint64_t{1} << ranks) - 1, rank, "settled");
  }
  members.clear();
  for (uint32_t rank = 0; rank < gone; ++rank) rig.launch(rank, members.call(rank));  // the report
  for (uint32_t rank = 0; rank < gone; ++rank) rig.launch(rank, members.call(rank));
  rig.synchronize();
  for (uint32_t rank = 0; rank < gone; ++rank) {
    members.expect(all_but(ranks, gone), rank, "after it");
  }
  cuda(cudaFree(nowhere));
  std::printf("  %u ranks: one dies between its signals of %s; all survivors have the same bytes\n",
              ranks, mep::name_of(scene.kind));
}

// The last rank calls something else and dies. A member that a freeze has kept from finding that out is told by the
// decision, so that its next calls are those of the others.
void mismatch_in_change(uint32_t ranks) {
  Rig rig(ranks, 5000);
  Ranks members(rig);
  const uint32_t gone = ranks - 1;
  const uint32_t parked = 0;
  rig.freeze(parked);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    CollCall call = members.call(rank);
    call.bytes -= rank == gone ? 4 : 0;
    rig.launch(rank, call);
  }
  for (uint32_t rank = 1; rank < gone; ++rank) {
    GPU_CHECK(wait_for([&] { return Rig::word_of(&rig.post(rank)->done) == 1; }),
              "rank %u does not find the mismatch", rank);
    rig.freeze(rank);
  }
  GPU_CHECK(rig.acknowledged(parked) && rig.post(parked)->done == 0, "it does not park");
  for (uint32_t rank = 0; rank < gone; ++rank) {
    rig.install(rank, decision_of(1, 3, all_but(ranks, gone)));
  }
  rig.synchronize();
  for (const int32_t wanted : {MEP_ERR_MISMATCH, MEP_ERR_PEER_FAILED}) {
    for (uint32_t rank = 0; rank < gone; ++rank) {
      const int32_t told = members.statuses[rank]->head.result;
      GPU_CHECK(told == wanted, "rank %u: %d, not %d", rank, told, wanted);
    }
    members.clear();
    for (uint32_t rank = 0; rank < gone; ++rank) rig.launch(rank, members.call(rank));
    rig.synchronize();
  }
  for (uint32_t rank = 0; rank < gone; ++rank) {
    members.expect(all_but(ranks, gone), rank, "after a mismatch in a view change");
  }
  std::printf("  %u ranks: a view change during a mismatch ends it alike\n", ranks);
}

// The last rank dies after an operation that it has served. One survivor has ended that operation and goes on into
// the next epoch at once; the other still reads, in places that the next epoch uses too.
void slow_reader(uint32_t ranks) {
  Rig rig(ranks, 10'000);
  Ranks members(rig);
  const uint32_t gone = ranks - 1;
  const uint32_t reader = 1;
  GPU_CHECK(mep::device::coll_is_one_shot(rig.layout(), kCount * 4), "it goes in two steps");
  rig.set_delay(reader, 60'000'000);
  members.clear();
  for (uint32_t rank = 0; rank < ranks; ++rank) rig.launch(rank, members.call(rank));
  GPU_CHECK(wait_for([&] { return Rig::word_of(&rig.post(0)->done) == 1; }), "it does not end");
  for (uint32_t rank = 0; rank < gone; ++rank) rig.freeze(rank);
  for (uint32_t rank = 0; rank < gone; ++rank) {
    GPU_CHECK(rig.acknowledged(rank), "rank %u does not park", rank);
  }
  for (uint32_t rank = 0; rank < gone; ++rank) {
    rig.install(rank, decision_of(1, 3, all_but(ranks, gone)));
  }
  for (size_t i = 0; i < kCount; ++i) members.sends[0][i] = 0x55555555u;
  rig.launch(0, members.call(0));  // the report
  rig.launch(0, members.call(0));
  GPU_CHECK(wait_for([&] { return Rig::word_of(&rig.post(reader)->done) == 1; }),
            "it does not end");
  cuda(cudaStreamSynchronize(rig.stream(reader)));
  members.expect((uint64_t{1} << ranks) - 1, reader, "read while others went on");
  for (uint32_t rank = 1; rank < gone; ++rank) {
    rig.launch(rank, members.call(rank));
    rig.launch(rank, members.call(rank));
  }
  rig.synchronize();
  for (uint32_t rank = 0; rank < gone; ++rank) {
    GPU_CHECK(members.statuses[rank]->head.result == MEP_SUCCESS, "rank %u: %d", rank,
              members.statuses[rank]->head.result);
  }
}

// A freeze that comes to nothing, at random moments of a stream of operations with delays.
void lifted(uint32_t ranks, std::mt19937_64* random, double seconds, Places places) {
  Rig rig(ranks, 20'000, places);
  Ranks members(rig);
  const size_t kinds = std::size(kKinds);
  const bool small = places == Places::kSmall;
  for (uint32_t rank = 0; rank < ranks; ++rank) rig.set_delay(rank, small ? 4'000 : 40'000);
  const double end = now_s() + seconds;
  uint64_t operations = 0, freezes = 0;
  while (now_s() < end) {
    members.clear();
    members.scene.kind = kKinds[(*random)() % kinds];
    members.scene.root = static_cast<uint32_t>((*random)() % ranks);
    const int depth = 1 + static_cast<int>((*random)() % 20);
    for (int i = 0; i < depth; ++i) {
      for (uint32_t rank = 0; rank < ranks; ++rank) rig.launch(rank, members.call(rank));
    }
    operations += static_cast<uint64_t>(depth);
    for (int i = 0; i < 3; ++i) {
      const double pause = now_s() + static_cast<double>((*random)() % 300) * 1e-6;
      while (now_s() < pause) {
      }
      for (uint32_t rank = 0; rank < ranks; ++rank) rig.freeze(rank);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        GPU_CHECK(rig.acknowledged(rank), "rank %u does not park", rank);
        const uint64_t done = Rig::word_of(&rig.post(rank)->done);
        const double still = now_s() + 100e-6;
        while (now_s() < still) {
        }
        GPU_CHECK(Rig::word_of(&rig.post(rank)->done) == done, "rank %u went on", rank);
      }
      for (uint32_t rank = 0; rank < ranks; ++rank) rig.lift(rank);
      ++freezes;
    }
    rig.synchronize();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      members.expect((uint64_t{1} << ranks) - 1, rank, "after lifted freezes");
      GPU_CHECK(Rig::word_of(&rig.post(rank)->done) == operations, "rank %u: count", rank);
    }
  }
  std::printf("  %u ranks: %llu freezes without consequence in %llu operations%s\n", ranks,
              static_cast<unsigned long long>(freezes), static_cast<unsigned long long>(operations),
              small ? ", small places" : "");
}

// Nobody answers: the operation ends all the same, and so do later ones.
void no_decision(uint32_t ranks) {
  Rig rig(ranks, 200);
  Ranks members(rig);
  members.clear();
  const double begin = now_s();
  rig.launch(0, members.call(0));
  rig.launch(0, members.call(0));
  rig.synchronize();
  GPU_CHECK(now_s() - begin < 15, "it took %.1f s", now_s() - begin);
  GPU_CHECK(members.statuses[0]->head.result == MEP_ERR_TIMEOUT, "status %d",
            members.statuses[0]->head.result);
  GPU_CHECK(Rig::word_of(&rig.post(0)->failures) == 2, "failures");
  std::printf("  %u ranks: without any decision operations end, after %.1f s\n", ranks,
              now_s() - begin);
}

// One rank takes a hundred times as long as an operation: it is late, not wrong.
void slow(uint32_t ranks) {
  Rig rig(ranks, 10'000);
  Ranks members(rig);
  rig.set_delay(ranks / 2, 2'000'000);
  for (int i = 0; i < 50; ++i) {
    members.clear();
    for (uint32_t rank = 0; rank < ranks; ++rank) rig.launch(rank, members.call(rank));
    rig.synchronize();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      members.expect((uint64_t{1} << ranks) - 1, rank, "a slow rank");
    }
  }
  std::printf("  %u ranks: one a hundred times slower\n", ranks);
}

// Another rank dies after some member has called two more operations. On the others the change ends the first of them,
// and the second tells it. Calls on the root that died before, made in between, tell of that root alone.
void another_dies(Ranks* members, uint32_t gone) {
  Rig& rig = members->rig;
  const uint32_t next_gone = gone - 1;
  CollDecision decision = decision_of(1, 4, (uint64_t{1} << next_gone) - 1);
  decision.old_epoch = 2;
  decision.epoch = 3;
  for (uint32_t rank = 0; rank < next_gone; ++rank) {
    rig.freeze(rank);
    GPU_CHECK(rig.acknowledged(rank), "rank %u does not park", rank);
    rig.install(rank, decision);
  }
  const auto launch = [&](Collective kind, uint32_t root) {
    members->scene.kind = kind;
    members->scene.root = root;
    members->clear();
    for (uint32_t rank = 0; rank < next_gone; ++rank) rig.launch(rank, members->call(rank));
    rig.synchronize();
  };
  const uint32_t told[] = {next_gone, gone, gone, next_gone};
  for (size_t i = 0; i < std::size(told); ++i) {
    launch(i == 0 ? Collective::k_allreduce : Collective::k_broadcast, told[i]);
    for (uint32_t rank = 0; rank < next_gone; ++rank) {
      const OpStatus& status = *members->statuses[rank];
      GPU_CHECK(
          status.head.result == MEP_ERR_PEER_FAILED && status.failed[0] == uint64_t{1} << told[i],
          "call %zu of rank %u: %d, failed %llx", i, rank, status.head.result,
          static_cast<unsigned long long>(status.failed[0]));
    }
  }
  launch(Collective::k_alltoall, 0);
  for (uint32_t rank = 0; rank < next_gone; ++rank) {
    members->expect((uint64_t{1} << next_gone) - 1, rank, "after two deaths");
    GPU_CHECK(members->statuses[rank]->head.seq == 4, "rank %u: operation %llu", rank,
              static_cast<unsigned long long>(members->statuses[rank]->head.seq));
  }
}

// A call on a dead root is refused each time; it takes no number, and nothing is written.
void dead_root(uint32_t ranks) {
  Rig rig(ranks, 5000);
  Ranks members(rig, {Collective::k_allreduce, ranks - 1, 1000});
  const uint32_t gone = ranks - 1;
  for (uint32_t rank = 0; rank < gone; ++rank) {
    rig.freeze(rank);
    GPU_CHECK(rig.acknowledged(rank), "rank %u does not park", rank);
    rig.install(rank, decision_of(0, 1, all_but(ranks, gone)));
  }
  const auto launch = [&](Collective kind) {
    members.scene.kind = kind;
    members.clear();
    for (uint32_t rank = 0; rank < gone; ++rank) rig.launch(rank, members.call(rank));
    rig.synchronize();
  };
  launch(Collective::k_allreduce);  // the report
  for (const Collective kind : kKinds) {
    if (!has_root(kind)) continue;
    launch(kind);
    for (uint32_t rank = 0; rank < gone; ++rank) {
      GPU_CHECK(members.statuses[rank]->head.result == MEP_ERR_PEER_FAILED,
                "%s of a dead root: rank %u: %d", mep::name_of(kind), rank,
                members.statuses[rank]->head.result);
      size_t written = 0;
      for (size_t i = 0; i < members.elements(); ++i) {
        written += members.receives[rank][i] != kUntouched ? 1 : 0;
      }
      GPU_CHECK(written == 0, "%s of a dead root: rank %u: %zu values were written",
                mep::name_of(kind), rank, written);
    }
  }
  launch(Collective::k_alltoall);
  for (uint32_t rank = 0; rank < gone; ++rank) {
    members.expect(all_but(ranks, gone), rank, "after calls on a dead root");
    GPU_CHECK(members.statuses[rank]->head.seq == 1 && members.statuses[rank]->head.epoch == 2,
              "rank %u: operation %llu", rank,
              static_cast<unsigned long long>(members.statuses[rank]->head.seq));
  }
  std::printf("  %u ranks: calls on a dead root\n", ranks);
  if (ranks > 3) another_dies(&members, gone);
}

}  // namespace
}  // namespace gpu_test

int main() {
  using namespace gpu_test;
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gpu_is_there()) return kSkipped;
  std::mt19937_64 random(mep_reference::seed_of_run());
  for (const uint32_t ranks : {2u, 4u, 8u}) stopped(ranks, 300, Places::kAsUsual);
  for (const uint32_t ranks : {2u, 4u}) stopped(ranks, 300, Places::kSmall);
  for (const uint32_t ranks : {2u, 4u, 8u}) between_operations(ranks);
  for (const Collective kind : kKinds) {
    if (kind == Collective::k_allreduce) continue;
    stopped(3, 200, Places::kAsUsual, {kind, 0, 2000}, 20);
  }
  for (const uint32_t ranks : {2u, 4u}) dead_root(ranks);
  for (const uint32_t ranks : {3u, 4u}) mismatch_in_change(ranks);
  half_served(3);
  for (const size_t count : {size_t{2000}, kCount}) {
    half_served(3, {Collective::k_allgather, 0, count});
    for (const uint32_t root : {0u, 1u}) half_served(3, {Collective::k_reduce, root, count});
  }
  half_served(3, {Collective::k_allreduce, 0, 2000});
  deaths_in_personal_operations();
  deaths_in_one_way_reduce();
  any_moment(&random, std::getenv("MEP_TEST_SOAK") != nullptr ? 300 : 5);
  for (int i = 0; i < 5; ++i) slow_reader(3);
  std::printf("  3 ranks: one reads while another begins the next epoch\n");
  for (const uint32_t ranks : {2u, 8u}) lifted(ranks, &random, 3, Places::kAsUsual);
  for (const uint32_t ranks : {2u, 8u}) lifted(ranks, &random, 2, Places::kSmall);
  no_decision(2);
  slow(4);
  // Whatever happened, the context is sound.
  synchronize_all();
  std::printf(failure_count() == 0 ? "coll_faults_test: passed\n" : "coll_faults_test: FAILED\n");
  return failure_count() == 0 ? 0 : 1;
}
