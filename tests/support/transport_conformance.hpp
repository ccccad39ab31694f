// The duties of every transport, whoever its peers are. Each case is a CMocka test over all
// transports that reach ranks of the given kind.
#pragma once

#include <algorithm>

#include "support/transport_rig.hpp"

namespace mep::test {

constexpr uint64_t kDataWindow = 5;

struct Message {
  uint32_t to;
  uint64_t offset;  // in the data window
  const std::byte* data;
  size_t bytes;
  uint64_t signal_offset;  // in the world window
  uint64_t word;
  bool wake;
};

// In place where the transport maps (and `in_place`), else by put and signal.
inline bool send(Rank& rank, const Message& message, bool in_place) {
  Transport& transport = rank.transport();
  const uint32_t slot = Rank::slot(message.to);
  std::byte* data = transport.map(slot, kDataWindow);
  std::byte* world = transport.map(slot, kWorldWindowId);
  if (in_place && data != nullptr && world != nullptr) {
    if (message.bytes != 0) std::memcpy(data + message.offset, message.data, message.bytes);
    doorbell_signal(reinterpret_cast<Doorbell*>(world),
                    reinterpret_cast<std::atomic<uint64_t>*>(world + message.signal_offset),
                    message.word);
    return true;
  }
  return post_put(transport, slot, kDataWindow, message.offset, message.data, message.bytes) ==
             MEP_SUCCESS &&
         post_signal(transport, slot, kWorldWindowId, message.signal_offset, message.word,
                     message.wake) == MEP_SUCCESS &&
         flush_posted(transport, slot) == MEP_SUCCESS;
}

inline bool same_bytes(const std::byte* data, size_t bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes; ++i) {
    if (data[i] != pattern(seed, i)) return false;
  }
  return true;
}

inline void fill(std::vector<std::byte>* data, size_t bytes, uint64_t seed) {
  data->resize(bytes);
  for (size_t i = 0; i < bytes; ++i) (*data)[i] = pattern(seed, i);
}

// Compared at once: ThreadSanitizer makes a loop over bytes slow.
inline bool all_are(std::byte value, const std::byte* from, const std::byte* to) {
  return from == to || (*from == value && std::memcmp(from, from + 1, size_t(to - from) - 1) == 0);
}

// Everything that was put before a signal is there when the signal is seen, and not a byte beside
// it.
inline void put_signal_body(Rank& rank) {
  constexpr size_t kRegionBytes = (size_t{1} << 20) + 8192;
  constexpr size_t kSizes[] = {0, 1, 7, 8, 64, 4095, 4096, 4097, size_t{1} << 20};
  constexpr std::byte kGuard{0xa5};
  RANK_CHECK(rank, rank.add_window(kWorldWindowId, 4096));
  RANK_CHECK(rank, rank.add_window(kDataWindow, kRegionBytes * rank.size()));
  for (uint32_t peer = 0; peer < rank.size(); ++peer) {
    if (peer == rank.number()) continue;
    const bool mapped = rank.transport().map(Rank::slot(peer), kDataWindow) != nullptr;
    RANK_CHECK(rank, !(rank.put_only() && mapped));
    // Its doorbell is within reach all the same, so that a sleeper in epoll is woken too.
    const std::string name = rank.transport().name();
    const bool shares = name == "shm" || name == "inproc";
    RANK_CHECK(rank, (rank.transport().doorbell(Rank::slot(peer)) != nullptr) == shares);
  }
  std::byte* own = rank.window(kDataWindow).data();
  uint64_t round = 0;
  for (const size_t bytes : kSizes) {
    for (const uint64_t shift : {0, 1, 3, 8, 13}) {
      ++round;
      std::memset(own, static_cast<int>(kGuard), rank.window(kDataWindow).bytes());
      RANK_CHECK(rank, rank.barrier());
      std::vector<std::byte> data;
      for (uint32_t peer = 0; peer < rank.size(); ++peer) {
        if (peer == rank.number()) continue;
        fill(&data, bytes, round * 100 + rank.number());
        const Message message{peer,
                              kRegionBytes * rank.number() + 64 + shift,
                              data.data(),
                              bytes,
                              64 + 8u * rank.number(),
                              round,
                              rank.random()() % 2 == 0};
        RANK_CHECK(rank, send(rank, message, rank.random()() % 2 == 0));
        std::fill(data.begin(), data.end(), std::byte{0x11});  // flushed: the bytes are ours again
      }
      for (uint32_t peer = 0; peer < rank.size(); ++peer) {
        if (peer == rank.number()) continue;
        RANK_CHECK(rank, rank.wait_word(kWorldWindowId, 64 + 8u * peer, round));
        const std::byte* region = own + kRegionBytes * peer;
        const std::byte* start = region + 64 + shift;
        RANK_CHECK(rank, same_bytes(start, bytes, round * 100 + peer));
        RANK_CHECK(rank, all_are(kGuard, region, start));
        RANK_CHECK(rank, all_are(kGuard, start + bytes, region + kRegionBytes));
      }
      RANK_CHECK(rank, rank.barrier());
    }
  }
}

// Several threads post to one peer at once, each to words and bytes of its own; each keeps its own order. Rank 0
// only receives.
inline void threads_body(Rank& rank) {
  constexpr size_t kBytes = 3000;
  constexpr uint64_t kRounds = 60;
  constexpr uint32_t kThreads = 3;
  const uint32_t areas = 16;
  RANK_CHECK(rank, rank.add_window(kWorldWindowId, 64 + 8 * areas * 2));
  RANK_CHECK(rank, rank.add_window(kDataWindow, kBytes * areas));
  if (rank.number() == 0) {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      for (uint32_t area = 0; area < areas; ++area) {
        RANK_CHECK(rank, rank.wait_word(kWorldWindowId, 64 + 8 * area, round));
        RANK_CHECK(rank, same_bytes(rank.window(kDataWindow).data() + kBytes * area, kBytes,
                                    round * 1000 + area));
        // Tells the source that this area's bytes may be overwritten.
        RANK_CHECK(rank, post_signal(rank.transport(), Rank::slot(1), kWorldWindowId,
                                     64 + 8 * areas + 8 * area, round, false) == MEP_SUCCESS);
      }
    }
    RANK_CHECK(rank, rank.barrier());
    return;
  }
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::vector<std::byte> data;
      for (uint64_t round = 1; round <= kRounds; ++round) {
        for (uint32_t area = thread; area < areas; area += kThreads) {
          RANK_CHECK(rank, rank.wait_word(kWorldWindowId, 64 + 8 * areas + 8 * area, round - 1));
          fill(&data, kBytes, round * 1000 + area);
          // Two puts and one signal.
          Transport& transport = rank.transport();
          RANK_CHECK(rank, post_put(transport, Rank::slot(0), kDataWindow, kBytes * area,
                                    data.data(), kBytes / 2) == MEP_SUCCESS);
          const Message rest{0,
                             kBytes * area + kBytes / 2,
                             data.data() + kBytes / 2,
                             kBytes / 2,
                             64 + 8 * area,
                             round,
                             false};
          RANK_CHECK(rank, send(rank, rest, false));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  RANK_CHECK(rank, rank.barrier());
}

// Several peers signal as fast as they can; each word only ever grows and ends at its last value.
inline void concurrent_signals_body(Rank& rank) {
  constexpr uint64_t kSignals = 20000;
  RANK_CHECK(rank, rank.add_window(kWorldWindowId, 4096));
  RANK_CHECK(rank, rank.add_window(kDataWindow, 4096));
  if (rank.number() != 0) {
    for (uint64_t word = 1; word <= kSignals; ++word) {
      const Message message{0, 0, nullptr, 0, 64 + 64u * rank.number(), word, word % 3 == 0};
      RANK_CHECK(rank, send(rank, message, word % 2 == 0));
    }
    return;
  }
  std::vector<uint64_t> seen(rank.size(), 0);
  const bool done = rank.wait_for([&] {
    bool all = true;
    for (uint32_t peer = 1; peer < rank.size(); ++peer) {
      const uint64_t word =
          rank.own_word(kWorldWindowId, 64 + 64u * peer).load(std::memory_order_acquire);
      if (word < seen[peer]) rank.fail_here(__FILE__, __LINE__, "a signal went back");
      seen[peer] = word;
      all = all && word == kSignals;
    }
    return all;
  });
  RANK_CHECK(rank, done);
}

// Delays of random length before every step of the handshake, per thread.
struct RandomDelays {
  static void before(DoorbellStep /*step*/) { delay(); }
  static void delay() {
    thread_local std::minstd_rand random(static_cast<uint32_t>(
        test_seed() + reinterpret_cast<uintptr_t>(&random) + static_cast<uint64_t>(getpid())));
    const uint32_t kind = static_cast<uint32_t>(random() % 16);
    if (kind < 8) return;
    if (kind == 8) {
      sched_yield();
    } else if (kind == 9 && random() % 8 == 0) {
      const timespec nap{0, 20000};
      nanosleep(&nap, nullptr);
    } else {
      const uint32_t turns = static_cast<uint32_t>(random() % 600);
      for (uint32_t i = 0; i < turns; ++i) asm volatile("" ::: "memory");
    }
  }
};

inline bool signal_with_delays(Rank& rank, uint32_t to, uint64_t offset, uint64_t word) {
  std::byte* world = rank.transport().map(Rank::slot(to), kWorldWindowId);
  if (world != nullptr && word % 4 != 0) {
    doorbell_signal<RandomDelays>(reinterpret_cast<Doorbell*>(world),
                                  reinterpret_cast<std::atomic<uint64_t>*>(world + offset), word);
    return true;
  }
  RandomDelays::delay();
  return post_signal(rank.transport(), Rank::slot(to), kWorldWindowId, offset, word, true) ==
         MEP_SUCCESS;
}

// A thread of rank 0 for each peer sleeps on the one doorbell; no wake is lost. A sleep that lasts
// to its limit although the word is there is a lost wake. With two ranks nobody else's ring can
// make up for it.
inline void wake_body(Rank& rank) {
  const uint64_t sleeps = std::getenv("MEP_TEST_SOAK") != nullptr ? 10'000 : 2'500;
  constexpr uint64_t kSleepLimitNs = 20'000'000'000;
  RANK_CHECK(rank, rank.add_window(kWorldWindowId, 4096));
  if (rank.number() != 0) {
    for (uint64_t word = 1; word <= sleeps; ++word) {
      RANK_CHECK(rank, signal_with_delays(rank, 0, 64 + 64u * rank.number(), word));
      RANK_CHECK(rank, rank.wait_word(kWorldWindowId, 64, word));
    }
    return;
  }
  auto sleeper = [&](uint32_t peer) {
    std::atomic<uint64_t>& own = rank.own_word(kWorldWindowId, 64 + 64u * peer);
    for (uint64_t word = 1; word <= sleeps; ++word) {
      // Acquire, in both places: the reader's side of the signal.
      while (own.load(std::memory_order_acquire) != word) {
        BasicDoorbellSleep<RandomDelays> sleep(rank.doorbell());
        if (own.load(std::memory_order_acquire) == word) break;
        const uint64_t start = now_ns();
        sleep.wait(kSleepLimitNs);
        const bool expired = now_ns() - start >= kSleepLimitNs;
        RANK_CHECK(rank, !(expired && own.load(std::memory_order_acquire) == word));
        RANK_CHECK(rank, !expired && !rank.failed());
      }
      RANK_CHECK(rank, post_signal(rank.transport(), Rank::slot(peer), kWorldWindowId, 64, word,
                                   false) == MEP_SUCCESS);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t peer = 1; peer < rank.size(); ++peer) threads.emplace_back(sleeper, peer);
  for (std::thread& thread : threads) thread.join();
  // Relaxed: the threads that counted here were joined.
  const uint32_t sleepers = rank.doorbell()->sleepers.load(std::memory_order_relaxed);
  RANK_CHECK(rank, (sleepers & kSleeperCountMask) == 0);
}

inline void bad_arguments_body(Rank& rank) {
  constexpr size_t kBytes = 1000;  // not a multiple of the page: the window ends inside its memory
  RANK_CHECK(rank, rank.add_window(kWorldWindowId, 4096));
  RANK_CHECK(rank, rank.add_window(kDataWindow, kBytes));
  if (rank.number() == 1) {
    Transport& to = rank.transport();
    const uint32_t slot = Rank::slot(0);
    std::byte data[64] = {};
    std::memset(data, 0xff, sizeof(data));
    const auto put = [&](uint32_t peer, uint64_t id, uint64_t at, size_t bytes) {
      return post_put(to, peer, id, at, data, bytes);
    };
    const auto signal = [&](uint32_t peer, uint64_t id, uint64_t at) {
      return post_signal(to, peer, id, at, ~uint64_t{0}, false);
    };
    constexpr mep_result_t kBad = MEP_ERR_INVALID_ARGUMENT;
    RANK_CHECK(rank, put(slot, kDataWindow, kBytes - 63, 64) == kBad);
    RANK_CHECK(rank, put(slot, kDataWindow, kBytes, 1) == kBad);
    RANK_CHECK(rank, put(slot, kDataWindow, kBytes + 1, 0) == kBad);
    RANK_CHECK(rank, put(slot, kDataWindow, UINT64_MAX, 1) == kBad);
    RANK_CHECK(rank, put(slot, kDataWindow, UINT64_MAX - 7, 64) == kBad);
    RANK_CHECK(rank, put(slot, kDataWindow, 8, SIZE_MAX - 4) == kBad);
    RANK_CHECK(rank, post_put(to, slot, kDataWindow, 0, nullptr, 1) == kBad);
    RANK_CHECK(rank, put(slot, kDataWindow + 1, 0, 1) == kBad);
    RANK_CHECK(rank, put(slot, UINT64_MAX, 0, 1) == kBad);
    RANK_CHECK(rank, put(slot + 1, kDataWindow, 0, 1) == kBad);
    RANK_CHECK(rank, put(UINT32_MAX, kDataWindow, 0, 1) == kBad);
    RANK_CHECK(rank, signal(slot, kDataWindow, 4) == kBad);
    RANK_CHECK(rank, signal(slot, kDataWindow, 1) == kBad);
    RANK_CHECK(rank, signal(slot, kDataWindow, kBytes) == kBad);
    RANK_CHECK(rank, signal(slot, kDataWindow, UINT64_MAX - 7) == kBad);
    RANK_CHECK(rank, signal(slot, kDataWindow + 1, 0) == kBad);
    RANK_CHECK(rank, signal(slot + 1, kDataWindow, 0) == kBad);
    // A batch stops where it is wrong.
    const Posting postings[] = {Posting::put(kDataWindow, 0, data, 0),
                                Posting::put(kDataWindow, kBytes, data, 1),
                                Posting::signal(kDataWindow, 0, ~uint64_t{0}, false)};
    Batch batch{postings};
    RANK_CHECK(rank, to.post(slot, &batch) == kBad && batch.next == 1);
    RANK_CHECK(rank, flush_posted(to, slot + 1) == kBad);
    RANK_CHECK(rank, to.fence_out(slot + 1) == kBad);
    RANK_CHECK(rank, to.map(slot + 1, kDataWindow) == nullptr);
    RANK_CHECK(rank, to.map(slot, kDataWindow + 1) == nullptr);
    RANK_CHECK(rank, !to.status(slot + 1).is_connected);
    RANK_CHECK(rank, put(slot, kDataWindow, kBytes, 0) == MEP_SUCCESS);
    const std::vector<std::byte> offer;
    RANK_CHECK(rank, to.add_peer(rank.identity(1), rank.identity(0), offer, {}) == kBad);
    PeerIdentity far = rank.identity(0);
    far.slot = UINT32_MAX;
    RANK_CHECK(rank, to.add_peer(rank.identity(1), far, offer, {}) == kBad);
    PeerIdentity elsewhere = rank.identity(0);
    elsewhere.slot = 1;
    elsewhere.host += 1;
    if (to.traits().reach != Reach::kAnywhere) {  // a network reaches other hosts too
      RANK_CHECK(rank, !to.reaches(rank.identity(1), elsewhere));
      RANK_CHECK(rank, to.add_peer(rank.identity(1), elsewhere, offer, {}) == kBad);
    }
    // Without the world window nobody can be woken, and says so.
    to.drop_window(slot, kWorldWindowId);
    RANK_CHECK(rank, post_signal(to, slot, kDataWindow, 0, 1, true) == kBad);
    to.drop_window(slot, kDataWindow);
    RANK_CHECK(rank, put(slot, kDataWindow, 0, 1) == kBad);
    to.remove_peer(slot);
    RANK_CHECK(rank, put(slot, kDataWindow, 0, 1) == kBad);
  }
  RANK_CHECK(rank, rank.barrier());
  const std::byte* own = rank.window(kDataWindow).data();
  RANK_CHECK(rank, std::all_of(own, own + 4096, [](std::byte b) { return b == std::byte{0}; }));
}

// After a renewal the contents are the same, puts land again, and addresses have not changed.
inline void renew_body(Rank& rank) {
  constexpr size_t kBytes = size_t{64} << 20;  // sparse: three touched places
  constexpr size_t kPlaces[] = {0, size_t{20} << 20, kBytes - 100};
  RANK_CHECK(rank, rank.add_window(kWorldWindowId, 4096));
  RANK_CHECK(rank, rank.add_window(kDataWindow, kBytes));
  const uint32_t peer = 1 - rank.number();
  for (uint64_t round = 1; round <= 5; ++round) {
    Window& own = rank.window(kDataWindow);
    std::vector<std::byte> data;
    fill(&data, 100, round * 10 + rank.number());
    for (const size_t place : kPlaces) {
      RANK_CHECK(rank, post_put(rank.transport(), Rank::slot(peer), kDataWindow, place, data.data(),
                                data.size()) == MEP_SUCCESS);
    }
    RANK_CHECK(rank, post_signal(rank.transport(), Rank::slot(peer), kWorldWindowId, 128, round,
                                 false) == MEP_SUCCESS);
    RANK_CHECK(rank, rank.wait_word(kWorldWindowId, 128, round));
    RANK_CHECK(rank, rank.barrier());
    std::byte* before = own.data();
    std::byte* mapped = rank.transport().map(Rank::slot(peer), kDataWindow);
    rank.transport().hold_windows(true);
    const bool renewed =
        own.renew() == MEP_SUCCESS && rank.window(kWorldWindowId).renew() == MEP_SUCCESS;
    rank.transport().hold_windows(false);
    RANK_CHECK(rank, renewed);
    RANK_CHECK(rank, own.data() == before && own.generation() == round);
    for (const size_t place : kPlaces) {
      RANK_CHECK(rank, same_bytes(own.data() + place, 100, round * 10 + peer));
    }
    RANK_CHECK(rank, rank.barrier());
    RANK_CHECK(rank, rank.exchange(kDataWindow));
    RANK_CHECK(rank, rank.exchange(kWorldWindowId));
    RANK_CHECK(rank, rank.transport().map(Rank::slot(peer), kDataWindow) == mapped);
    RANK_CHECK(rank,
               (mapped == nullptr) == (rank.put_only() || !rank.transport().traits().is_mapped));
    // Reading through the old pointer sees the peer's new pages.
    if (mapped != nullptr) RANK_CHECK(rank, same_bytes(mapped, 100, round * 10 + rank.number()));
    RANK_CHECK(rank, rank.barrier());
    const Message message{peer, 5000, data.data(), data.size(), 64, round, true};
    RANK_CHECK(rank, send(rank, message, round % 2 == 0));
    RANK_CHECK(rank, rank.wait_word(kWorldWindowId, 64, round));
    RANK_CHECK(rank, same_bytes(own.data() + 5000, 100, round * 10 + peer));
    RANK_CHECK(rank, rank.barrier());
  }
}

// A peer's statement about its window is checked before it is believed.
inline void bad_imports_body(Rank& rank) {
  RANK_CHECK(rank, rank.add_window(kWorldWindowId, 4096));
  RANK_CHECK(rank, rank.add_window(kDataWindow, 8192));
  const uint32_t peer = 1 - rank.number();
  Transport& from = rank.transport();
  const auto import = [&](uint32_t slot, uint64_t id, size_t bytes,
                          const std::function<void(WindowExport*)>& change) -> mep_result_t {
    WindowExport received;
    if (!rank.send_export(peer, kDataWindow) || !rank.receive_bytes(peer, &received)) {
      return MEP_ERR_INTERNAL;
    }
    change(&received);
    return from.import_window(slot, id, bytes, received.blob, std::move(received.fd));
  };
  const auto nothing = [](WindowExport*) {};
  const uint32_t slot = Rank::slot(peer);
  RANK_CHECK(rank, import(slot, 6, 8193, nothing) == MEP_ERR_MISMATCH);            // too small
  RANK_CHECK(rank, import(slot, 6, 8192, nothing) == MEP_ERR_MISMATCH);            // another id
  RANK_CHECK(rank, import(slot, kDataWindow, 4096, nothing) == MEP_ERR_MISMATCH);  // other size
  RANK_CHECK(rank, import(slot, UINT64_MAX, 8192, nothing) == MEP_ERR_INVALID_ARGUMENT);
  RANK_CHECK(rank, import(slot + 1, kDataWindow, 8192, nothing) == MEP_ERR_INVALID_ARGUMENT);
  for (size_t bytes = 0; bytes < 64; ++bytes) {
    const mep_result_t result = import(slot, kDataWindow, 8192, [&](WindowExport* exported) {
      exported->blob.resize(exported->blob.size() == bytes ? bytes + 1 : bytes);
    });
    RANK_CHECK(rank, is_error(result));
  }
  for (size_t bit = 0; bit < 32; ++bit) {
    RANK_CHECK(rank, import(slot, kDataWindow, 8192, [&](WindowExport* exported) {
                       exported->blob[bit / 8] ^= std::byte{1} << (bit % 8);
                     }) == MEP_ERR_DENIED);
  }
  RANK_CHECK(rank, import(slot, kDataWindow, 8192, nothing) == MEP_SUCCESS);
  // After all that the window still works.
  const uint64_t word = 1;
  RANK_CHECK(rank, post_put(from, slot, kDataWindow, 8184, &word, 8) == MEP_SUCCESS);
  RANK_CHECK(rank, post_signal(from, slot, kDataWindow, 8176, 2, false) == MEP_SUCCESS);
  RANK_CHECK(rank, rank.wait_word(kDataWindow, 8176, 2));
  RANK_CHECK(rank, rank.own_word(kDataWindow, 8184).load(std::memory_order_acquire) == 1);
}

// Whom this rank has fenced out it neither reaches nor imports from, until a new incarnation comes.
inline void fenced_body(Rank& rank) {
  RANK_CHECK(rank, rank.add_window(kWorldWindowId, 4096));
  RANK_CHECK(rank, rank.add_window(kDataWindow, 4096));
  if (rank.number() == 1) {
    const uint32_t slot = Rank::slot(0);
    const uint64_t value = 7;
    Transport& to = rank.transport();
    RANK_CHECK(rank, to.fence_out(slot) == MEP_SUCCESS);
    RANK_CHECK(rank, post_put(to, slot, kDataWindow, 0, &value, 8) == MEP_ERR_PEER_FAILED);
    RANK_CHECK(rank, post_signal(to, slot, kDataWindow, 0, 7, true) == MEP_ERR_PEER_FAILED);
    RANK_CHECK(rank, flush_posted(to, slot) == MEP_SUCCESS);  // sources are reusable all the same
    RANK_CHECK(rank,
               to.import_window(slot, kDataWindow, 4096, {}, UniqueFd()) == MEP_ERR_PEER_FAILED);
    RANK_CHECK(rank, to.fence_out(slot) == MEP_SUCCESS);  // again: no difference
    to.remove_peer(slot);
    PeerIdentity successor = rank.identity(0);
    successor.incarnation += 0x100;
    RANK_CHECK(rank, to.add_peer(rank.identity(1), successor, rank.offer_of(0), {}) == MEP_SUCCESS);
    RANK_CHECK(rank, flush_posted(to, slot) == MEP_SUCCESS);
  }
  RANK_CHECK(rank, rank.barrier());
  RANK_CHECK(rank, rank.own_word(kDataWindow, 0).load(std::memory_order_acquire) == 0);
}

// Many windows at once: imports and drops of some do not disturb puts to another.
inline void many_windows_body(Rank& rank) {
  constexpr uint64_t kWindows = 40;
  RANK_CHECK(rank, rank.add_window(kWorldWindowId, 4096));
  RANK_CHECK(rank, rank.add_window(kDataWindow, 4096));
  std::atomic<bool> stop{false};
  const uint32_t peer = 1 - rank.number();
  uint64_t puts = 0;
  std::thread putting([&] {
    do {
      ++puts;
      RANK_CHECK(rank, post_signal(rank.transport(), Rank::slot(peer), kDataWindow, 0, puts,
                                   true) == MEP_SUCCESS);
    } while (!stop.load(std::memory_order_relaxed));
  });
  const auto exchange_all = [&] {
    for (uint64_t id = 100; id < 100 + kWindows; ++id) {
      RANK_CHECK(rank, rank.add_window(id, 4096));
      const uint64_t value = id * 3;
      RANK_CHECK(rank,
                 post_put(rank.transport(), Rank::slot(peer), id, 8, &value, 8) == MEP_SUCCESS);
      RANK_CHECK(rank,
                 post_signal(rank.transport(), Rank::slot(peer), id, 16, id, true) == MEP_SUCCESS);
      RANK_CHECK(rank, rank.wait_word(id, 16, id));
      RANK_CHECK(rank, rank.barrier());
      RANK_CHECK(rank, rank.own_word(id, 8).load(std::memory_order_acquire) == id * 3);
    }
    for (uint64_t id = 100; id < 100 + kWindows; ++id) {
      rank.transport().drop_window(Rank::slot(peer), id);
      RANK_CHECK(rank, rank.transport().map(Rank::slot(peer), id) == nullptr);
    }
  };
  for (int round = 0; round < 3 && !rank.failed(); ++round) exchange_all();
  stop.store(true, std::memory_order_relaxed);
  putting.join();
  RANK_CHECK(rank, rank.barrier());
  RANK_CHECK(rank, puts > 0);
  RANK_CHECK(rank, rank.own_word(kDataWindow, 0).load(std::memory_order_acquire) > 0);
}

// Puts land in a target while it is open; what comes later is dropped, and disturbs no other target.
inline void targets_body(Rank& rank) {
  constexpr size_t kBytes = 100'000;
  RANK_CHECK(rank, rank.add_window(kWorldWindowId, 4096));
  RANK_CHECK(rank, rank.add_window(kDataWindow, 4096));
  const uint32_t peer = Rank::slot(1 - rank.number());
  Transport& transport = rank.transport();
  const auto tell = [&](uint64_t offset, uint64_t word) {
    RANK_CHECK(rank, post_signal(transport, peer, kDataWindow, offset, word, true) == MEP_SUCCESS);
  };
  if (rank.number() == 0) {
    std::vector<std::byte> first(kBytes);
    std::vector<std::byte> second(kBytes);
    const uint64_t numbers[2] = {transport.open_target(peer, first.data(), kBytes),
                                 transport.open_target(peer, second.data(), kBytes)};
    tell(0, numbers[0] + 1);
    tell(8, numbers[1] + 1);
    RANK_CHECK(rank, rank.wait_word(kDataWindow, 0, 1));
    const std::vector<std::byte> expected(kBytes,
                                          std::byte{numbers[0] == 0 ? uint8_t{0} : uint8_t{1}});
    RANK_CHECK(rank, first == expected && second == std::vector<std::byte>(kBytes));
    transport.close_target(peer, numbers[0]);
    tell(16, 1);
    RANK_CHECK(rank, rank.wait_word(kDataWindow, 0, 2));
    transport.close_target(peer, numbers[1]);
    RANK_CHECK(rank, first == expected && second == expected);
    RANK_CHECK(rank, rank.barrier());
    return;
  }
  const auto word = [&](uint64_t offset) {
    const auto& own = rank.own_word(kDataWindow, offset);
    (void)rank.wait_for([&] { return own.load(std::memory_order_acquire) != 0; });
    return own.load(std::memory_order_acquire);
  };
  const uint64_t numbers[2] = {word(0) - 1, word(8) - 1};
  RANK_CHECK(rank, numbers[0] != UINT64_MAX && numbers[1] != UINT64_MAX);
  const auto put_all = [&](uint64_t number, const std::vector<std::byte>& data) {
    for (size_t at = 0, part = 10; number != 0 && at < kBytes; at += part, part *= 9) {
      const Posting posting =
          Posting::put_to_target(number, at, data.data() + at, std::min(part, kBytes - at));
      Batch batch{{&posting, 1}};
      RANK_CHECK(rank, transport.post(peer, &batch) == MEP_SUCCESS);
    }
  };
  const std::vector<std::byte> ones(kBytes, std::byte{1});
  const std::vector<std::byte> twos(kBytes, std::byte{2});
  put_all(numbers[0], ones);
  tell(0, 1);
  (void)word(16);
  put_all(numbers[0], twos);
  put_all(numbers[1], ones);
  tell(0, 2);
  RANK_CHECK(rank, flush_posted(transport, peer) == MEP_SUCCESS);
  RANK_CHECK(rank, rank.barrier());
}

template <RankKind kind>
void put_then_signal(void**) {
  for_each_transport(kind, 3, put_signal_body);
}
template <RankKind kind>
void threads_keep_their_order(void**) {
  for_each_transport(kind, 2, threads_body);
}
template <RankKind kind>
void signals_of_several_peers(void**) {
  for_each_transport(kind, 4, concurrent_signals_body);
}
template <RankKind kind>
void no_wake_is_lost(void**) {
  for_each_transport(kind, 2, wake_body);
  for_each_transport(kind, 3, wake_body);
}
template <RankKind kind>
void bad_arguments(void**) {
  for_each_transport(kind, 2, bad_arguments_body);
}
template <RankKind kind>
void renewed_windows(void**) {
  for_each_transport(kind, 2, renew_body);
}
template <RankKind kind>
void bad_imports(void**) {
  for_each_transport(kind, 2, bad_imports_body);
}
template <RankKind kind>
void fenced_peers(void**) {
  for_each_transport(kind, 2, fenced_body);
}
template <RankKind kind>
void targets(void**) {
  for_each_transport(kind, 2, targets_body);
}
template <RankKind kind>
void many_windows(void**) {
  for_each_transport(kind, 2, many_windows_body);
}

#define MEP_CONFORMANCE_TESTS(kind)                                                              \
  cmocka_unit_test((put_then_signal<kind>)), cmocka_unit_test((threads_keep_their_order<kind>)), \
      cmocka_unit_test((signals_of_several_peers<kind>)),                                        \
      cmocka_unit_test((no_wake_is_lost<kind>)), cmocka_unit_test((bad_arguments<kind>)),        \
      cmocka_unit_test((renewed_windows<kind>)), cmocka_unit_test((bad_imports<kind>)),          \
      cmocka_unit_test((fenced_peers<kind>)), cmocka_unit_test((many_windows<kind>)),            \
      cmocka_unit_test((targets<kind>))

}  // namespace mep::test
