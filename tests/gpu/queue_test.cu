// Queues that kernels post to, on a GPU: warps post to rings in pinned memory, and the software NIC of this process carries
// what they put to its peer, where another kernel acquires the words and checks every byte.
#include <unistd.h>

#include "base/status.hpp"
#include "base/unique_fd.hpp"
#include "queue_rig.hpp"
#include "transport/cuda/device_memory.hpp"

namespace queue_test {
namespace {

constexpr uint32_t kCellBytes = 4096;  // of one put: margin, data, margin
constexpr uint32_t kLargestPut = 4000;
constexpr uint32_t kWordStride = 64;
constexpr uint8_t kPoison = 0xa5;
constexpr uint32_t kSourceCells = 4;         // a poster flushes before it takes one again
constexpr uint64_t kNever = 20'000'000'000;  // ns; waits of kernels that are to end otherwise
constexpr uint32_t kNoStatus = 0xffff;

MEP_HOST_DEVICE constexpr uint32_t mixed(uint32_t v) {
  v = (v ^ v >> 16) * 0x7feb352du;
  v = (v ^ v >> 15) * 0x846ca68bu;
  return v ^ v >> 16;
}
MEP_HOST_DEVICE constexpr uint32_t size_of(uint32_t poster, uint32_t round) {
  const uint32_t random = mixed(poster << 16 | round);
  return 1 + random %
                 (random >> 30 == 0 ? 40 : kLargestPut);  // a quarter around what a request carries
}
MEP_HOST_DEVICE constexpr uint32_t margin_of(uint32_t poster, uint32_t round) {
  return mixed(round << 16 | poster) % 64;
}
MEP_HOST_DEVICE constexpr uint8_t byte_of(uint32_t poster, uint32_t round, uint32_t i) {
  return static_cast<uint8_t>(mixed(poster << 22 ^ round << 12 ^ i));
}

// All memory is pinned or the GPU's. The target: a word for each poster, then a cell for each round of each.
struct Task {
  Queue* queues;
  uint32_t queue_count;
  uint32_t posters;
  uint32_t rounds;
  uint8_t* source;
  const uint8_t* target;
  uint32_t* statuses;  // by poster
  uint32_t* found;     // by poster: 0, or the round that was wrong or missing
  uint64_t limit_ns;
  const uint64_t* abort_word;
  uint64_t epoch;
  bool flushes;  // signal_rounds: each round, else at the end
};

MEP_HOST_DEVICE constexpr uint64_t word_at(uint32_t poster) {
  return uint64_t{poster} * kWordStride;
}
MEP_HOST_DEVICE constexpr uint64_t cell_at(const Task& t, uint32_t poster, uint32_t round) {
  return word_at(t.posters) + (uint64_t{poster} * t.rounds + round - 1) * kCellBytes;
}

__device__ QueuePeer<> peer_of(const Task& t, uint32_t poster) {
  const Patience patience{SystemMemory::nanoseconds() + t.limit_ns, t.abort_word, t.epoch};
  return QueuePeer<>(t.queues + poster % t.queue_count, patience);
}

// Each warp is a poster. Each round: a put, behind it a signal with the round's number.
__global__ void put_rounds(Task t) {
  const uint32_t poster = warp_number();
  QueuePeer<> peer = peer_of(t, poster);
  Status status = Status::kOk;
  for (uint32_t round = 1; round <= t.rounds && status == Status::kOk; ++round) {
    const uint64_t cell = poster * kSourceCells + round % kSourceCells;
    uint8_t* from = t.source + cell * kCellBytes + margin_of(round, poster);
    const uint32_t bytes = size_of(poster, round);
    for (uint32_t i = SystemMemory::lane(); i < bytes; i += SystemMemory::lanes()) {
      from[i] = byte_of(poster, round, i);
    }
    const uint64_t to = cell_at(t, poster, round) + margin_of(poster, round);
    status = peer.put(remote_at(to), {from, kLocalKey}, bytes);
    if (status == Status::kOk) status = peer.signal(remote_at(word_at(poster)), round);
    const bool is_last = round % kSourceCells == 0 || round == t.rounds;
    if (status == Status::kOk && is_last) status = peer.flush();
  }
  if (SystemMemory::lane() == 0) t.statuses[poster] = static_cast<uint32_t>(status);
}

// A warp for each poster's cells.
__global__ void check_rounds(Task t) {
  const uint32_t poster = warp_number();
  const uint64_t deadline = SystemMemory::nanoseconds() + t.limit_ns;
  const auto* word = reinterpret_cast<const uint64_t*>(t.target + word_at(poster));
  for (uint32_t round = 1; round <= t.rounds; ++round) {
    if (!wait_signal(word, round, deadline)) {
      t.found[poster] = round;
      return;
    }
    const uint8_t* data = t.target + cell_at(t, poster, round) + margin_of(poster, round);
    const uint32_t bytes = size_of(poster, round);
    for (uint32_t i = SystemMemory::lane(); i < bytes; i += SystemMemory::lanes()) {
      if (data[i] != byte_of(poster, round, i)) t.found[poster] = round;
    }
  }
}

__global__ void signal_rounds(Task t) {
  const uint32_t poster = warp_number();
  QueuePeer<> peer = peer_of(t, poster);
  Status status = Status::kOk;
  for (uint32_t round = 1; round <= t.rounds && status == Status::kOk; ++round) {
    status = peer.signal(remote_at(word_at(poster)), round);
    if (status == Status::kOk && (t.flushes || round == t.rounds)) status = peer.flush();
  }
  if (SystemMemory::lane() == 0) t.statuses[poster] = static_cast<uint32_t>(status);
}

struct Posters {
  uint32_t ctas = 1;
  uint32_t warps = 1;
  uint32_t count() const { return ctas * warps; }
};

class Case {
 public:
  Case(const QueueShape& shape, const Posters& posters, uint32_t rounds, bool with_cells,
       const QueueFaults& faults = {})
      : posters_(posters),
        queues_(shape),
        source_(size_t{posters.count()} * kSourceCells * kCellBytes),
        target_(word_at(posters.count()) +
                size_t{posters.count()} * (with_cells ? rounds : 0) * kCellBytes),
        statuses_(posters.count()),
        found_(posters.count()),
        abort_(1) {
    const size_t words = word_at(posters.count());
    std::memset(target_.get() + words, kPoison, target_.bytes() - words);
    task_ = {queues_.on_gpu(),
             shape.queues,
             posters.count(),
             rounds,
             source_.get(),
             target_.get(),
             statuses_.get(),
             found_.get(),
             kNever,
             nullptr,
             0,
             false};
    start(&nic_);
    queues_.serve(&nic_, source_, target_, faults);
  }
  ~Case() {
    stream_.finish();
    nic_.stop();
  }

  Task& task() { return task_; }
  void start_posters(void (*kernel)(Task)) {
    for (uint32_t p = 0; p < posters_.count(); ++p) statuses_[p] = kNoStatus;
    launch(kernel, posters_.ctas, posters_.warps, stream_, task_);
  }
  void end_with(Status wanted, const char* what) {
    stream_.finish();
    for (uint32_t p = 0; p < posters_.count(); ++p) {
      GPU_CHECK(statuses_[p] == static_cast<uint32_t>(wanted), "%s: poster %u ends with %u, not %u",
                what, p, statuses_[p], static_cast<uint32_t>(wanted));
    }
  }
  void run(void (*kernel)(Task), Status wanted, const char* what) {
    start_posters(kernel);
    end_with(wanted, what);
  }
  // The checking kernel runs beside the posters.
  void put_and_check() {
    Stream beside;
    launch(check_rounds, posters_.ctas, posters_.warps, beside, task_);
    run(put_rounds, Status::kOk, "puts");
    beside.finish();
    for (uint32_t p = 0; p < posters_.count(); ++p) {
      GPU_CHECK(found_[p] == 0, "the kernel finds round %u of poster %u missing or wrong",
                found_[p], p);
      GPU_CHECK(word(p) == task_.rounds, "the word of poster %u is %llu", p,
                static_cast<unsigned long long>(word(p)));
    }
    look_at_cells();
  }

  uint64_t word(uint32_t poster) const {
    // Acquire: what was put before it.
    return __atomic_load_n(reinterpret_cast<const uint64_t*>(target_.get() + word_at(poster)),
                           __ATOMIC_ACQUIRE);
  }
  // Any poster's will do: one may have filled the ring before the others began.
  bool wait_signal() const {
    const auto has_come = [&] {
      for (uint32_t p = 0; p < posters_.count(); ++p) {
        if (word(p) != 0) return true;
      }
      return false;
    };
    const double end = now_s() + kWatchdogSeconds / 2;
    while (!has_come() && now_s() < end) std::this_thread::yield();
    GPU_CHECK(has_come(), "no poster's signal comes");
    return has_come();
  }
  uint64_t* abort_word() const { return abort_.get(); }
  SoftNic* nic() { return &nic_; }
  // The error of the first queue, while no kernel runs.
  bool has_error(QueueError* error) const {
    const uint64_t packed = queues_.read(0).error;
    *error = unpack_error(packed);
    return packed != 0;
  }

 private:
  // Each byte of each cell, by the host.
  void look_at_cells() const {
    for (uint32_t p = 0; p < task_.posters; ++p) {
      for (uint32_t round = 1; round <= task_.rounds; ++round) {
        const uint8_t* cell = target_.get() + cell_at(task_, p, round);
        const uint32_t begin = margin_of(p, round);
        const uint32_t end = begin + size_of(p, round);
        for (uint32_t at = 0; at < kCellBytes; ++at) {
          const bool is_data = at >= begin && at < end;
          const uint8_t wanted = is_data ? byte_of(p, round, at - begin) : kPoison;
          GPU_CHECK(cell[at] == wanted,
                    "poster %u, round %u, byte %u of the cell: 0x%02x, not 0x%02x", p, round, at,
                    cell[at], wanted);
        }
      }
    }
  }

  const Posters posters_;
  const Queues queues_;
  const Pinned<uint8_t> source_;
  const Pinned<uint8_t> target_;
  const Pinned<uint32_t> statuses_;
  const Pinned<uint32_t> found_;
  const Pinned<uint64_t> abort_;
  Stream stream_;
  Task task_{};
  SoftNic nic_;  // ends first
};

// Ends the program where a check has failed.
template <typename... Values>
void passed(const char* format, Values... values) {
  std::printf(failure_count() == 0 ? "passed: " : "FAILED: ");
  std::printf(format, values...);
  std::printf("\n");
  std::fflush(stdout);
  if (failure_count() != 0) std::_Exit(1);
}

void puts_arrive(const QueueShape& shape, const Posters& posters, uint32_t rounds) {
  {
    Case c(shape, posters, rounds, true);
    c.put_and_check();
  }
  passed(
      "puts of 1 to %u bytes, a signal behind each: %u queues of %u from index 0x%llx, %u CTAs of "
      "%u warps",
      kLargestPut, shape.queues, shape.entries, static_cast<unsigned long long>(shape.first),
      posters.ctas, posters.warps);
}

// More requests than the index has values.
void indices_wrap(uint32_t entries) {
  const Posters posters{8, 4};
  constexpr uint32_t kRounds = 2200;
  {
    Case c({1, entries, 0}, posters, kRounds, false);
    c.run(signal_rounds, Status::kOk, "signals");
    for (uint32_t p = 0; p < posters.count(); ++p) {
      GPU_CHECK(c.word(p) == kRounds, "the word of poster %u is %llu", p,
                static_cast<unsigned long long>(c.word(p)));
    }
  }
  passed("%u signals, a ring of %u", kRounds * posters.count(), entries);
}

// It is there for all posters, and stays.
void an_error_ends_posts(uint64_t at, uint32_t entries, const Posters& posters, bool flushes) {
  QueueFaults faults;
  faults.fails_at = 0xfffa + at;
  {
    Case c({1, entries, 0xfffa}, posters, 4000, false, faults);
    c.task().flushes = flushes;
    c.run(signal_rounds, Status::kFailed, "the request fails");
    c.run(signal_rounds, Status::kFailed, "it has failed before");
    QueueError error{};
    GPU_CHECK(c.has_error(&error), "the queue has no error");
    // The NIC may have overwritten the first error by one of those behind.
    GPU_CHECK(error.syndrome == faults.syndrome || error.syndrome == 0x05, "syndrome 0x%02x",
              error.syndrome);
    const auto behind = static_cast<uint16_t>(error.wqe_counter - faults.fails_at);
    GPU_CHECK(behind < entries, "the error is of request %u behind", behind);
    uint64_t signals = 0;
    for (uint32_t p = 0; p < posters.count(); ++p) signals += c.word(p);
    GPU_CHECK(signals <= at, "%llu signals have come", static_cast<unsigned long long>(signals));
  }
  passed("request %llu fails: a ring of %u, %u CTAs of %u warps, %s",
         static_cast<unsigned long long>(at), entries, posters.ctas, posters.warps,
         flushes ? "each signal flushed" : "the ring is full");
}

void no_completion(const char* what, bool flushes, void (*ends)(Case*), uint64_t limit_ns,
                   Status wanted) {
  QueueFaults faults;
  faults.never_completes = true;
  {
    Case c({1, 16, 0xfffa}, {2, 4}, 100, false, faults);
    c.task().flushes = flushes;
    c.task().limit_ns = limit_ns;
    c.task().abort_word = c.abort_word();
    c.task().epoch = 3;
    *c.abort_word() = 2;  // of an epoch before
    c.start_posters(signal_rounds);
    if (c.wait_signal()) ends(&c);
    c.end_with(wanted, what);
    QueueError error{};
    GPU_CHECK(c.has_error(&error) == (wanted == Status::kFailed), "the queue's error");
    GPU_CHECK(wanted != Status::kFailed || error.syndrome == 0x05, "syndrome 0x%02x",
              error.syndrome);
  }
  passed("a queue without completions, %s: ends by %s", flushes ? "in flush" : "with a full ring",
         what);
}

void waits_end() {
  for (const bool flushes : {true, false}) {
    no_completion(
        "its deadline", flushes, [](Case*) {}, 300'000'000, Status::kTimedOut);
    // Relaxed: it speaks of nothing else.
    no_completion(
        "the abort word", flushes,
        [](Case* c) { __atomic_store_n(c->abort_word(), 3, __ATOMIC_RELAXED); }, kNever,
        Status::kAborted);
    no_completion(
        "the removal of the queue", flushes,
        [](Case* c) {
          GPU_CHECK(c->nic()->remove_queue(kFirstQueuePair) == MEP_SUCCESS, "remove");
        },
        kNever, Status::kFailed);
    no_completion(
        "the end of the NIC", flushes, [](Case* c) { c->nic()->stop(); }, kNever, Status::kFailed);
  }
}

// The driver of an adapter takes memory of the library as a dmabuf, where the driver of the GPU has them.
void gives_dmabufs() {
  std::shared_ptr<mep::DeviceMemory> memory;
  GPU_CHECK(mep::DeviceMemory::create(0, 100'000, &memory) == MEP_SUCCESS, "memory of a GPU");
  mep::UniqueFd dmabuf;
  const mep_result_t given = memory->export_dmabuf(&dmabuf);
  std::printf("  memory of GPU 0 for adapters: %s; it %s the writes of NICs\n",
              given == MEP_SUCCESS ? "a dmabuf" : mep::last_error_text(),
              mep::orders_writes_of_nics(0) ? "orders" : "does not order");
  if (given == MEP_ERR_UNSUPPORTED) return;
  const off_t bytes = given == MEP_SUCCESS ? lseek(dmabuf.get(), 0, SEEK_END) : 0;
  GPU_CHECK(bytes >= 100'000, "a dmabuf of %lld bytes", static_cast<long long>(bytes));
}

void all() {
  gives_dmabufs();
  for (const uint32_t entries : {16u, 1024u}) {
    for (const uint64_t first : {0u, 0xfffau}) {
      puts_arrive({1, entries, first}, {1, 1}, 60);
      puts_arrive({1, entries, first}, {1, 8}, 40);
      puts_arrive({1, entries, first}, {8, 4}, 24);
      puts_arrive({4, entries, first}, {8, 4}, 24);
      puts_arrive({16, entries, first}, {16, 4}, 16);
    }
    indices_wrap(entries);
  }
  for (const uint64_t at : {0u, 1u, 5u, 6u, 17u, 100u}) {
    for (const uint32_t entries : {16u, 64u}) {
      an_error_ends_posts(at, entries, {1, 1}, true);
      an_error_ends_posts(at, entries, {1, 1}, false);
      an_error_ends_posts(at, entries, {4, 4}, true);
      an_error_ends_posts(at, entries, {4, 4}, false);
    }
  }
  waits_end();
}

}  // namespace
}  // namespace queue_test

int main() {
  using namespace queue_test;
  (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);  // loading a kernel may wait for one that runs
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  (void)setenv("MEP_LOG", "error", 0);
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gpu_is_there()) return kSkipped;
  cuda(cudaSetDevice(0));
  all();
  std::printf("queue_test: passed\n");
  return 0;
}
