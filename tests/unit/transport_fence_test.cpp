// labels: gate threads
// A process or thread that was excluded while it may still run changes no byte that is used later,
// and what sleeps while its window is renewed is woken.
#include <fcntl.h>

#include <csignal>

#include "support/transport_conformance.hpp"
#include "transport/memfd.hpp"

namespace {

using mep::Deadline;
using mep::Doorbell;
using mep::kWorldWindowId;
using mep::Mapping;
using mep::Window;
using namespace mep::test;  // NOLINT(google-build-using-namespace)

const mep::TransportEntry& entry_named(const char* name) {
  for (const mep::TransportEntry& entry : mep::transport_table()) {
    if (std::strcmp(entry.name, name) == 0) return entry;
  }
  fail_msg("no transport %s", name);
  return mep::transport_table()[0];
}

constexpr size_t kBigBytes = size_t{48} << 20;

// The zombie's work: one put of ones over the whole window, again and again as long as told to.
struct ZombieBoard {
  std::atomic<uint32_t> go;        // parent: the number of the put that may start
  std::atomic<uint32_t> returned;  // child: the number of the put that has returned
};

[[noreturn]] void run_zombie(Window* target, bool put_only, ZombieBoard* board) {
  alarm(300);
  mep::TransportOptions options;
  options.put_only = put_only;
  const std::unique_ptr<mep::Transport> shm = entry_named("shm").make(options);
  std::shared_ptr<Window> window(target, [](Window*) {});
  mep::WindowExport exported;
  const mep::PeerIdentity self{1, 11, 7, 2, 0};
  const mep::PeerIdentity peer{0, 10, 7, 1, 0};
  if (shm->add_peer(self, peer, {}, {}) != MEP_SUCCESS ||
      shm->export_window(0, window, &exported) != MEP_SUCCESS ||
      shm->import_window(0, kDataWindow, kBigBytes, exported.blob, std::move(exported.fd)) !=
          MEP_SUCCESS) {
    _exit(2);
  }
  std::byte* mapped = shm->map(0, kDataWindow);
  if ((mapped == nullptr) != put_only) _exit(3);
  const std::vector<std::byte> ones(kBigBytes, std::byte{1});
  for (uint32_t number = 1;; ++number) {
    while (board->go.load(std::memory_order_acquire) < number) sched_yield();
    if (mapped != nullptr) {
      std::memcpy(mapped, ones.data(), kBigBytes);
    } else if (post_put(*shm, 0, kDataWindow, 0, ones.data(), kBigBytes) != MEP_SUCCESS) {
      _exit(4);
    }
    board->returned.store(number, std::memory_order_release);
  }
}

// Some bytes of the put have arrived and others have not. In which order a copy goes is its own
// affair, so this looks at one byte of every page.
bool is_in_the_middle(const Window& window) {
  size_t arrived = 0;
  size_t pages = 0;
  for (size_t at = 0; at < kBigBytes; at += mep::page_bytes(), ++pages) {
    if (window.data()[at + 100] == std::byte{1}) ++arrived;
  }
  return arrived > 0 && arrived < pages;
}

// Stops the child in the middle of a put.
bool stop_in_the_middle(pid_t child, Window* window, ZombieBoard* board) {
  for (uint32_t attempt = 1; attempt <= 200; ++attempt) {
    std::memset(window->data(), 0, kBigBytes);
    board->go.store(attempt, std::memory_order_release);
    const Deadline deadline = Deadline::after_ms(kLimitMs);
    while (!is_in_the_middle(*window) && !deadline.expired() &&
           board->returned.load(std::memory_order_acquire) < attempt) {
    }
    kill(child, SIGSTOP);
    int status = 0;
    if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status)) return false;
    if (is_in_the_middle(*window)) return true;
    kill(child, SIGCONT);
    while (board->returned.load(std::memory_order_acquire) < attempt && !deadline.expired()) {
      sched_yield();
    }
  }
  return false;
}

void stopped_process(bool put_only) {
  std::shared_ptr<Window> window;
  assert_int_equal(Window::create(kDataWindow, kBigBytes, &window), MEP_SUCCESS);
  void* memory =
      mmap(nullptr, sizeof(ZombieBoard), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(memory, MAP_FAILED);
  auto* board = new (memory) ZombieBoard();
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) run_zombie(window.get(), put_only, board);

  const bool stopped = stop_in_the_middle(child, window.get(), board);
  Mapping old_pages;
  const mep_result_t watched = Mapping::of(window->fd(), kBigBytes, false, &old_pages);
  const mep_result_t renewed = window->renew();
  const std::vector<std::byte> snapshot(window->data(), window->data() + kBigBytes);
  const uint32_t put = board->go.load(std::memory_order_relaxed);
  kill(child, SIGCONT);
  const Deadline deadline = Deadline::after_ms(kLimitMs);
  while (board->returned.load(std::memory_order_acquire) < put && !deadline.expired())
    sched_yield();
  // One whole put more, started by the zombie after it woke up.
  board->go.store(put + 1, std::memory_order_release);
  while (board->returned.load(std::memory_order_acquire) <= put && !deadline.expired())
    sched_yield();
  const bool finished = board->returned.load(std::memory_order_acquire) == put + 1;
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  munmap(memory, sizeof(ZombieBoard));

  assert_true(stopped);
  assert_int_equal(watched, MEP_SUCCESS);
  assert_int_equal(renewed, MEP_SUCCESS);
  assert_true(finished);
  assert_int_equal(WTERMSIG(status), SIGKILL);
  // It did go on, in the old pages; the new ones hold what they held, half old and half new.
  assert_true(std::all_of(old_pages.data(), old_pages.data() + kBigBytes,
                          [](std::byte b) { return b == std::byte{1}; }));
  const auto missing = std::count(snapshot.begin(), snapshot.end(), std::byte{0});
  assert_true(missing > 0 && static_cast<size_t>(missing) < kBigBytes);
  assert_memory_equal(window->data(), snapshot.data(), kBigBytes);
}

void a_stopped_process_changes_nothing(void**) {
  stopped_process(true);
  stopped_process(false);
}

// A rank that is a thread: its put is waited for, later ones are refused. Rank 1 is fenced out by
// rank 0 in the middle of what it does.
void fenced_thread_body(Rank& rank) {
  constexpr size_t kBytes = size_t{4} << 20;
  RANK_CHECK(rank, rank.add_window(kWorldWindowId, 4096));
  RANK_CHECK(rank, rank.add_window(kDataWindow, kBytes));
  if (rank.number() == 1) {
    std::vector<std::byte> data(kBytes);
    for (uint32_t value = 1;; ++value) {
      std::fill(data.begin(), data.end(), static_cast<std::byte>(value));
      const mep_result_t result =
          post_put(rank.transport(), Rank::slot(0), kDataWindow, 0, data.data(), kBytes);
      rank.shared().words[0].fetch_add(1, std::memory_order_acq_rel);
      if (result == MEP_ERR_PEER_FAILED) break;
      RANK_CHECK(rank, result == MEP_SUCCESS && !rank.failed());
    }
    for (int again = 0; again < 100; ++again) {
      RANK_CHECK(rank, post_put(rank.transport(), Rank::slot(0), kDataWindow, 0, data.data(),
                                kBytes) == MEP_ERR_PEER_FAILED);
      RANK_CHECK(rank, post_signal(rank.transport(), Rank::slot(0), kDataWindow, 0, 1, true) ==
                           MEP_ERR_PEER_FAILED);
    }
    RANK_CHECK(rank, rank.barrier());
    return;
  }
  RANK_CHECK(rank, rank.wait_for([&] {
    return rank.shared().words[0].load(std::memory_order_acquire) >= 3 + rank.random()() % 3;
  }));
  RANK_CHECK(rank, rank.transport().fence_out(Rank::slot(1)) == MEP_SUCCESS);
  // From here on nobody else writes; TSan would see it if somebody did.
  std::byte* own = rank.window(kDataWindow).data();
  const std::vector<std::byte> snapshot(own, own + kBytes);
  RANK_CHECK(rank, snapshot.front() == snapshot.back() && snapshot.front() != std::byte{0});
  std::memset(own, 0, kBytes);
  RANK_CHECK(rank, rank.barrier());
  RANK_CHECK(rank, std::all_of(own, own + kBytes, [](std::byte b) { return b == std::byte{0}; }));
}

void a_fenced_thread_changes_nothing(void**) {
  for (int round = 0; round < 5; ++round) {
    for (const bool put_only : {false, true}) {
      run_ranks(entry_named("inproc"), {RankKind::kThreads, put_only, 2}, fenced_thread_body);
    }
  }
}

// The core of the handshake without its sleep: the signaller does W1 to W3 while the sleeper does
// S1 to S4. One of the two must see the other, each time. Without the order of S3 (or of a
// signaller that must fence) a store waits in a core's buffer while the load after it is done, and
// both miss.
void one_of_both_sees_the_other(void**) {
  const uint64_t rounds = std::getenv("MEP_TEST_SOAK") != nullptr ? 1'000'000 : 20'000;
  for (const bool needs_fence : {false, true}) {
    std::shared_ptr<Window> window;
    assert_int_equal(Window::create(mep::kWorldWindowId, 4096, &window), MEP_SUCCESS);
    auto* doorbell = reinterpret_cast<Doorbell*>(window->data());
    auto* word = reinterpret_cast<std::atomic<uint64_t>*>(window->data() + 1024);
    mep::doorbell_open(doorbell);
    if (needs_fence) doorbell->needs_fence.store(1);
    struct alignas(64) Started {
      std::atomic<uint64_t> round{0};
    };
    Started started[2];
    const auto meet = [&](int who, uint64_t round, uint64_t delay) {
      // Release, acquire: each side sees what the other did in earlier rounds.
      started[who].round.store(round, std::memory_order_release);
      for (int turns = 0; started[1 - who].round.load(std::memory_order_acquire) < round; ++turns) {
        if (turns % 1000 == 999) sched_yield();
      }
      for (; delay > 0; --delay) asm volatile("" ::: "memory");
    };
    std::thread signaller([&] {
      for (uint64_t round = 1; round <= rounds; ++round) {
        meet(0, 2 * round - 1, round % 31);
        mep::doorbell_signal(doorbell, word, round);
        meet(0, 2 * round, 0);
      }
    });
    uint64_t both_missed = 0;
    for (uint64_t round = 1; round <= rounds; ++round) {
      const uint32_t rings = doorbell->rings.load();
      meet(1, 2 * round - 1, round * 7 % 64);
      bool seen = false;
      {
        const mep::DoorbellSleep sleep(doorbell);
        seen = word->load(std::memory_order_acquire) == round;
        meet(1, 2 * round, 0);
      }
      if (!seen && doorbell->rings.load() == rings) ++both_missed;
    }
    signaller.join();
    assert_int_equal(both_missed, 0);
  }
}

// A sleeper that was counted on the old pages is not counted on the new ones, so that neither an
// increment between the copy and the exchange nor its later decrement is missed or made twice.
void renewal_counts_sleepers_anew(void**) {
  std::shared_ptr<Window> window;
  assert_int_equal(Window::create(mep::kWorldWindowId, 4096, &window), MEP_SUCCESS);
  auto* doorbell = reinterpret_cast<Doorbell*>(window->data());
  mep::doorbell_open(doorbell);
  const auto count = [&] { return doorbell->sleepers.load() & mep::kSleeperCountMask; };
  {
    mep::DoorbellSleep before(doorbell);
    assert_int_equal(count(), 1);
    assert_int_equal(window->renew(), MEP_SUCCESS);
    assert_int_equal(count(), 0);
    mep::DoorbellSleep after(doorbell);
    assert_int_equal(count(), 1);
    before.wait(20'000'000'000);  // returns at once: its ticket is stale
  }
  assert_int_equal(count(), 0);
}

// Sleepers on the doorbell come back when the world window gets new pages under them, and are
// counted right afterwards.
void renewal_wakes_sleepers(void**) {
  test_seed();
  constexpr int kThreads = 3;
  constexpr int kRenewals = 1500;
  constexpr uint64_t kSleepLimitNs = 20'000'000'000;
  std::shared_ptr<Window> window;
  assert_int_equal(Window::create(mep::kWorldWindowId, 4096, &window), MEP_SUCCESS);
  auto* doorbell = reinterpret_cast<Doorbell*>(window->data());
  mep::doorbell_open(doorbell);
  std::atomic<int> renewals{0};
  std::atomic<int> at[kThreads] = {};
  std::atomic<int> lost{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      // Each sleeps once at least between two renewals; `renewals` plays the signal's part.
      for (int seen = 0; seen < kRenewals;) {
        while (renewals.load(std::memory_order_acquire) == seen) {
          mep::BasicDoorbellSleep<RandomDelays> sleep(doorbell);
          if (renewals.load(std::memory_order_acquire) != seen) break;
          const uint64_t start = mep::now_ns();
          sleep.wait(kSleepLimitNs);
          if (mep::now_ns() - start >= kSleepLimitNs) lost.fetch_add(1);
        }
        seen = renewals.load(std::memory_order_acquire);
        at[thread].store(seen, std::memory_order_release);
      }
    });
  }
  bool fine = true;
  for (int number = 1; number <= kRenewals && fine; ++number) {
    RandomDelays::delay();
    renewals.store(number, std::memory_order_seq_cst);
    fine = window->renew() == MEP_SUCCESS;
    for (std::atomic<int>& where : at) {
      while (where.load(std::memory_order_acquire) < number && lost.load() == 0) sched_yield();
    }
    fine = fine && lost.load() == 0;
  }
  renewals.store(kRenewals);
  mep::doorbell_ring(doorbell);
  for (std::thread& thread : threads) thread.join();
  assert_true(fine);
  assert_int_equal(lost.load(), 0);
  assert_int_equal(doorbell->sleepers.load() & mep::kSleeperCountMask, 0);
  assert_int_equal(window->generation(), kRenewals);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_stopped_process_changes_nothing),
      cmocka_unit_test(a_fenced_thread_changes_nothing),
      cmocka_unit_test(one_of_both_sees_the_other),
      cmocka_unit_test(renewal_counts_sleepers_anew),
      cmocka_unit_test(renewal_wakes_sleepers),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
