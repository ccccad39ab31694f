#include "queue/bench.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "queue/failure.hpp"
#include "queue/locked_peer.hpp"
#include "queue/register_memory.hpp"
#include "transport/gpu_queue/peer.hpp"
#include "transport/gpu_queue/soft_nic.hpp"

namespace mep::perf {
namespace {

using namespace gpu_queue;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kWordStride = 64;  // of the words of two threads
constexpr uint64_t kDataAt = 64;      // in a target, of the round trips; the word is at 0
constexpr size_t kLeastSpan = size_t{4} << 20;

uint64_t word_at(const std::byte* place) {
  // Acquire: sees what was put before the word.
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(place), __ATOMIC_ACQUIRE);
}
RemoteMemory behind(RemoteMemory memory, uint64_t offset) {
  memory.address += offset;
  return memory;
}
LocalMemory behind(LocalMemory memory, uint64_t offset) {
  memory.address = static_cast<const std::byte*>(memory.address) + offset;
  return memory;
}

// kOk: the run may go on. Posts look at the clock only where they wait, so a poster looks once in so many.
Status look_at_clock(uint64_t posted, const Patience& patience) {
  constexpr uint64_t kPostsPerLook = 1024;
  if (posted % kPostsPerLook != 0) return Status::kOk;
  if (SystemMemory::nanoseconds() > patience.deadline) return Status::kTimedOut;
  // The word speaks of nothing but itself.
  return SystemMemory::load_abort(patience.abort_word) < patience.epoch ? Status::kOk
                                                                        : Status::kAborted;
}

// Until the other end's word is there.
Status wait_word(const std::byte* place, uint64_t value, const Patience& patience) {
  for (uint32_t polls = 1; word_at(place) != value; ++polls) {
    SystemMemory::pause(polls);
    if (polls % SystemMemory::kPollsPerLook != 0) continue;
    if (SystemMemory::nanoseconds() > patience.deadline) return Status::kTimedOut;
    if (SystemMemory::load_abort(patience.abort_word) >= patience.epoch) return Status::kAborted;
  }
  return Status::kOk;
}

template <typename Peer>
Status post_signals(Peer peer, const RemoteMemory& word, uint64_t posts, const Patience& patience) {
  Status status = Status::kOk;
  for (uint64_t i = 1; i <= posts && status == Status::kOk; ++i) {
    status = peer.signal(word, i);
    if (status == Status::kOk) status = look_at_clock(i, patience);
  }
  return status == Status::kOk ? peer.flush() : status;
}

// Threads of one run, which begin together.
class Crew {
 public:
  ~Crew() { join(); }
  Crew() = default;
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  template <typename Work>
  void add(Work work) {
    threads_.emplace_back([this, work = std::move(work)] {
      // Acquire: when the run began. It is set whatever happens.
      while (!begins_.load(std::memory_order_acquire)) std::this_thread::yield();
      work();
    });
  }
  void begin() { begins_.store(true, std::memory_order_release); }
  void join() {
    begin();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::atomic<bool> begins_{false};  // publishes to the threads what was set before they begin
  std::vector<std::thread> threads_;
};

std::string warps_text(uint32_t warps) {
  return std::to_string(warps) + (warps == 1 ? " warp" : " warps");
}

}  // namespace

size_t QueueBench::span_for(uint64_t largest_put) {
  return std::max<size_t>(kLeastSpan, largest_put) + kWordStride;
}

// Seconds from the begin to the end of the last thread.
double QueueBench::run(const Work& work) {
  const uint32_t threads = work.threads;
  std::vector<uint64_t> ends(threads, 0);
  std::vector<Status> statuses(threads, Status::kOk);
  std::array<std::pair<uint64_t, uint64_t>, 2> before;
  for (int i = 0; i < 2; ++i) {
    const Queue& queue = *ends_.end(i).queue;
    before[static_cast<size_t>(i)] = {queue.reserved, queue.done};
  }
  uint64_t abort_word = 0;  // 1: a thread has failed, the others end
  Patience patience;
  patience.abort_word = &abort_word;
  patience.epoch = 1;
  uint64_t begin = 0;
  {
    Crew crew;
    for (uint32_t i = 0; i < threads; ++i) {
      crew.add([&, i] {
        statuses[i] = work.body(i, patience);
        ends[i] = SystemMemory::nanoseconds();
        // Relaxed: it speaks of nothing but itself.
        if (statuses[i] != Status::kOk) __atomic_store_n(&abort_word, 1, __ATOMIC_RELAXED);
      });
    }
    begin = SystemMemory::nanoseconds();
    patience.deadline = begin + limit_ns_;
    crew.begin();
  }
  for (uint32_t i = 0; i < threads; ++i) {
    if (statuses[i] == Status::kOk || statuses[i] == Status::kAborted) continue;
    uint64_t posted = 0;
    uint64_t done = 0;
    const Queue* failed = ends_.end(0).queue;
    for (int number = 0; number < 2; ++number) {
      const Queue& queue = *ends_.end(number).queue;
      posted += queue.reserved - before[static_cast<size_t>(number)].first;
      done += queue.done - before[static_cast<size_t>(number)].second;
      if (queue.error != 0) failed = &queue;
    }
    throw PerfError(failure_text(work.what, statuses[i], *failed, posted, done,
                                 static_cast<double>(limit_ns_) * 1e-9));
  }
  return static_cast<double>(*std::max_element(ends.begin(), ends.end()) - begin) * 1e-9;
}

void QueueBench::measure(std::span<const Work> works, std::span<RunTimes> times) {
  std::vector<std::array<double, kQueueRuns>> seconds(works.size());
  for (uint32_t number = 0; number <= kQueueRuns; ++number) {
    show_(number);
    for (size_t i = 0; i < works.size(); ++i) {
      works[i].before();
      const double taken = run(works[i]);
      works[i].check();
      if (number != 0) seconds[i][number - 1] = taken;
    }
  }
  for (size_t i = 0; i < works.size(); ++i) {
    std::sort(seconds[i].begin(), seconds[i].end());
    times[i] = {seconds[i][kQueueRuns / 2], seconds[i][kQueueRuns - 1]};
  }
}

RunTimes QueueBench::measure_one(const Work& work) {
  RunTimes times;
  measure({&work, 1}, {&times, 1});
  return times;
}

template <typename Memory>
std::array<RunTimes, 2> QueueBench::requests_by(uint32_t warps, uint64_t posts) {
  const End& end = ends_.end(0);
  std::byte* words = ends_.end(1).memory->target();
  std::mutex mutex;
  const auto after = [&](Status status, uint32_t i, const Patience& patience) {
    return status == Status::kOk ? wait_word(words + i * kWordStride, posts, patience) : status;
  };
  const Body free = [&](uint32_t i, const Patience& patience) {
    const QueuePeer<Memory> peer(end.queue, patience);
    return after(post_signals(peer, behind(end.target, i * kWordStride), posts, patience), i,
                 patience);
  };
  const Body locked = [&](uint32_t i, const Patience& patience) {
    const LockedPeer<Memory> peer(end.queue, &mutex, patience);
    return after(post_signals(peer, behind(end.target, i * kWordStride), posts, patience), i,
                 patience);
  };
  const auto clear = [&] { std::memset(words, 0, warps * kWordStride); };
  const std::string what = "requests of " + warps_text(warps);
  const std::array<Work, 2> works = {Work{what, warps, free, clear, [] {}},
                                     Work{what + " with a mutex", warps, locked, clear, [] {}}};
  std::array<RunTimes, 2> times;
  measure(works, times);
  return times;
}

template <typename Memory>
RunTimes QueueBench::round_trips_by(uint64_t rounds) {
  std::atomic<uint64_t> wrong{0};  // counts, and is read when the threads have ended
  const Body body = [&](uint32_t i, const Patience& patience) {
    const End& end = ends_.end(static_cast<int>(i));
    const std::byte* arrived = end.memory->target();
    QueuePeer<Memory> peer(end.queue, patience);
    Status status = Status::kOk;
    const auto receive = [&](uint64_t round) {
      status = wait_word(arrived, round, patience);
      uint64_t data = 0;
      std::memcpy(&data, arrived + kDataAt, sizeof data);
      if (status == Status::kOk && data != round) wrong.fetch_add(1, std::memory_order_relaxed);
    };
    for (uint64_t round = 1; round <= rounds && status == Status::kOk; ++round) {
      if (i == 1) receive(round);
      if (status != Status::kOk) break;
      std::memcpy(end.memory->source(), &round, sizeof round);  // a request carries so few bytes
      status = peer.put(behind(end.target, kDataAt), end.source, sizeof round);
      if (status == Status::kOk) status = peer.signal(end.target, round);
      if (i == 0 && status == Status::kOk) receive(round);
    }
    return status == Status::kOk ? peer.flush() : status;
  };
  const auto clear = [&] {
    for (int i = 0; i < 2; ++i) std::memset(ends_.end(i).memory->target(), 0, kDataAt + 8);
  };
  const auto check = [&] {
    if (wrong == 0) return;
    throw PerfError("latency: a word arrived before the put that was posted before it");
  };
  return measure_one({"latency", 2, body, clear, check});
}

// Until the other end sees a word behind the last of them.
template <typename Memory>
RunTimes QueueBench::puts_by(uint64_t bytes, uint64_t count) {
  const End& end = ends_.end(0);
  std::byte* target = ends_.end(1).memory->target();
  const uint64_t word = end.memory->span() - kWordStride;
  const uint64_t places = std::min(count, word / bytes);
  const uint64_t used = places * bytes;
  for (uint64_t i = 0; i < used; ++i) {
    end.memory->source()[i] = static_cast<std::byte>((i * 2654435761u) >> 24);
  }
  const Body body = [&](uint32_t, const Patience& patience) {
    QueuePeer<Memory> peer(end.queue, patience);
    Status status = Status::kOk;
    for (uint64_t i = 0; i < count && status == Status::kOk; ++i) {
      const uint64_t at = i % places * bytes;
      status = peer.put(behind(end.target, at), behind(end.source, at), bytes);
      if (status == Status::kOk) status = look_at_clock(i + 1, patience);
    }
    if (status == Status::kOk) status = peer.signal(behind(end.target, word), count);
    if (status == Status::kOk) status = peer.flush();
    return status == Status::kOk ? wait_word(target + word, count, patience) : status;
  };
  const std::string what = "puts of " + std::to_string(bytes) + " bytes";
  const auto clear = [&] {
    std::memset(target, 0, used);
    std::memset(target + word, 0, sizeof(uint64_t));
  };
  const auto check = [&] {
    if (std::memcmp(target, end.memory->source(), used) == 0) return;
    throw PerfError(what + ": all requests completed, and other bytes are at the other end");
  };
  return measure_one({what, 1, body, clear, check});
}

std::array<RunTimes, 2> QueueBench::requests(uint32_t warps, uint64_t posts) {
  return ends_.posters_wake() ? requests_by<HostMemory>(warps, posts)
                              : requests_by<RegisterMemory>(warps, posts);
}
RunTimes QueueBench::round_trips(uint64_t rounds) {
  return ends_.posters_wake() ? round_trips_by<HostMemory>(rounds)
                              : round_trips_by<RegisterMemory>(rounds);
}
RunTimes QueueBench::puts(uint64_t bytes, uint64_t count) {
  return ends_.posters_wake() ? puts_by<HostMemory>(bytes, count)
                              : puts_by<RegisterMemory>(bytes, count);
}

}  // namespace mep::perf
