// The measurements of mep_perf queue: threads of the host post as warps of a GPU would. Each runs six times, and the first
// run does not count.
//
// Every wait ends by a deadline; what a run did is checked, and a failure is a PerfError.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "queue/ends.hpp"

namespace mep::perf {

constexpr uint32_t kQueueRuns = 5;

// Seconds of a run.
struct RunTimes {
  double median_s = 0;
  double worst_s = 0;
};

class QueueBench {
 public:
  // *show is called before each run with its number, from 0.
  QueueBench(Ends& ends, uint64_t limit_ns, std::function<void(uint32_t)> show)
      : ends_(ends), limit_ns_(limit_ns), show_(std::move(show)) {}

  // Each of so many threads posts signals to one queue, `posts` of them, until the other end has the last. [0]: the queue;
  // [1]: the form with a mutex for each post, its runs between those of the queue.
  std::array<RunTimes, 2> requests(uint32_t warps, uint64_t posts);
  // Each end puts 8 bytes and signals when it has seen the word of the other; a round is there and back.
  RunTimes round_trips(uint64_t rounds);
  RunTimes puts(uint64_t bytes, uint64_t count);

  // Bytes of source and target that these sizes need.
  static size_t span_for(uint64_t largest_put);

 private:
  using Body = std::function<gpu_queue::Status(uint32_t, const gpu_queue::Patience&)>;

  struct Work {
    std::string what;  // for errors
    uint32_t threads = 1;
    Body body;
    std::function<void()> before;
    std::function<void()> check;
  };
  // One after another, as often as there are runs.
  void measure(std::span<const Work> works, std::span<RunTimes> times);
  RunTimes measure_one(const Work& work);
  double run(const Work& work);
  template <typename Memory>
  std::array<RunTimes, 2> requests_by(uint32_t warps, uint64_t posts);
  template <typename Memory>
  RunTimes round_trips_by(uint64_t rounds);
  template <typename Memory>
  RunTimes puts_by(uint64_t bytes, uint64_t count);

  Ends& ends_;
  uint64_t limit_ns_;
  std::function<void(uint32_t)> show_;
};

}  // namespace mep::perf
