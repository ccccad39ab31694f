// The cost of send queues that kernels post to: requests per second of one queue with 1 to 64 warps, beside a form that takes
// a mutex for each post; latency; bandwidth. Rings and peers lie in pinned memory. Two NICs serve them: the software NIC,
// and a thread that does nothing but complete, which shows whether the software NIC is the limit.
//
//   gpu_queue_bench [POSTS]     of one measurement
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>
#include <string>

#include "queue_rig.hpp"
#include "support/mapped_peer.hpp"

namespace queue_test {
namespace {

constexpr uint32_t kRuns = 5;
constexpr uint32_t kEntries = 1024;
constexpr uint32_t kWarpsOfCta = 4;
constexpr uint32_t kInlineBytes = 16;
constexpr uint64_t kLimitNs = 20'000'000'000;
constexpr size_t kSpan = size_t{64} << 20;  // puts of the bandwidth rotate through so much

// --- Forms --------------------------------------------------------------------------------------------

// The same queue, with a mutex that is held from the index to the doorbell.
class LockedQueue {
 public:
  __device__ LockedQueue(Queue* queue, uint32_t* mutex, uint64_t deadline)
      : q_(queue), mutex_(mutex), deadline_(deadline) {}

  __device__ Status signal(const RemoteMemory& word, uint64_t value) {
    return post(write_word(word, value), Completion::kOnError, nullptr);
  }
  __device__ Status put(const RemoteMemory& remote, const LocalMemory& local, uint64_t bytes) {
    return post(write_inline(remote, local.address, static_cast<uint32_t>(bytes)),
                Completion::kOnError, nullptr);
  }
  __device__ Status flush() {
    uint64_t index = 0;
    Status status = post(nop(), Completion::kAlways, &index);
    uint32_t polls = 0;
    while (status == Status::kOk && SystemMemory::load_acquire(&q_->done) <= index) {
      status = keep_waiting(++polls);
    }
    return status;
  }

 private:
  __device__ Status lock() {
    for (uint32_t polls = 1; SystemMemory::exchange(mutex_, 1) != 0; ++polls) {
      if (polls % SystemMemory::kPollsPerLook == 0 && SystemMemory::nanoseconds() > deadline_) {
        return Status::kTimedOut;
      }
    }
    return Status::kOk;
  }
  __device__ Status post(const Request& built, Completion completion, uint64_t* index) {
    Status status = lock();
    if (status != Status::kOk) return status;
    Request request = built;
    status = post_held(&request, completion, index);
    SystemMemory::exchange(mutex_, 0);
    return status;
  }
  __device__ Status post_held(Request* request, Completion completion, uint64_t* index) {
    const uint64_t next = q_->reserved;
    uint32_t polls = 0;
    while (next - SystemMemory::load_acquire(&q_->done) >= q_->entries) {
      const Status status = keep_waiting(++polls);
      if (status != Status::kOk) return status;
    }
    auto control = get_segment<ControlSegment>(*request, 0);
    const bool completes = (next + 1) % (q_->entries / 4) == 0;
    control.index_opcode =
        index_opcode(next, static_cast<Opcode>(control.index_opcode.value() & 0xff));
    control.queue_segments = Big32(q_->queue_pair << 8 | segments_of(*request));
    control.completion = static_cast<uint8_t>(completes ? Completion::kAlways : completion);
    set_segment(request, 0, control);
    Request* slot = &q_->ring[next & (q_->entries - 1)];
    SystemMemory::fill(slot, *request);
    q_->reserved = next + 1;
    SystemMemory::store_record(&q_->record->send, record_of(next + 1));
    SystemMemory::ring(q_->doorbell, doorbell_of(next + 1, q_->queue_pair));
    if (index != nullptr) *index = next;
    return Status::kOk;
  }
  __device__ Status keep_waiting(uint32_t polls) {
    const uint64_t done = SystemMemory::load_acquire(&q_->done);
    const Big32 word = SystemMemory::load_completion(&q_->completion->counter_opcode);
    if (opcode_of(word) == CompletionOpcode::kRequest) {
      const auto more = static_cast<uint16_t>(counter_of(word) + 1 - done);
      if (more != 0 && more <= q_->entries) SystemMemory::raise(&q_->done, done + more);
    } else if (opcode_of(word) != CompletionOpcode::kInvalid) {
      return Status::kFailed;
    }
    SystemMemory::pause(polls);
    const bool looks = polls % SystemMemory::kPollsPerLook == 0;
    return looks && SystemMemory::nanoseconds() > deadline_ ? Status::kTimedOut : Status::kOk;
  }

  Queue* q_;
  uint32_t* mutex_;
  uint64_t deadline_;
};

// All lanes call together; see Peer.
class LockedPeer {
 public:
  __device__ explicit LockedPeer(const LockedQueue& queue) : queue_(queue) {}
  __device__ Status signal(const RemoteMemory& word, uint64_t value) {
    return by_first([&] { return queue_.signal(word, value); });
  }
  __device__ Status put(const RemoteMemory& remote, const LocalMemory& local, uint64_t bytes) {
    return by_first([&] { return queue_.put(remote, local, bytes); });
  }
  __device__ Status flush() {
    return by_first([&] { return queue_.flush(); });
  }

 private:
  template <typename Call>
  __device__ static Status by_first(const Call& call) {
    SystemMemory::meet();
    const Status status = SystemMemory::lane() == 0 ? call() : Status::kOk;
    return static_cast<Status>(SystemMemory::from_first(static_cast<uint32_t>(status)));
  }

  LockedQueue queue_;
};

// --- Kernels ------------------------------------------------------------------------------------------

struct Task {
  Queue* queues;
  uint32_t* mutex;
  const uint8_t* source;
  uint8_t* target;
  uint32_t* failed;  // pinned
  uint64_t posts;    // of each warp
  uint64_t bytes;    // of a put
};

enum class Kind : uint8_t { kSignal, kInlinePut };

__device__ void report(const Task& t, Status status) {
  if (status != Status::kOk && SystemMemory::lane() == 0) {
    *t.failed = 1 + static_cast<uint32_t>(status);
  }
}

template <typename Peer>
__device__ void post_all(const Task& t, Kind kind, Peer peer) {
  const RemoteMemory to = remote_at(uint64_t{warp_number()} * 64);
  Status status = Status::kOk;
  for (uint64_t i = 1; i <= t.posts && status == Status::kOk; ++i) {
    status = kind == Kind::kSignal ? peer.signal(to, i) : peer.put(to, {t.source, 0}, t.bytes);
  }
  if (status == Status::kOk) status = peer.flush();
  report(t, status);
}

template <Kind kKind>
__global__ void post_free(Task t) {
  const Patience patience{SystemMemory::nanoseconds() + kLimitNs, nullptr, 0};
  post_all(t, kKind, QueuePeer<>(t.queues, patience));
}
template <Kind kKind>
__global__ void post_locked(Task t) {
  const uint64_t deadline = SystemMemory::nanoseconds() + kLimitNs;
  post_all(t, kKind, LockedPeer(LockedQueue(t.queues, t.mutex, deadline)));
}

// One warp; the target's rotating parts.
__global__ void put_many(Task t) {
  const Patience patience{SystemMemory::nanoseconds() + kLimitNs, nullptr, 0};
  QueuePeer<> peer(t.queues, patience);
  Status status = Status::kOk;
  for (uint64_t i = 0; i < t.posts && status == Status::kOk; ++i) {
    const uint64_t at = i * t.bytes % kSpan;
    status = peer.put(remote_at(at), {t.source + at, kLocalKey}, t.bytes);
  }
  if (status == Status::kOk) status = peer.flush();
  report(t, status);
}

// Warp 0 has the words at 0 and 64, warp 1 those at 128 and 192: data, then the word that is waited for. Each puts to the
// other's.
template <typename Peer>
__device__ void ping_pong(const Task& t, Peer peer, uint64_t names, uint32_t key,
                          uint64_t deadline) {
  const uint32_t self = warp_number();
  const uint64_t mine = uint64_t{self} * 128;
  const uint64_t other = uint64_t{1 - self} * 128;
  const auto* word = reinterpret_cast<const uint64_t*>(t.target + mine + 64);
  Status status = Status::kOk;
  for (uint64_t i = 1; i <= t.posts && status == Status::kOk; ++i) {
    if (self == 1 && !wait_signal(word, i, deadline)) status = Status::kTimedOut;
    if (status == Status::kOk) status = peer.put({names + other, key}, {t.source, kLocalKey}, 8);
    if (status == Status::kOk) status = peer.signal({names + other + 64, key}, i);
    if (self == 0 && status == Status::kOk && !wait_signal(word, i, deadline)) {
      status = Status::kTimedOut;
    }
  }
  report(t, status);
}
__global__ void ping_pong_queued(Task t) {
  const uint64_t deadline = SystemMemory::nanoseconds() + kLimitNs;
  const Patience patience{deadline, nullptr, 0};
  ping_pong(t, QueuePeer<>(t.queues + warp_number(), patience), kRemoteName, kRemoteKey, deadline);
}
__global__ void ping_pong_mapped(Task t) {
  const uint64_t deadline = SystemMemory::nanoseconds() + kLimitNs;
  ping_pong(t, MappedPeer<>(), reinterpret_cast<uint64_t>(t.target), 0, deadline);
}

// --- The host's side ----------------------------------------------------------------------------------

// Completes what it is told of, and reads no request.
class NullNic {
 public:
  explicit NullNic(QueueWords* words) : thread_([this, words] { serve(words); }) {}
  ~NullNic() {
    stops_.store(true, std::memory_order_relaxed);
    thread_.join();
  }
  NullNic(const NullNic&) = delete;
  NullNic& operator=(const NullNic&) = delete;

 private:
  void serve(QueueWords* words) {
    uint16_t told = 0;
    while (!stops_.load(std::memory_order_relaxed)) {
      const uint32_t record = swapped(__atomic_load_n(&words->record.send.raw, __ATOMIC_ACQUIRE));
      if (record == told) continue;
      told = static_cast<uint16_t>(record);
      const auto last = static_cast<uint16_t>(told - 1);
      const Big32 word(uint32_t{last} << 16 |
                       uint32_t{static_cast<uint8_t>(CompletionOpcode::kRequest)} << 4);
      __atomic_store_n(&words->completion.counter_opcode.raw, word.raw, __ATOMIC_RELEASE);
    }
  }

  std::atomic<bool> stops_{false};  // speaks of nothing but itself
  std::thread thread_;
};

struct Times {
  double median_s = 0;
  double worst_s = 0;
  bool good = false;
};

class Bench {
 public:
  explicit Bench(uint64_t posts)
      : posts_(posts), source_(kSpan), target_(kSpan), failed_(1), words_(64), mutex_(1) {
    cuda(cudaEventCreate(&begin_));
    cuda(cudaEventCreate(&end_));
    std::memset(source_.get(), 0x5a, kSpan);
  }
  ~Bench() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void requests() {
    rows_.push_back("bench one queue: million requests per second, median and worst of 5");
    add("bench %-9s %-10s %5s %9s %9s %12s %12s", "NIC", "request", "warps", "queue", "worst",
        "with mutex", "worst");
    for (const bool is_null : {false, true}) {
      for (const Kind kind : {Kind::kSignal, Kind::kInlinePut}) {
        for (uint32_t warps = 1; warps <= 64; warps *= 2) row_of_requests(is_null, kind, warps);
      }
    }
  }
  void latency() {
    rows_.push_back("bench put of 8 bytes and signal until the peer's kernel sees it: us, one way");
    add("bench %-22s %9s %9s", "way", "median", "worst");
    const uint64_t rounds = std::max<uint64_t>(posts_ / 10, 100);
    for (const bool is_mapped : {false, true}) {
      Queues queues({2, kEntries, 0});
      SoftNic nic;
      start(&nic);
      queues.serve(&nic, source_, target_);
      Task t = task(queues, rounds, 8);
      t.source = words_.get();
      const Times times =
          measure(is_mapped ? ping_pong_mapped : ping_pong_queued, 2, 1, t, [&] { clear_words(); });
      const double us = 1e6 / static_cast<double>(2 * rounds);
      add("bench %-22s %9s %9s", is_mapped ? "stores to its memory" : "queue, software NIC",
          figure(times, times.median_s * us).c_str(), figure(times, times.worst_s * us).c_str());
    }
  }
  void bandwidth() {
    rows_.push_back("bench puts from pinned to pinned memory, one warp, software NIC: GB/s");
    add("bench %-12s %9s %9s", "KiB of a put", "median", "worst");
    for (uint64_t bytes = 4096; bytes <= uint64_t{4} << 20; bytes *= 4) {
      Queues queues({1, kEntries, 0});
      SoftNic nic;
      start(&nic);
      queues.serve(&nic, source_, target_);
      const uint64_t puts = std::clamp<uint64_t>((uint64_t{256} << 20) / bytes, 1, posts_);
      const Times times = measure(put_many, 1, 1, task(queues, puts, bytes), [] {});
      const double gigabytes = static_cast<double>(puts * bytes) / 1e9;
      add("bench %12llu %9s %9s", static_cast<unsigned long long>(bytes >> 10),
          figure(times, gigabytes / times.median_s).c_str(),
          figure(times, gigabytes / times.worst_s).c_str());
    }
    const double begin = now_s();
    for (int i = 0; i < 4; ++i) std::memcpy(target_.get(), source_.get(), kSpan);
    add("bench %-12s %9.2f", "one memcpy",
        4 * static_cast<double>(kSpan) / 1e9 / (now_s() - begin));
  }
  void print() const {
    for (const std::string& row : rows_) std::printf("%s\n", row.c_str());
  }

 private:
  Task task(const Queues& queues, uint64_t posts, uint64_t bytes) const {
    return {queues.on_gpu(), mutex_.get(), source_.get(), target_.get(),
            failed_.get(),   posts,        bytes};
  }
  void clear_words() const { std::memset(target_.get(), 0, 256); }

  // One run more, first, that does not count.
  template <typename Before>
  Times measure(void (*kernel)(Task), uint32_t ctas, uint32_t warps, const Task& task,
                const Before& before) {
    std::array<double, kRuns> times{};
    for (uint32_t run = 0; run <= kRuns; ++run) {
      before();
      failed_[0] = 0;
      cuda(cudaEventRecord(begin_, stream_.get()));
      launch(kernel, ctas, warps, stream_, task);
      cuda(cudaEventRecord(end_, stream_.get()));
      stream_.finish();
      if (failed_[0] != 0) {
        GPU_CHECK(false, "posts end with status %u", failed_[0] - 1);
        return {};
      }
      float ms = 0;
      cuda(cudaEventElapsedTime(&ms, begin_, end_));
      if (run != 0) times[run - 1] = ms * 1e-3;
    }
    std::sort(times.begin(), times.end());
    return {times[kRuns / 2], times[kRuns - 1], true};
  }

  Times of_requests(bool is_null, Kind kind, uint32_t warps, bool is_locked) {
    Queues queues({1, kEntries, 0});
    cuda(cudaMemset(mutex_.get(), 0, sizeof(uint32_t)));
    cuda(cudaDeviceSynchronize());
    Task t = task(queues, std::max<uint64_t>(posts_ / warps, 1), kInlineBytes);
    t.source = words_.get();  // a poster reads what its request carries
    void (*kernel)(Task) = is_locked ? post_locked<Kind::kSignal> : post_free<Kind::kSignal>;
    if (kind == Kind::kInlinePut) {
      kernel = is_locked ? post_locked<Kind::kInlinePut> : post_free<Kind::kInlinePut>;
    }
    const uint32_t warps_of_cta = std::min(warps, kWarpsOfCta);
    const auto run = [&] { return measure(kernel, warps / warps_of_cta, warps_of_cta, t, [] {}); };
    if (is_null) {
      const NullNic nic(queues.words());
      return run();
    }
    SoftNic nic;
    start(&nic);
    queues.serve(&nic, source_, target_);
    return run();
  }
  void row_of_requests(bool is_null, Kind kind, uint32_t warps) {
    const double millions =
        static_cast<double>(std::max<uint64_t>(posts_ / warps, 1) * warps) / 1e6;
    const Times free = of_requests(is_null, kind, warps, false);
    const Times locked = of_requests(is_null, kind, warps, true);
    add("bench %-9s %-10s %5u %9s %9s %12s %12s", is_null ? "null" : "software",
        kind == Kind::kSignal ? "signal" : "inline put", warps,
        figure(free, millions / free.median_s).c_str(),
        figure(free, millions / free.worst_s).c_str(),
        figure(locked, millions / locked.median_s).c_str(),
        figure(locked, millions / locked.worst_s).c_str());
  }

  static std::string figure(const Times& times, double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3f", value);
    return times.good ? text : "failed";
  }
  // Shown at once too: a run that is cut off has said what it knew.
  __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
    char row[160];
    va_list values;
    va_start(values, format);
    std::vsnprintf(row, sizeof row, format, values);
    va_end(values);
    rows_.push_back(row);
    std::printf("measured: %s\n", row + sizeof "bench");
  }

  const uint64_t posts_;
  const Pinned<uint8_t> source_;
  const Pinned<uint8_t> target_;
  const Pinned<uint32_t> failed_;
  const OnGpu<uint8_t> words_;
  const OnGpu<uint32_t> mutex_;
  Stream stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::vector<std::string> rows_;
};

}  // namespace
}  // namespace queue_test

int main(int argc, char** argv) {
  using namespace queue_test;
  (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  (void)setenv("MEP_LOG", "error", 0);
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gpu_is_there()) return kSkipped;
  cuda(cudaSetDevice(0));
  const long posts = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 20'000;
  if (posts < 64 || posts > 10'000'000) {
    std::fprintf(stderr, "gpu_queue_bench: posts 64 to 10000000, not %s\n", argv[1]);
    return 2;
  }
  Bench bench(static_cast<uint64_t>(posts));
  bench.requests();
  bench.latency();
  bench.bandwidth();
  bench.print();
  return failure_count() == 0 ? 0 : 1;
}
