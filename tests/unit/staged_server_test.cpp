// The choice between mapped and staged GPUs, and the host's half of staged operations: mailbox, thread,
// failures, waits that end, and collectives over communicators of the host. Threads play the kernels.
// labels: gate threads tsan
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/status.hpp"
#include "core/api/api_guard.hpp"
#include "core/staged/reach.hpp"
#include "core/staged/stage_server.hpp"
#include "core/staged/staged_collectives.hpp"
#include "support/coll_ranks.hpp"
#include "support/fake_stage.hpp"

using namespace mep_test;
using mep::Collective;
using mep::GpuReach;
using mep::device::StageAnswer;
using mep::device::StageMailbox;
using mep::device::StageRequest;

namespace {

// --- The choice -----------------------------------------------------------------------------------

mep::ReachChoice choose(const std::vector<mep::ReachFacts>& facts) {
  std::vector<uint32_t> ranks;
  for (uint32_t i = 0; i < facts.size(); ++i) ranks.push_back(i + 3);
  return mep::choose_reach(facts, ranks);
}

void expect(const mep::ReachChoice& choice, GpuReach reach, const char* why) {
  assert_int_equal(choice.reach, reach);
  if (std::strstr(choice.why.c_str(), why) == nullptr) {
    fail_msg("\"%s\" lacks \"%s\"", choice.why.c_str(), why);
  }
}

void choice_follows_from_the_facts(void**) {
  const GpuReach device = GpuReach::kDeviceWindows;
  const GpuReach host = GpuReach::kHostWindows;
  const GpuReach queues = GpuReach::kQueues;
  expect(choose({{1, 10}}), device, "");
  expect(choose({{1, 10}, {1, 10}, {1, 10}}), device, "");
  expect(choose({{1, 10}, {1, 11}, {1, 12}}), device, "");
  expect(choose({{1, 10}, {1, 11}, {2, 12}}), queues, "rank 5 is on another host than rank 3");
  expect(choose({{1, 10}, {1, 10}, {1, 12}}), device, "");
  expect(choose({{1, 10}, {1, 10, 1}}), host, "rank 4 has MEP_CUDA_REACH=host");
  expect(choose({{1, 10, 1}}), host, "rank 3 has MEP_CUDA_REACH=host");
  expect(choose({{1, 10, 1}, {1, 11, 2}}), queues, "rank 4 has MEP_CUDA_REACH=queues");
  expect(choose({{1, 10, 1}, {2, 11}}), queues, "rank 4 is on another host");
}

void ranks_of_one_gpu_are_counted(void**) {
  using Facts = std::vector<mep::ReachFacts>;
  assert_int_equal(mep::most_on_one_gpu(Facts{{1, 10, 0, {7, 8}}}), 1);
  // Threads of one process, and processes.
  assert_int_equal(mep::most_on_one_gpu(Facts{{1, 10, 0, {7, 8}}, {1, 10, 0, {7, 8}}}), 2);
  assert_int_equal(mep::most_on_one_gpu(Facts{{1, 10, 0, {7, 8}},
                                              {1, 11, 0, {7, 9}},
                                              {1, 12, 0, {7, 8}},
                                              {1, 13, 0, {6, 8}},
                                              {1, 14, 0, {7, 8}},
                                              {2, 15, 0, {7, 8}}}),
                   3);
}

void the_least_limit_of_blocks_holds(void**) {
  std::vector<mep::ReachFacts> facts(3);
  assert_int_equal(mep::most_blocks_of(facts), 0);
  facts[1].most_blocks = 9;
  facts[2].most_blocks = 4;
  assert_int_equal(mep::most_blocks_of(facts), 4);
}

void setting_is_checked(void**) {
  const struct {
    const char* value;  // null: not set
    GpuReach least;
    std::vector<bool> group;  // of rank 0, with ranks 1 and 2 of its host and rank 3 of another
  } settings[] = {{nullptr, GpuReach::kDeviceWindows, {true, true, true, false}},
                  {"auto", GpuReach::kDeviceWindows, {true, true, true, false}},
                  {"host", GpuReach::kHostWindows, {}},
                  {"queues", GpuReach::kQueues, {}},
                  {"mixed", GpuReach::kQueues, {true, false, true, false}}};
  const std::vector<uint32_t> ranks{0, 1, 2, 3};
  for (const auto& setting : settings) {
    unsetenv("MEP_CUDA_REACH");
    if (setting.value != nullptr) setenv("MEP_CUDA_REACH", setting.value, 1);
    std::vector<mep::ReachFacts> facts{{50, 10}, {50, 11}, {50, 12}, {51, 10}};
    for (const uint32_t rank : ranks) {
      assert_int_equal(mep::read_reach_setting(rank, &facts[rank]), MEP_SUCCESS);
      assert_int_equal(facts[rank].least, setting.least);
    }
    const std::vector<uint64_t> groups = mep::groups_of(facts, ranks, 4);
    assert_true(mep::group_of(groups, 0) == setting.group);
    assert_true(mep::group_of(groups, 3).empty());  // nobody else is there
  }
  mep::ReachFacts facts;
  setenv("MEP_GPU_QUEUES", "adapter", 1);
  assert_int_equal(mep::read_reach_setting(0, &facts), MEP_SUCCESS);
  const std::vector<mep::ReachFacts> all{facts, facts, {}};
  const std::vector<uint32_t> places{0, 2, 5};
  assert_int_equal(mep::check_queues({all.data(), 2}, places), MEP_SUCCESS);
  assert_int_equal(mep::check_queues(all, places), MEP_ERR_MISMATCH);
  assert_non_null(std::strstr(mep::last_error_text(), "ranks 0 and 5"));
  setenv("MEP_GPU_QUEUES", "auto", 1);
  std::vector<mep::ReachFacts> autos(2);
  for (mep::ReachFacts& each : autos) {
    assert_int_equal(mep::read_reach_setting(0, &each), MEP_SUCCESS);
  }
  assert_int_equal(mep::check_queues(autos, places), MEP_SUCCESS);
  autos[1] = facts;
  assert_int_equal(mep::check_queues(autos, places), MEP_ERR_MISMATCH);
  setenv("MEP_GPU_QUEUES", "nic", 1);
  assert_int_equal(mep::read_reach_setting(0, &facts), MEP_ERR_INVALID_ARGUMENT);
  unsetenv("MEP_GPU_QUEUES");
  setenv("MEP_CUDA_REACH", "hosts", 1);
  assert_int_equal(mep::read_reach_setting(0, &facts), MEP_ERR_INVALID_ARGUMENT);
  assert_non_null(std::strstr(mep::last_error_text(), "MEP_CUDA_REACH=hosts"));
  unsetenv("MEP_CUDA_REACH");
}

// --- The server -----------------------------------------------------------------------------------

void pause_us(uint64_t us) {
  const timespec pause{0, static_cast<long>(us * 1'000)};
  (void)nanosleep(&pause, nullptr);
}

// Staging of one number: the answer is in it, so a request or staging that is not whole shows.
void every_request_is_served_once_and_in_order(void**) {
  const size_t requests = slice(4'000, 400'000);
  StageMailbox box{};
  uint64_t staging = 0;
  uint64_t served = 0;
  RandomStream random(mix(test_seed(), 1));
  mep::StageServer server;
  const auto serve = [&](const StageRequest& request, StageAnswer* answer) {
    static thread_local RandomStream delays(mix(test_seed(), 2));
    if (delays.below(64) == 0) pause_us(delays.below(300));
    const bool right = request.collective.count == served + 1 && staging == served * 3;
    ++served;
    staging = right ? served * 7 : 0;
    answer->live[0] = served;
    return right ? mep_result_t{MEP_SUCCESS} : mep::fail(MEP_ERR_INTERNAL, "out of order");
  };
  assert_int_equal(server.open(&box, "a test", serve), MEP_SUCCESS);
  server.set_bound_ms(220'000);
  FakeStageKernel kernel(&box);
  for (uint64_t i = 1; i <= requests; ++i) {
    if (random.below(256) == 0) pause_us(random.below(2'000));
    staging = (i - 1) * 3;
    StageRequest request{};
    request.collective.count = i;
    const StageAnswer answer = kernel.exchange(request);
    assert_int_equal(answer.result, MEP_SUCCESS);
    assert_int_equal(answer.live[0], i);
    assert_int_equal(staging, i * 7);
    assert_false(server.busy());
  }
  assert_int_equal(server.take_failure(), MEP_SUCCESS);
}

void the_first_failure_is_told_once(void**) {
  StageMailbox box{};
  mep::StageServer server;
  const auto serve = [&](const StageRequest& request, StageAnswer*) -> mep_result_t {
    if (request.collective.count == 0) return MEP_SUCCESS;
    return mep::fail(-static_cast<mep_result_t>(request.collective.count), "number %d",
                     static_cast<int>(request.collective.count));
  };
  assert_int_equal(server.open(&box, "a test", serve), MEP_SUCCESS);
  server.set_bound_ms(220'000);
  FakeStageKernel kernel(&box);
  const int results[] = {0, 5, 7, 0};
  for (const int result : results) {
    StageRequest request{};
    request.collective.count = static_cast<uint64_t>(result);
    assert_int_equal(kernel.exchange(request).result, -result);
  }
  assert_int_equal(server.take_failure(), -5);
  assert_non_null(std::strstr(mep::last_error_text(), "a test: number 5"));
  assert_int_equal(server.take_failure(), MEP_SUCCESS);
}

// A host that does not end its operation: the kernel leaves, and no later one posts.
void a_kernel_that_waited_too_long_leaves_for_good(void**) {
  StageMailbox box{};
  std::atomic<bool> go_on{false};
  std::atomic<uint32_t> served{0};
  mep::StageServer server;
  const auto serve = [&](const StageRequest&, StageAnswer*) -> mep_result_t {
    served.fetch_add(1);
    while (!go_on.load()) pause_us(50);
    return MEP_SUCCESS;
  };
  assert_int_equal(server.open(&box, "a test", serve), MEP_SUCCESS);
  FakeStageKernel kernel(&box);
  assert_int_equal(kernel.exchange({}, 20).result, MEP_ERR_TIMEOUT);
  assert_true(server.busy());  // the staging still belongs to the host
  assert_int_equal(server.take_failure(), MEP_ERR_TIMEOUT);
  assert_int_equal(server.take_failure(), MEP_SUCCESS);
  assert_int_equal(kernel.exchange({}, 20).result, MEP_ERR_TIMEOUT);
  go_on.store(true);
  while (server.busy()) pause_us(50);
  assert_int_equal(served.load(), 1);
  assert_int_equal(box.posted, 1);
}

void a_closed_server_lets_kernels_go(void**) {
  StageMailbox box{};
  mep::StageServer server;
  assert_int_equal(
      server.open(&box, "a test", [](const StageRequest&, StageAnswer*) { return MEP_SUCCESS; }),
      MEP_SUCCESS);
  server.set_bound_ms(370'000);
  FakeStageKernel kernel(&box);
  assert_int_equal(kernel.exchange({}).result, MEP_SUCCESS);
  server.close();
  assert_int_equal(kernel.exchange({}).result, MEP_ERR_ABORTED);
}

// --- Collectives ----------------------------------------------------------------------------------

// A StagedComm without a GPU.
class FakeStagedRank {
 public:
  FakeStagedRank(mep_comm_t comm, size_t bytes)
      : box_(std::make_unique<StageMailbox>()), staging_(bytes), kernel_(box_.get()) {
    opened = server.open(
        box_.get(), "a test", [this, comm](const StageRequest& request, StageAnswer* answer) {
          return mep::serve_staged_collective(
              *comm->comm, request, answer, [&](mep_result_t told) { server.note_failure(told); });
        });
    server.set_bound_ms(370'000);
  }
  uint32_t* words() { return reinterpret_cast<uint32_t*>(staging_.data()); }
  // Words of the staging at which operations send and receive.
  StageAnswer run(Collective kind, size_t count, size_t send, size_t receive, int32_t root = 0) {
    StageRequest request{};
    request.collective.kind = kind;
    request.collective.send = reinterpret_cast<uint64_t>(words() + send);
    request.collective.receive = reinterpret_cast<uint64_t>(words() + receive);
    request.collective.count = count;
    request.collective.dtype = MEP_UINT32;
    request.collective.op = MEP_SUM;
    request.collective.root = root;
    return kernel_.exchange(request);
  }

  mep_result_t opened = MEP_SUCCESS;

 private:
  std::unique_ptr<StageMailbox> box_;
  std::vector<std::byte> staging_;
  FakeStageKernel kernel_;

 public:
  mep::StageServer server;  // goes first: its thread uses the rest
};

uint32_t value_of(int rank, size_t i, int round) {
  return static_cast<uint32_t>(rank + 1) * 1000003u + static_cast<uint32_t>(i * 31) +
         static_cast<uint32_t>(round) * 17u;
}

void run_round(FakeStagedRank& staged, int rank, int size, int round, size_t count,
               Report& findings) {
  uint32_t* words = staged.words();
  const auto ranks = static_cast<size_t>(size);
  const uint64_t all = (uint64_t{1} << size) - 1;
  for (size_t i = 0; i < count; ++i) words[i] = value_of(rank, i, round);
  StageAnswer answer = staged.run(Collective::k_allreduce, count, 0, count);
  if (answer.result != MEP_SUCCESS) return findings.add("allreduce: %d", answer.result);
  for (size_t i = 0; i < count; ++i) {
    uint32_t sum = 0;
    for (int each = 0; each < size; ++each) sum += value_of(each, i, round);
    if (words[count + i] != sum) return findings.add("allreduce, rank %d: value %zu", rank, i);
  }
  const size_t own = static_cast<size_t>(rank) * count;
  for (size_t i = 0; i < count; ++i) words[own + i] = value_of(rank, i, round + 1);
  answer = staged.run(Collective::k_allgather, count, own, 0);
  if (answer.result != MEP_SUCCESS || answer.live[0] != all) {
    return findings.add("allgather: %d, live %llx", answer.result,
                        static_cast<unsigned long long>(answer.live[0]));
  }
  for (size_t i = 0; i < count * ranks; ++i) {
    if (words[i] != value_of(static_cast<int>(i / count), i % count, round + 1)) {
      return findings.add("allgather, rank %d: value %zu", rank, i);
    }
  }
  const int root = round % size;
  for (size_t i = 0; i < count; ++i) words[i] = rank == root ? value_of(root, i, round) : 0;
  answer = staged.run(Collective::k_broadcast, count, 0, 0, root);
  if (answer.result != MEP_SUCCESS) return findings.add("broadcast: %d", answer.result);
  for (size_t i = 0; i < count; ++i) {
    if (words[i] != value_of(root, i, round)) return findings.add("broadcast, value %zu", i);
  }
  answer = staged.run(Collective::k_barrier, 0, 0, 0);
  if (answer.result != MEP_SUCCESS) findings.add("barrier: %d", answer.result);
}

void collectives_are_those_of_the_comm(void**) {
  const int rounds = static_cast<int>(slice(20, 400));
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{300'000}}) {
    require_on_rank_threads(3, 0, [&](int rank, mep_comm_t comm, Report& findings) {
      FakeStagedRank staged(comm, count * 4 * sizeof(uint32_t));
      COLL_OK(findings, staged.opened);
      const int repeats = count > 1000 ? 3 : rounds;
      for (int round = 0; round < repeats && !findings.bad(); ++round) {
        run_round(staged, rank, 3, round, count, findings);
      }
    });
  }
}

// All are told, and the next calls go on.
void ranks_that_call_other_things_are_found(void**) {
  constexpr size_t kCount = 20'000;
  constexpr int kCalls = 6;
  const auto call = [](FakeStagedRank& staged, int rank, int which) {
    switch (which) {
      case 0:
        return staged.run(Collective::k_barrier, 0, 0, 0).result;
      case 1:
        return staged.run(Collective::k_allreduce, kCount, 0, kCount).result;
      case 2:
        return staged.run(Collective::k_allreduce, kCount / 2, 0, kCount).result;
      case 3:
        return staged.run(Collective::k_broadcast, kCount, 0, 0, 0).result;
      case 4:
        return staged.run(Collective::k_broadcast, kCount, 0, 0, 1).result;
      default:
        return staged.run(Collective::k_allgather, kCount, static_cast<size_t>(rank) * kCount, 0)
            .result;
    }
  };
  require_on_rank_threads(3, 0, [&](int rank, mep_comm_t comm, Report& findings) {
    FakeStagedRank staged(comm, 4 * kCount * sizeof(uint32_t));
    for (int pair = 0; pair < kCalls * kCalls; ++pair) {
      const int usual = pair / kCalls;
      const int other = pair % kCalls;
      const mep_result_t wanted = usual == other ? MEP_SUCCESS : MEP_ERR_MISMATCH;
      const mep_result_t result = call(staged, rank, rank == pair % 3 ? other : usual);
      if (result != wanted) findings.add("%d and %d, rank %d: %d", usual, other, rank, result);
      if (staged.server.take_failure() != wanted) findings.add("not told");
      const mep_result_t next = call(staged, rank, 1);
      if (next != MEP_SUCCESS) findings.add("after %d and %d: %d", usual, other, next);
    }
  });
}

// One rank aborts; the others are told once and go on without it.
void survive(int size) {
  const auto survivors = static_cast<uint64_t>((1 << (size - 1)) - 1);
  require_on_rank_threads(size, 0, [&](int rank, mep_comm_t comm, Report& findings) {
    FakeStagedRank staged(comm, 1 << 16);
    run_round(staged, rank, size, 1, 100, findings);
    if (rank == size - 1) {
      COLL_OK(findings, mep_comm_abort(comm));
      const mep_result_t own = staged.run(Collective::k_barrier, 0, 0, 0).result;
      if (own != MEP_ERR_ABORTED) findings.add("the aborted rank: %d", own);
      return;
    }
    StageAnswer answer = staged.run(Collective::k_allreduce, 100, 0, 100);
    if (answer.result != MEP_ERR_PEER_FAILED) findings.add("rank %d: %d", rank, answer.result);
    if (staged.server.take_failure() != MEP_ERR_PEER_FAILED) findings.add("not told");
    for (int round = 0; round < 10; ++round) {
      answer = staged.run(Collective::k_allgather, 10, static_cast<size_t>(rank) * 10, 0);
      if (answer.result != MEP_SUCCESS || answer.live[0] != survivors) {
        return findings.add("rank %d later: %d, live %llx", rank, answer.result,
                            static_cast<unsigned long long>(answer.live[0]));
      }
    }
  });
}

void a_failure_is_told_and_survived(void**) {
  survive(4);
  survive(8);
}

// A comm goes after its world, like that of a device side: it does not wait for a change that the world's end cut short.
void a_comm_goes_after_its_world(void**) {
  constexpr int kRanks = 4;
  const size_t rounds = slice(30, 300);
  for (size_t round = 0; round < rounds; ++round) {
    Report report;
    const mep_comm_config_t config = patient_config(0);
    std::vector<mep_comm_t> comms(kRanks, nullptr);
    COLL_OK(report, mep_comm_init_all(kRanks, &config, comms.data()));
    // A rank that aborts while others are still in the split makes theirs fail.
    std::barrier all_have_split(kRanks);
    on_threads(kRanks, [&](int rank) {
      mep_comm_t half = nullptr;
      COLL_OK(report, mep_comm_split(comms[static_cast<size_t>(rank)], rank % 2, 0, &half));
      all_have_split.arrive_and_wait();
      const mep_comm_t world = comms[static_cast<size_t>(rank)];
      COLL_EXPECT(report, MEP_ERR_BUSY, mep_comm_destroy(world));
      COLL_OK(report, mep_comm_abort(world));
      COLL_OK(report, mep_comm_destroy(half));
      COLL_OK(report, mep_comm_destroy(world));
    });
    report.require_clean();
  }
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(choice_follows_from_the_facts),
                              cmocka_unit_test(ranks_of_one_gpu_are_counted),
                              cmocka_unit_test(the_least_limit_of_blocks_holds),
                              cmocka_unit_test(setting_is_checked),
                              cmocka_unit_test(every_request_is_served_once_and_in_order),
                              cmocka_unit_test(the_first_failure_is_told_once),
                              cmocka_unit_test(a_kernel_that_waited_too_long_leaves_for_good),
                              cmocka_unit_test(a_closed_server_lets_kernels_go),
                              cmocka_unit_test(collectives_are_those_of_the_comm),
                              cmocka_unit_test(ranks_that_call_other_things_are_found),
                              cmocka_unit_test(a_failure_is_told_and_survived),
                              cmocka_unit_test(a_comm_goes_after_its_world)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
