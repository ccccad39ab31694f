// A rank's view when others fail: no hang, no sticky error, a report that names who and what was waited for, defined
// outputs, and graphs captured before the failure that work in the next epoch.
#include "ep_tests.hpp"

#include <chrono>
#include <thread>

#include "ep_workload.cuh"

namespace {

using namespace rig;

constexpr uint32_t kLost = 2;

class FaultRig {
 public:
  FaultRig(const char* name, uint64_t seed, uint64_t timeout_ms, bool slotted)
      : name_(name), group_(sizes(seed, slotted), 1, 2, timeout_ms, 7) {
    for (uint32_t r = 0; r < group_.size(); ++r) {
      group_[r].shadow.partial_allowed = 1;
      group_[r].control.set(&group_[r].shadow, sizeof group_[r].shadow);
      workers_.push_back(std::make_unique<Worker>(group_, r, 0));
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t made = nullptr;
      cudaStream_t stream = group_[r].streams[0];
      GPU_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      Worker::Options options;
      options.tokens = 5 + r;
      workers_[r]->enqueue(options, stream);
      GPU_OK(cudaStreamEndCapture(stream, &graph));
      GPU_OK(cudaGraphInstantiate(&made, graph, 0));
      GPU_OK(cudaGraphDestroy(graph));
      graphs_.push_back(made);
    }
  }
  ~FaultRig() {
    for (cudaGraphExec_t graph : graphs_) (void)cudaGraphExecDestroy(graph);
  }

  Group& group() { return group_; }
  Worker& worker(uint32_t r) { return *workers_[r]; }
  cudaStream_t stream(uint32_t r) { return group_[r].streams[0]; }

  void replay(bool with_lost, uint32_t times = 1) {
    for (uint32_t i = 0; i < times; ++i) {
      for (uint32_t r = 0; r < group_.size(); ++r) {
        if (r != kLost || with_lost) GPU_OK(cudaGraphLaunch(graphs_[r], stream(r)));
      }
    }
  }

  void expect(bool condition, const char* what, uint32_t rank) {
    if (condition) return;
    std::printf("fault %s: %s, rank %u\n", name_, what, rank);
    good_ = false;
  }

  // All survivors have left with `result` and told the host why.
  void expect_failure(mep_result_t result, Cause cause, EpPhase phase, uint64_t seq) {
    for (uint32_t r = 0; r < group_.size(); ++r) {
      if (r == kLost) continue;
      const OpStatus status = worker(r).status();
      const DeviceReport& report = *group_[r].buffers[0]->report.host;
      expect(status.head.result == result, "result", r);
      expect(report.ready == (group_[r].shadow.epoch | uint64_t{1} << 63), "report is there", r);
      expect(report.epoch == group_[r].shadow.epoch, "reported epoch", r);
      expect(report.seq == seq, "reported seq", r);
      expect(report.missing == kLost, "reported rank", r);
      expect(report.cause == static_cast<uint32_t>(cause), "reported cause", r);
      expect(report.phase == static_cast<uint32_t>(phase), "reported phase", r);
    }
    expect(cudaGetLastError() == cudaSuccess, "no sticky error", 0);
  }

  void expect_zero_rows(uint32_t r) {
    const std::vector<uint8_t> out = worker(r).out();
    const size_t bytes = size_t{5 + r} * group_[r].g.combine_row;
    for (size_t i = 0; i < bytes; ++i) {
      if (out[i] != 0) return expect(false, "rows after a failure are zeros", r);
    }
  }

  void expect_right(const char* what, bool all) {
    for (uint32_t r = 0; r < group_.size(); ++r) {
      if (r == kLost && !all) continue;
      if (worker(r).errors() != 0)
        std::printf("%llu errors\n", (unsigned long long)worker(r).errors());
      expect(worker(r).errors() == 0, what, r);
    }
  }

  // The survivors go on in the next epoch and replay what they captured before.
  void recover(uint64_t epoch, bool carries) {
    group_.next_epoch(epoch, {kLost}, carries);
    for (auto& worker : workers_) worker->reset();
    replay(false, 3);
    GPU_OK(cudaDeviceSynchronize());
    expect_right("replays after the failure", false);
    for (uint32_t r = 0; r < group_.size(); ++r) {
      if (r == kLost) continue;
      const OpStatus status = worker(r).status();
      expect(status.head.result == MEP_PARTIAL || status.head.result == MEP_SUCCESS,
             "partial result", r);
      expect(status.head.epoch == epoch, "epoch of the next result", r);
      expect(status.failed[0] == uint64_t{1} << kLost && status.head.failed_count == 1,
             "failed ranks", r);
    }
  }

  bool good() const { return good_; }

 private:
  static EpSizes sizes(uint64_t seed, bool slotted) {
    RandomStream random(seed);
    EpSizes s{};
    s.ranks = 4;
    s.local_experts = 2;
    s.experts = 8;
    s.top_k = 4;
    s.max_tokens = 16;
    s.hidden = 256;
    s.input_type = s.wire_type = s.combine_type = MEP_BFLOAT16;
    s.slotted = slotted ? 1 : 0;
    return s;
  }

  const char* name_;
  Group group_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<cudaGraphExec_t> graphs_;
  bool good_ = true;
};

// A rank stops calling: the others leave at their deadline, later operations at once.
bool silent_rank(uint64_t seed, bool slotted) {
  FaultRig rig("a rank that stops calling", seed, 40, slotted);
  rig.replay(true, 2);
  GPU_OK(cudaDeviceSynchronize());
  rig.expect_right("before the failure", true);
  const Clock clock;
  rig.replay(false);
  GPU_OK(cudaDeviceSynchronize());
  rig.expect(clock.seconds() > 0.03 && clock.seconds() < 2, "bounded time", 0);
  // Slotted, the last use was given back by its combine: the wait is for rows.
  rig.expect_failure(MEP_ERR_TIMEOUT, Cause::kDeadline, slotted ? EpPhase::kRows : EpPhase::kCounts,
                     5);
  for (const uint32_t r : {0u, 1u, 3u}) rig.expect_zero_rows(r);
  const Clock second;
  rig.replay(false, 5);
  GPU_OK(cudaDeviceSynchronize());
  rig.expect(second.seconds() < 0.04, "later operations leave at once", 0);
  rig.recover(8, true);
  return rig.good();
}

// The host says that the epoch is over while kernels wait.
bool aborted(uint64_t seed) {
  FaultRig rig("abort in mid-wait", seed, 30'000, false);
  rig.replay(true);
  GPU_OK(cudaDeviceSynchronize());
  rig.replay(false);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // into the wait; any time is right
  const Clock clock;
  for (uint32_t r = 0; r < rig.group().size(); ++r) {
    __atomic_store_n(rig.group()[r].abort_word.host, uint64_t{7}, __ATOMIC_RELEASE);
  }
  GPU_OK(cudaDeviceSynchronize());
  rig.expect(clock.seconds() < 1, "bounded time", 0);
  rig.expect_failure(MEP_ERR_PEER_FAILED, Cause::kAborted, EpPhase::kCounts, 3);
  rig.recover(8, true);
  return rig.good();
}

// A rank takes part in the dispatch and never combines.
bool silent_in_combine(uint64_t seed) {
  FaultRig rig("a rank that stops before combine", seed, 40, false);
  for (uint32_t r = 0; r < rig.group().size(); ++r) {
    Worker::Options options;
    options.tokens = 5 + r;
    options.combines = r != kLost;
    rig.worker(r).enqueue(options, rig.stream(r));
  }
  GPU_OK(cudaDeviceSynchronize());
  rig.expect_failure(MEP_ERR_TIMEOUT, Cause::kDeadline, EpPhase::kOutputs, 2);
  for (const uint32_t r : {0u, 1u, 3u}) rig.expect_zero_rows(r);
  rig.recover(9, true);
  return rig.good();
}

// A dispatch that was sent is received in the next epoch: it has ended. Then combine of a dispatch that
// was received before the epoch changed: it goes on, without the terms of whoever is gone.
bool across_epochs(uint64_t seed) {
  FaultRig rig("operations across epochs", seed, 1'000, false);
  for (uint32_t r = 0; r < rig.group().size(); ++r) {
    Worker::Options options;
    options.tokens = 5 + r;
    options.receives = false;
    rig.worker(r).enqueue(options, rig.stream(r));
  }
  GPU_OK(cudaDeviceSynchronize());
  rig.group().next_epoch(8, {}, true);
  for (uint32_t r = 0; r < rig.group().size(); ++r) rig.worker(r).enqueue_receive(rig.stream(r));
  GPU_OK(cudaDeviceSynchronize());
  for (uint32_t r = 0; r < rig.group().size(); ++r) {
    rig.expect(rig.worker(r).status().head.result == MEP_ERR_PEER_FAILED,
               "receive in a later epoch", r);
  }
  rig.group().next_epoch(9, {}, true);
  for (uint32_t r = 0; r < rig.group().size(); ++r) {
    rig.worker(r).reset();
    Worker::Options options;
    options.tokens = 5 + r;
    options.combines = options.ends = false;
    rig.worker(r).enqueue(options, rig.stream(r));
  }
  GPU_OK(cudaDeviceSynchronize());
  rig.group().next_epoch(10, {kLost}, true);
  for (uint32_t r = 0; r < rig.group().size(); ++r) {
    if (r == kLost) continue;
    Worker::Options options;
    options.tokens = 5 + r;
    options.dispatches = false;
    rig.worker(r).enqueue(options, rig.stream(r));
  }
  GPU_OK(cudaDeviceSynchronize());
  rig.expect_right("combine of a dispatch of the epoch before", false);
  for (const uint32_t r : {0u, 1u, 3u}) {
    rig.expect(rig.worker(r).status().head.result >= 0, "result of that combine", r);
  }
  rig.replay(false, 2);
  GPU_OK(cudaDeviceSynchronize());
  rig.expect_right("after it", false);
  return rig.good();
}

// A hundred times slower than the others, and nobody is the worse for it.
bool slow_rank(uint64_t seed) {
  FaultRig rig("a slow rank", seed, 10'000, false);
  for (int i = 0; i < 20; ++i) {
    spin<<<1, 1, 0, rig.stream(kLost)>>>(4'000'000);
    rig.replay(true);
  }
  GPU_OK(cudaDeviceSynchronize());
  rig.expect_right("with a slow rank", true);
  for (uint32_t r = 0; r < rig.group().size(); ++r) {
    rig.expect(rig.group()[r].buffers[0]->report.host->ready == 0, "nothing is reported", r);
  }
  return rig.good();
}

}  // namespace

TestResult run_faults(uint64_t seed) {
  TestResult result{"failures: silent, aborted, slow ranks; epochs", 0, 0, ""};
  Worker::load_kernels();
  for (const bool good : {silent_rank(seed, false), silent_rank(seed, true), aborted(seed),
                          silent_in_combine(seed), across_epochs(seed), slow_rank(seed)}) {
    ++result.cases;
    result.failures += good ? 0 : 1;
  }
  return result;
}
