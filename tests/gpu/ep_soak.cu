// The signal protocol under load: ranks that replay different graphs beside ranks that call eagerly, two
// buffers on two streams in opposite order, delays in every CTA, multiprocessors filled by others.
#include "ep_tests.hpp"

#include <thread>

#include "ep_workload.cuh"

namespace {

using namespace rig;

struct SoakPlan {
  EpSizes sizes;
  uint32_t buffers, ctas, rounds, per_round;
  bool delays, slow_peer, filled, without_combine;
  bool heavy;  // long rows, always pushed, beside memory traffic: what a missing fence lets slip
};

// A rank's calls in a round of `per_round` operations: the same number everywhere, cut up differently.
class SoakRank {
 public:
  SoakRank(Group& group, const SoakPlan& plan, uint32_t rank, uint64_t seed)
      : group_(group), plan_(plan), rank_(rank), random_(seed * 131 + rank) {
    for (uint32_t b = 0; b < plan.buffers; ++b) {
      workers_.push_back(std::make_unique<Worker>(group, rank, b));
      // Divisors of per_round, odd ones too: operations in a graph.
      graph_operations_.push_back(random_.pick({1u, 3u, 5u, 15u, 2u, 6u}));
    }
  }
  ~SoakRank() {
    for (cudaGraphExec_t graph : graphs_) (void)cudaGraphExecDestroy(graph);
  }

  void capture() {
    for (uint32_t b = 0; b < plan_.buffers; ++b) {
      cudaStream_t stream = group_[rank_].streams[b];
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t made = nullptr;
      GPU_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      for (uint32_t i = 0; i < graph_operations_[b]; ++i) enqueue(b, stream);
      GPU_OK(cudaStreamEndCapture(stream, &graph));
      GPU_OK(cudaGraphInstantiate(&made, graph, 0));
      GPU_OK(cudaGraphUpload(made, stream));
      GPU_OK(cudaGraphDestroy(graph));
      graphs_.push_back(made);
    }
    GPU_OK(cudaDeviceSynchronize());
  }

  void round() {
    // Odd ranks enqueue their buffers the other way round.
    for (uint32_t i = 0; i < plan_.buffers; ++i) {
      const uint32_t b = rank_ % 2 == 0 ? i : plan_.buffers - 1 - i;
      cudaStream_t stream = group_[rank_].streams[b];
      if (plan_.slow_peer && rank_ == 1) spin<<<1, 1, 0, stream>>>(3'000'000);
      uint32_t left = plan_.per_round;
      // Rank 0 calls eagerly every other round, the others replay.
      const bool eager = rank_ == 0 && round_ % 2 == 0;
      while (left != 0) {
        if (eager || left < graph_operations_[b]) {
          enqueue(b, stream);
          --left;
        } else {
          GPU_OK(cudaGraphLaunch(graphs_[b], stream));
          left -= graph_operations_[b];
        }
      }
    }
    ++round_;
  }

  void finish() const {
    for (cudaStream_t stream : group_[rank_].streams) GPU_OK(cudaStreamSynchronize(stream));
  }

  uint64_t errors() const {
    uint64_t sum = 0;
    for (const auto& worker : workers_) sum += worker->errors();
    return sum;
  }
  uint64_t operations() const {
    uint64_t sum = 0;
    for (const auto& worker : workers_) sum += worker->operations();
    return sum;
  }

 private:
  void enqueue(uint32_t b, cudaStream_t stream) {
    Worker::Options options;
    options.tokens = random_.percent(20) ? 0 : random_.between(1, plan_.sizes.max_tokens);
    options.split = !plan_.heavy && random_.percent(30);
    options.push = plan_.heavy || random_.percent(30);
    options.own_y = random_.percent(20);
    options.combines = !plan_.without_combine;
    options.delay = plan_.delays ? 1 + random_.below(1'000'000) : 0;
    workers_[b]->enqueue(options, stream);
  }

  Group& group_;
  SoakPlan plan_;
  uint32_t rank_;
  RandomStream random_;
  uint32_t round_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<uint32_t> graph_operations_;
  std::vector<cudaGraphExec_t> graphs_;
};

// Runs one plan until the time or the operations are over; the number of operations a rank has done.
struct SoakOutcome {
  uint64_t operations, errors, expected;
};

SoakOutcome soak(const SoakPlan& plan, uint64_t seed, double seconds, uint64_t max_operations) {
  Group group(plan.sizes, plan.buffers, plan.ctas, 5'000, 1 + seed % 40'000);
  std::vector<std::unique_ptr<SoakRank>> ranks;
  for (uint32_t r = 0; r < group.size(); ++r) {
    ranks.push_back(std::make_unique<SoakRank>(group, plan, r, seed));
  }
  for (auto& rank : ranks) rank->capture();
  const Clock clock;
  uint64_t rounds = 0;
  Memory sink(plan.heavy ? size_t{1} << 28 : 64);
  if (!all_resident(group, plan.buffers, plan.ctas)) {
    std::printf("the ranks' kernels do not fit on the GPU together\n");
    return {0, 1, 0};
  }
  cudaStream_t other = nullptr;
  GPU_OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  bool failed = false;
  const uint64_t per_batch = plan.buffers * plan.per_round * plan.rounds;
  while (!failed && clock.seconds() < seconds &&
         rounds * per_batch / plan.rounds < max_operations) {
    // All ranks enqueue the same number of rounds, each from a thread of its own.
    std::vector<std::thread> threads;
    for (auto& rank : ranks) {
      threads.emplace_back([&rank, &plan] {
        for (uint32_t i = 0; i < plan.rounds; ++i) rank->round();
      });
    }
    if (plan.filled) {
      for (int i = 0; i < 4; ++i) fill_processors<<<264, 1024, 0, other>>>(sink.as<float>(), 200);
    }
    if (plan.heavy) {
      stream_memory<<<132, 512, 0, other>>>(sink.as<uint4>(), sink.bytes() / sizeof(uint4), 2);
    }
    for (std::thread& thread : threads) thread.join();
    for (auto& rank : ranks) rank->finish();
    rounds += plan.rounds;
    for (auto& rank : ranks) failed = failed || rank->errors() != 0;
  }
  GPU_OK(cudaDeviceSynchronize());
  GPU_OK(cudaStreamDestroy(other));
  SoakOutcome out{0, 0, rounds * plan.per_round * plan.buffers * group.size()};
  for (auto& rank : ranks) {
    out.errors += rank->errors();
    out.operations += rank->operations();
  }
  if (!group.guards_intact()) ++out.errors;
  return out;
}

EpSizes small_sizes(RandomStream& random, uint32_t ranks) {
  EpSizes s{};
  s.ranks = ranks;
  s.local_experts = random.between(1, 4);
  s.experts = ranks * s.local_experts;
  s.top_k = std::min(s.experts, 4u);
  s.max_tokens = random.between(4, 40);
  s.hidden = 8 * random.between(8, 64);
  s.input_type = s.wire_type = s.combine_type = MEP_BFLOAT16;
  s.slotted = random.percent(30);
  return s;
}

}  // namespace

TestResult run_fences(uint64_t seed, double seconds) {
  TestResult result{"fences: long rows beside memory traffic", 0, 0, ""};
  Worker::load_kernels();
  const Clock clock;
  for (uint64_t i = 0; clock.seconds() < seconds; ++i) {
    RandomStream random(seed + i);
    SoakPlan plan{};
    plan.sizes = small_sizes(random, 8);
    plan.sizes.local_experts = 2;
    plan.sizes.experts = 16;
    plan.sizes.top_k = 8;
    plan.sizes.max_tokens = 32;
    plan.sizes.hidden = 4096;
    plan.buffers = 1;
    plan.ctas = i % 2 == 0 ? 16 : 3;
    plan.rounds = 10;
    plan.per_round = 30;
    plan.heavy = true;
    const SoakOutcome out = soak(plan, seed * 2003 + i, 2, UINT64_MAX);
    result.cases += out.operations;
    if (out.errors == 0 && out.operations == out.expected) continue;
    std::printf("seed %llu fence plan %llu: %llu errors\n", static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(i), static_cast<unsigned long long>(out.errors));
    if (++result.failures > 2) break;
  }
  return result;
}

TestResult run_soak(uint64_t seed, double seconds, uint64_t max_operations) {
  TestResult result{"replays: graphs, eager calls, two buffers, delays", 0, 0, ""};
  Worker::load_kernels();
  const Clock clock;
  for (uint64_t i = 0; clock.seconds() < seconds && result.cases < max_operations; ++i) {
    RandomStream random(seed * 1009 + i);
    SoakPlan plan{};
    plan.sizes = small_sizes(random, random.pick({8u, 4u, 2u, 8u}));
    plan.buffers = random.between(1, 2);
    plan.ctas = random.between(1, 4);
    plan.rounds = 12;
    plan.per_round = 30;
    plan.delays = i % 3 == 0;
    plan.filled = i % 4 == 2;
    plan.without_combine = i % 5 == 3;
    plan.slow_peer = i % 7 == 5;
    const SoakOutcome out = soak(plan, seed * 1009 + i, plan.delays ? 0.4 : 1.5, max_operations);
    result.cases += out.operations;
    if (out.errors == 0 && out.operations == out.expected) continue;
    std::printf(
        "seed %llu plan %llu: %llu errors (R %u M %u H %u K %u E_local %u slotted %u buffers %u "
        "ctas %u delays %d filled %d)\n",
        static_cast<unsigned long long>(seed), static_cast<unsigned long long>(i),
        static_cast<unsigned long long>(out.errors), plan.sizes.ranks, plan.sizes.max_tokens,
        plan.sizes.hidden, plan.sizes.top_k, plan.sizes.local_experts, plan.sizes.slotted,
        plan.buffers, plan.ctas, plan.delays, plan.filled);
    if (++result.failures > 2) break;
  }
  return result;
}
