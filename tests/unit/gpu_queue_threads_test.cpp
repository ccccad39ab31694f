// labels: gate threads tsan asan
// Threads in the role of warps, a thread that is the NIC, and one that is the peer: what each publishes to whom, which
// ThreadSanitizer checks. The schedules of gpu_queue_schedules_test have all orders, this has real memory.
#include <sched.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "support/cmocka_cpp.hpp"
#include "support/mapped_peer.hpp"
#include "support/model_nic.hpp"

namespace {

using namespace mep::gpu_queue;  // NOLINT(google-build-using-namespace)
using mep_test::ModelNic;

constexpr uint32_t kPosters = 3;
constexpr uint32_t kRounds = 400;
constexpr uint32_t kBytes = 64;
constexpr uint64_t kLimitNs = 100'000'000'000;

// Each poster has one cell, which it fills anew when the peer has taken what is in it.
struct Cell {
  alignas(64) std::array<uint32_t, kBytes / 4> data;
  uint64_t word;
};

struct Rig {
  explicit Rig(uint32_t entries) : ring(new Request[entries]), ready(new uint64_t[entries]()) {
    queue.ring = ring.get();
    queue.ready = ready.get();
    queue.record = &record;
    queue.doorbell = &doorbell;
    queue.queue_pair = 77;
    queue.entries = entries;
    make_empty(&queue, &completion, 0xfff0);
    nic.emplace(
        mep_test::NicWiring{ring.get(), &completion, &record, &doorbell, 77, entries, 0xfff0},
        mep_test::NicMemory{1, source.data(), sizeof source},
        mep_test::NicMemory{2, target.data(), sizeof target});
  }
  void run_nic() {
    while (!stop.load(std::memory_order_acquire)) {
      bool worked = nic->look();
      worked = nic->execute() || worked;
      worked = nic->complete() || worked;
      if (!worked) sched_yield();
    }
  }
  static RemoteMemory remote(const void* address) {
    return {reinterpret_cast<uintptr_t>(address), 2};
  }

  std::unique_ptr<Request[]> ring;
  std::unique_ptr<uint64_t[]> ready;
  CompletionEntry completion;
  DoorbellRecord record;
  uint64_t doorbell = 0;
  Queue queue{};
  std::array<Cell, kPosters> source{};
  std::array<Cell, kPosters> target{};
  std::array<std::atomic<uint64_t>, kPosters> taken{};  // by the peer: the poster may put the next
  std::atomic<bool> stop{false};
  std::optional<ModelNic> nic;
};

// Threads may not fail a test of CMocka; they count.
struct Findings {
  std::atomic<uint32_t> statuses{0};
  std::atomic<uint32_t> data{0};
  std::atomic<uint32_t> late{0};
};

bool eventually(const std::atomic<uint64_t>& word, uint64_t value, uint64_t limit) {
  // Acquire: the peer has read the cell.
  while (word.load(std::memory_order_acquire) < value) {
    if (SystemMemory::nanoseconds() > limit) return false;
    sched_yield();
  }
  return true;
}

template <typename Peer>
void post_rounds(Rig* rig, Peer peer, uint32_t poster, uint64_t limit, Findings* findings) {
  Cell& from = rig->source[poster];
  Cell& to = rig->target[poster];
  for (uint64_t round = 1; round <= kRounds; ++round) {
    if (!eventually(rig->taken[poster], round - 1, limit)) return void(findings->late++);
    for (uint32_t i = 0; i < from.data.size(); ++i)
      from.data[i] = static_cast<uint32_t>(round * 100 + i);
    bool good = peer.put(Rig::remote(&to.data), {&from.data, 1}, 40) == Status::kOk;
    good = peer.put(Rig::remote(&to.data[10]), {&from.data[10], 1}, kBytes - 40) == Status::kOk &&
           good;
    good = peer.signal(Rig::remote(&to.word), round) == Status::kOk && good;
    // Then `from` may be written again.
    good = peer.flush() == Status::kOk && good;
    if (!good) return void(findings->statuses++);
  }
}

void take_rounds(Rig* rig, uint32_t poster, uint64_t limit, Findings* findings) {
  Cell& cell = rig->target[poster];
  for (uint64_t round = 1; round <= kRounds; ++round) {
    // Acquire: the puts before the signal.
    while (__atomic_load_n(&cell.word, __ATOMIC_ACQUIRE) != round) {
      if (SystemMemory::nanoseconds() > limit) return void(findings->late++);
      sched_yield();
    }
    for (uint32_t i = 0; i < cell.data.size(); ++i)
      findings->data += cell.data[i] != round * 100 + i ? 1 : 0;
    // Release: the cell has been read.
    rig->taken[poster].store(round, std::memory_order_release);
  }
}

template <typename MakePeer>
void run(uint32_t entries, const MakePeer& make_peer) {
  Rig rig(entries);
  Findings findings;
  const uint64_t limit = SystemMemory::nanoseconds() + kLimitNs;
  std::thread nic([&] { rig.run_nic(); });
  std::vector<std::thread> threads;
  for (uint32_t p = 0; p < kPosters; ++p) {
    threads.emplace_back([&, p] { post_rounds(&rig, make_peer(rig, limit), p, limit, &findings); });
    threads.emplace_back([&, p] { take_rounds(&rig, p, limit, &findings); });
  }
  for (std::thread& thread : threads) thread.join();
  rig.stop.store(true, std::memory_order_release);
  nic.join();
  assert_string_equal(rig.nic->violation().c_str(), "");
  assert_int_equal(findings.statuses.load(), 0);
  assert_int_equal(findings.late.load(), 0);
  assert_int_equal(findings.data.load(), 0);
}

void through_a_queue(void**) {
  for (const uint32_t entries : {2u, 4u, 16u}) {
    run(entries, [](Rig& rig, uint64_t limit) {
      return QueuePeer<>(&rig.queue, {limit, nullptr, 0});
    });
  }
}

void mapped(void**) {
  run(2, [](Rig&, uint64_t) { return MappedPeer<>(); });
}

// The NIC reports an error while all posters post: each leaves with it.
void an_error_ends_all(void**) {
  Rig rig(4);
  rig.nic->fails_at = 0xfff0 + 50;
  std::atomic<uint32_t> failed{0};
  const uint64_t limit = SystemMemory::nanoseconds() + kLimitNs;
  std::thread nic([&] { rig.run_nic(); });
  std::vector<std::thread> threads;
  for (uint32_t p = 0; p < kPosters; ++p) {
    threads.emplace_back([&] {
      SendQueue<> queue(&rig.queue, {limit, nullptr, 0});
      Status status = Status::kOk;
      while (status == Status::kOk) status = queue.post(nop());
      QueueError error{};
      if (status == Status::kFailed && queue.flush() == Status::kFailed && queue.error(&error))
        ++failed;
    });
  }
  for (std::thread& thread : threads) thread.join();
  rig.stop.store(true, std::memory_order_release);
  nic.join();
  assert_int_equal(failed.load(), kPosters);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(through_a_queue), cmocka_unit_test(mapped),
                              cmocka_unit_test(an_error_ends_all)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
