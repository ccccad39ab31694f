// labels: gate threads tsan asan
// The software NIC with its thread and many queues at once: threads post through the library's own queues, over plain memory
// and over the windows of transports, and see completions, errors and the end as a queue promises them.
#include <sched.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "support/transport_rig.hpp"
#include "transport/gpu_queue/memory_executor.hpp"
#include "transport/gpu_queue/peer.hpp"
#include "transport/gpu_queue/soft_nic.hpp"
#include "transport/gpu_queue/transport_executor.hpp"

namespace {

using namespace mep::gpu_queue;  // NOLINT(google-build-using-namespace)
using mep::test::Rank;

constexpr uint32_t kQueues = 32;
constexpr uint32_t kPosters = 4;
constexpr uint32_t kRounds = 12;
constexpr uint32_t kCellBytes = 512;  // data, then a word
constexpr uint32_t kDataBytes = 500;
constexpr uint32_t kWordAt = 504;
constexpr uint64_t kNames = 0x5000'0000;
constexpr uint64_t kLimitNs = 100'000'000'000;

uint8_t byte_of(uint64_t queue, uint64_t round, uint64_t i) {
  return static_cast<uint8_t>(queue * 31 + round * 7 + i);
}

// One queue and the cell that it puts from; the peer's cell is elsewhere.
struct Post {
  explicit Post(uint32_t number, uint32_t entries, bool wakes, SoftNic* nic,
                uint64_t first = 0xfffa)
      : number(number), wakes(wakes), ring(new Request[entries]), ready(new uint64_t[entries]()) {
    doorbell.nic = nic;
    queue.ring = ring.get();
    queue.ready = ready.get();
    queue.record = &record;
    queue.doorbell = &doorbell.value;
    queue.queue_pair = 100 + number;
    queue.entries = entries;
    make_empty(&queue, &completion, first);
    wiring.ring = ring.get();
    wiring.entries = entries;
    wiring.completions = &completion;
    wiring.record = &record;
    wiring.doorbell = &doorbell.value;
    wiring.queue_pair = queue.queue_pair;
    wiring.first = first;
    wiring.poster_wakes = wakes;
    wiring.local = {{7, kNames, sizeof cell, reinterpret_cast<std::byte*>(cell.data()), true}};
  }

  // A poster's round. All good: kOk.
  template <typename Peer>
  Status post_round(Peer peer, uint64_t round) {
    for (uint32_t i = 0; i < kDataBytes; ++i) cell[i] = byte_of(number, round, i);
    const RemoteMemory to{kNames, 9};
    const LocalMemory from{reinterpret_cast<const void*>(kNames), 7};
    Status status = peer.put(to, from, kDataBytes - 100);
    if (status == Status::kOk) {
      status = peer.put({to.address + kDataBytes - 100, 9},
                        {static_cast<const uint8_t*>(from.address) + kDataBytes - 100, 7}, 100);
    }
    if (status == Status::kOk) status = peer.signal({kNames + kWordAt, 9}, round);
    return status == Status::kOk ? peer.flush() : status;
  }
  Status post(uint64_t round, uint64_t limit) {
    const Patience patience{limit, nullptr, 0};
    return wakes ? post_round(QueuePeer<HostMemory>(&queue, patience), round)
                 : post_round(QueuePeer<>(&queue, patience), round);
  }

  uint32_t number;
  bool wakes;
  alignas(8) std::array<uint8_t, kCellBytes> cell{};
  std::unique_ptr<Request[]> ring;
  std::unique_ptr<uint64_t[]> ready;
  CompletionEntry completion;
  DoorbellRecord record{};
  HostDoorbell doorbell;
  Queue queue{};
  QueueWiring wiring;
};

// Each poster has every kPosters-th queue. The peer takes a cell and says so in taken[queue].
struct Taken {
  std::array<std::atomic<uint64_t>, kQueues> rounds{};
};

bool post_all(std::vector<std::unique_ptr<Post>>* posts, Taken* taken, uint64_t limit) {
  std::atomic<uint32_t> failed{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kPosters; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t round = 1; round <= kRounds; ++round) {
        for (uint32_t q = t; q < kQueues; q += kPosters) {
          // Acquire: the peer has read its cell.
          while (taken->rounds[q].load(std::memory_order_acquire) < round - 1) {
            if (SystemMemory::nanoseconds() > limit) return void(++failed);
            sched_yield();
          }
          if ((*posts)[q]->post(round, limit) != Status::kOk) return void(++failed);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failed == 0;
}

// All puts before a word are there when it is seen.
bool take_all(const std::function<const uint8_t*(uint32_t)>& cell_of, Taken* taken,
              uint64_t limit) {
  for (uint64_t round = 1; round <= kRounds; ++round) {
    for (uint32_t q = 0; q < kQueues; ++q) {
      const uint8_t* cell = cell_of(q);
      while (__atomic_load_n(reinterpret_cast<const uint64_t*>(cell + kWordAt), __ATOMIC_ACQUIRE) !=
             round) {
        if (SystemMemory::nanoseconds() > limit) return false;
        sched_yield();
      }
      for (uint32_t i = 0; i < kDataBytes; ++i) {
        if (cell[i] != byte_of(q, round, i)) return false;
      }
      // Release: the cell has been read.
      taken->rounds[q].store(round, std::memory_order_release);
    }
  }
  return true;
}

// Rings of 2 to 16 slots next to the wrap of the counter; by the kind, posters wake the NIC, it polls, or both.
std::vector<std::unique_ptr<Post>> make_posts(SoftNic* nic,
                                              const std::function<bool(uint32_t)>& wakes) {
  std::vector<std::unique_ptr<Post>> posts;
  for (uint32_t q = 0; q < kQueues; ++q) {
    posts.push_back(std::make_unique<Post>(q, 2u << q % 4, wakes(q), nic));
  }
  return posts;
}

void many_queues_over_memory(void**) {
  for (const uint32_t kind : {0u, 1u, 2u}) {
    const uint64_t limit = SystemMemory::nanoseconds() + kLimitNs;
    alignas(8) static std::array<uint8_t, kQueues * kCellBytes> target;
    target.fill(0);
    SoftNic nic;
    auto posts =
        make_posts(&nic, [&](uint32_t q) { return kind == 0 || (kind == 2 && q % 2 == 0); });
    assert_int_equal(nic.start(), MEP_SUCCESS);
    for (uint32_t q = 0; q < kQueues; ++q) {
      const auto place = reinterpret_cast<uint64_t>(&target[q * kCellBytes]);
      posts[q]->wiring.remote = {{9, kNames, kCellBytes, place, true, true}};
      assert_int_equal(nic.add_queue(posts[q]->wiring, std::make_unique<MemoryExecutor>()),
                       MEP_SUCCESS);
    }
    Taken taken;
    bool posted = false;
    std::thread poster([&] { posted = post_all(&posts, &taken, limit); });
    const bool took = take_all([&](uint32_t q) { return &target[q * kCellBytes]; }, &taken, limit);
    poster.join();
    nic.stop();
    assert_true(posted);
    assert_true(took);
  }
}

constexpr uint64_t kWindow = 5;
constexpr uint64_t kLargeWordAt = kQueues * kCellBytes;
constexpr uint64_t kLargeAt = kLargeWordAt + 11;
constexpr uint32_t kLarge = (3u << 20) + 5;

uint8_t large_byte(uint32_t i) {
  return static_cast<uint8_t>(i * 2654435761u >> 24);
}

// Rank 1 has the cells in its window.
void take_in_window(Rank& rank, Taken* taken, uint64_t limit) {
  const auto* window = reinterpret_cast<const uint8_t*>(rank.window(kWindow).data());
  RANK_CHECK(rank, take_all([&](uint32_t q) { return window + q * kCellBytes; }, taken, limit));
  RANK_CHECK(rank, rank.wait_word(kWindow, kLargeWordAt, 5));
  uint32_t wrong = 0;
  for (uint32_t i = 0; i < kLarge; ++i) wrong += window[kLargeAt + i] != large_byte(i) ? 1 : 0;
  RANK_CHECK(rank, wrong == 0);
  RANK_CHECK(rank, rank.barrier());  // until then the peer is there
}

// Rank 0 posts to a queue of its own what `calls` says. 0: all good; else the syndrome.
template <typename Calls>
uint8_t post_alone(Rank& rank, SoftNic* nic, uint64_t window, uint64_t limit, const Calls& calls) {
  Post post(kQueues, 4, true, nic);
  std::vector<uint8_t> large(kLarge);
  for (uint32_t i = 0; i < kLarge; ++i) large[i] = large_byte(i);
  post.wiring.local.push_back(
      {8, kNames, kLarge, reinterpret_cast<std::byte*>(large.data()), false});
  post.wiring.remote = {{9, kNames, kLargeAt + kLarge, window, true, true}};
  if (nic->add_queue(post.wiring, std::make_unique<TransportExecutor>(
                                      &rank.transport(), Rank::slot(1), false)) != MEP_SUCCESS) {
    return 0xff;
  }
  QueuePeer<HostMemory> peer(&post.queue, {limit, nullptr, 0});
  SendQueue<HostMemory> queue(&post.queue, {limit, nullptr, 0});
  const bool good = calls(&peer, &queue) == Status::kOk && queue.flush() == Status::kOk;
  QueueError error{};
  const bool failed = queue.error(&error);
  if (nic->remove_queue(post.queue.queue_pair) != MEP_SUCCESS || good == failed) return 0xff;
  return error.syndrome;
}

// Rank 0 has the posters and the NIC.
void over_windows(Rank& rank, Taken* taken) {
  RANK_CHECK(rank, rank.add_window(mep::kWorldWindowId, 4096));
  RANK_CHECK(rank, rank.add_window(kWindow, kLargeAt + kLarge));
  const uint64_t limit = SystemMemory::nanoseconds() + kLimitNs;
  if (rank.number() == 1) return take_in_window(rank, taken, limit);
  std::vector<std::unique_ptr<Post>> posts;
  SoftNic nic;  // ends before them
  posts = make_posts(&nic, [](uint32_t q) { return q % 2 == 0; });
  RANK_CHECK(rank, nic.start() == MEP_SUCCESS);
  for (uint32_t q = 0; q < kQueues; ++q) {
    // A region begins at the window's start, so each poster names its cell from there.
    QueueWiring wiring = posts[q]->wiring;
    wiring.remote = {{9, kNames - q * kCellBytes, kQueues * kCellBytes, kWindow, true, true}};
    auto executor =
        std::make_unique<TransportExecutor>(&rank.transport(), Rank::slot(1), q % 4 == 0);
    RANK_CHECK(rank, nic.add_queue(wiring, std::move(executor)) == MEP_SUCCESS);
  }
  RANK_CHECK(rank, post_all(&posts, taken, limit));
  using Peer = QueuePeer<HostMemory>;
  using Sends = SendQueue<HostMemory>;
  const LocalMemory local{reinterpret_cast<const void*>(kNames), 7};
  const auto put_large = [](Peer* peer, Sends*) {
    const LocalMemory large{reinterpret_cast<const void*>(kNames), 8};
    const Status status = peer->put({kNames + kLargeAt, 9}, large, kLarge);
    return status == Status::kOk ? peer->signal({kNames + kLargeWordAt, 9}, 5) : status;
  };
  RANK_CHECK(rank, post_alone(rank, &nic, kWindow, limit, put_large) == 0);
  const auto add = [&](Peer*, Sends* queue) {
    return queue->post(fetch_add({kNames, 9}, 1, local));
  };
  const bool is_mapped = rank.transport().map(Rank::slot(1), kWindow) != nullptr;
  RANK_CHECK(rank, post_alone(rank, &nic, kWindow, limit, add) == (is_mapped ? 0 : 0x12));
  // No such window; a peer that is fenced out.
  const auto signal = [](Peer* peer, Sends*) { return peer->signal({kNames, 9}, 1); };
  RANK_CHECK(rank, post_alone(rank, &nic, kWindow + 1, limit, signal) == 0x13);
  RANK_CHECK(rank, rank.transport().fence_out(Rank::slot(1)) == MEP_SUCCESS);
  RANK_CHECK(rank, post_alone(rank, &nic, kWindow, limit, signal) == 0x15);
  nic.stop();
  RANK_CHECK(rank, rank.barrier());
}

void many_queues_over_transports(void**) {
  for (const mep::TransportEntry& entry : mep::transport_table()) {
    const bool is_wanted =
        std::strcmp(entry.name, "shm") == 0 || std::strcmp(entry.name, "tcp") == 0;
    if (!is_wanted) continue;
    for (const bool put_only : {false, true}) {
      Taken taken;
      mep::test::RigOptions options;
      options.put_only = put_only;
      options.poses_as_processes = true;
      mep::test::run_ranks(entry, options, [&](Rank& rank) { over_windows(rank, &taken); });
    }
  }
}

// A queue of its own NIC with a peer's cell.
struct Alone {
  explicit Alone(const QueueFaults& faults, uint32_t entries = 4, uint64_t first = 0xfffa,
                 std::unique_ptr<Executor> executor = std::make_unique<MemoryExecutor>())
      : post(0, entries, true, &nic, first) {
    assert_int_equal(nic.start(), MEP_SUCCESS);
    const auto place = reinterpret_cast<uint64_t>(target.data());
    post.wiring.remote = {{9, kNames, kCellBytes, place, true, true}};
    assert_int_equal(nic.add_queue(post.wiring, std::move(executor), faults), MEP_SUCCESS);
  }
  Status run(uint64_t rounds, uint64_t limit = SystemMemory::nanoseconds() + kLimitNs) {
    Status status = Status::kOk;
    for (uint64_t round = 1; round <= rounds && status == Status::kOk; ++round) {
      status = post.post(round, limit);
    }
    return status;
  }
  uint64_t word() const {
    return __atomic_load_n(reinterpret_cast<const uint64_t*>(&target[kWordAt]), __ATOMIC_ACQUIRE);
  }
  QueueError error() {
    QueueError error{};
    assert_true(SendQueue<>(&post.queue, {}).error(&error));
    return error;
  }

  alignas(8) std::array<uint8_t, kCellBytes> target{};
  Post post;
  SoftNic nic;  // ends first
};

void late_and_repeated_completions(void**) {
  for (const uint32_t entries : {2u, 4u, 16u}) {
    QueueFaults faults;
    faults.late_polls =
        entries == 4 ? 80 : 3;  // the thread pauses between them, but does not sleep
    faults.repeats = true;
    Alone alone(faults, entries, 0xffe0);
    assert_int_equal(alone.run(30), static_cast<int>(Status::kOk));
    assert_int_equal(alone.word(), 30);
  }
}

// Whichever request fails, the poster gets an error, and no word comes after it.
void an_error_at_any_request(void**) {
  for (uint64_t at = 0; at < 12; ++at) {
    QueueFaults faults;
    faults.fails_at = 0xfffa + at;
    Alone alone(faults);
    assert_int_equal(alone.run(10), static_cast<int>(Status::kFailed));
    const QueueError error = alone.error();
    // The adapter may have overwritten the first error by one of those behind.
    assert_true(error.syndrome == 0x15 || error.syndrome == 5);
    assert_in_range(static_cast<uint16_t>(error.wqe_counter - faults.fails_at), 0, 3);
    assert_in_range(alone.word(), 0, at / 3 + 1);
  }
}

void a_peer_that_never_completes(void**) {
  QueueFaults faults;
  faults.never_completes = true;
  Alone alone(faults);
  assert_int_equal(alone.run(1, SystemMemory::nanoseconds() + 5'000'000),
                   static_cast<int>(Status::kTimedOut));
}

// A poster that waits when the queue is taken away, or the NIC ends, ends with an error.
void a_stop_ends_all_waits(void**) {
  for (const bool removes : {false, true}) {
    QueueFaults faults;
    faults.never_completes = true;
    Alone alone(faults);
    std::atomic<int> status{-1};
    std::thread poster([&] { status = static_cast<int>(alone.run(1)); });
    const uint64_t limit = SystemMemory::nanoseconds() + kLimitNs;
    while (alone.word() != 1 && SystemMemory::nanoseconds() < limit) sched_yield();
    if (removes) {
      assert_int_equal(alone.nic.remove_queue(100), MEP_SUCCESS);
      assert_int_equal(alone.nic.remove_queue(100), MEP_ERR_INVALID_ARGUMENT);
    } else {
      alone.nic.stop();
    }
    poster.join();
    assert_int_equal(status, static_cast<int>(Status::kFailed));
    assert_int_equal(alone.error().syndrome, 5);
    // Nothing is written any more.
    const CompletionEntry last = alone.post.completion;
    alone.post.doorbell.value ^= uint64_t{1} << 63;
    alone.nic.wake();
    alone.nic.stop();
    assert_memory_equal(&alone.post.completion, &last, sizeof last);
    assert_int_equal(alone.nic.start(), MEP_ERR_INVALID_ARGUMENT);
    assert_int_equal(alone.nic.add_queue(alone.post.wiring, std::make_unique<MemoryExecutor>()),
                     MEP_ERR_INVALID_ARGUMENT);
  }
}

// It sleeps when there is nothing to do, and a poster, a new queue and the end wake it.
void a_sleeping_nic_is_woken(void**) {
  Alone alone({});
  const uint64_t limit = SystemMemory::nanoseconds() + kLimitNs;
  const auto sleeps = [&] {
    while (!alone.nic.is_asleep() && SystemMemory::nanoseconds() < limit) sched_yield();
    return alone.nic.is_asleep();
  };
  for (uint64_t round = 1; round <= 50; ++round) {
    assert_true(sleeps());
    assert_int_equal(alone.post.post(round, limit), static_cast<int>(Status::kOk));
  }
  assert_true(sleeps());
  Post polled(1, 4, false, &alone.nic);
  polled.wiring.remote = alone.post.wiring.remote;
  assert_int_equal(alone.nic.add_queue(polled.wiring, std::make_unique<MemoryExecutor>()),
                   MEP_SUCCESS);
  assert_int_equal(polled.post(77, limit), static_cast<int>(Status::kOk));
  assert_int_equal(alone.word(), 77);
  assert_int_equal(alone.nic.remove_queue(polled.queue.queue_pair), MEP_SUCCESS);
  assert_true(sleeps());
  alone.nic.stop();
}

class FullExecutor final : public Executor {
 public:
  Executed put(const RemoteRegion&, uint64_t, const void*, size_t) override {
    return Executed::kLater;
  }
  Executed write_word(const RemoteRegion&, uint64_t, uint64_t) override { return Executed::kLater; }
  Executed fetch_add(const RemoteRegion&, uint64_t, uint64_t, uint64_t*) override {
    return Executed::kLater;
  }
  bool counts(Counts* out) override {
    *out = {};
    return true;
  }
};

void a_full_way_holds_up_no_other_queue(void**) {
  Alone alone({}, 4, 0, std::make_unique<FullExecutor>());
  Post other(1, 4, true, &alone.nic);
  const auto place = reinterpret_cast<uint64_t>(alone.target.data());
  other.wiring.remote = {{9, kNames, kCellBytes, place, true, true}};
  assert_int_equal(alone.nic.add_queue(alone.post.wiring, std::make_unique<MemoryExecutor>()),
                   MEP_ERR_INVALID_ARGUMENT);  // its queue pair is there
  assert_int_equal(alone.nic.add_queue(other.wiring, std::make_unique<MemoryExecutor>()),
                   MEP_SUCCESS);
  std::atomic<int> status{-1};
  std::thread poster([&] { status = static_cast<int>(alone.run(1)); });
  const uint64_t limit = SystemMemory::nanoseconds() + kLimitNs;
  for (uint64_t round = 1; round <= 20; ++round) {
    assert_int_equal(other.post(round, limit), static_cast<int>(Status::kOk));
  }
  assert_int_equal(alone.word(), 20);
  alone.nic.stop();
  poster.join();
  assert_int_equal(status, static_cast<int>(Status::kFailed));
}

}  // namespace

int main() {
  setenv("MEP_LOG", "error", 0);  // each refusal is a warning
  const CMUnitTest tests[] = {cmocka_unit_test(many_queues_over_memory),
                              cmocka_unit_test(many_queues_over_transports),
                              cmocka_unit_test(late_and_repeated_completions),
                              cmocka_unit_test(an_error_at_any_request),
                              cmocka_unit_test(a_peer_that_never_completes),
                              cmocka_unit_test(a_stop_ends_all_waits),
                              cmocka_unit_test(a_sleeping_nic_is_woken),
                              cmocka_unit_test(a_full_way_holds_up_no_other_queue)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
