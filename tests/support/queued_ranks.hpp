// Ranks of a comm as threads, whose threads post to queue pairs in the role of warps, and see that what they send each
// other arrives.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/api/api_guard.hpp"
#include "core/queued/queue_pairs.hpp"
#include "support/coll_ranks.hpp"
#include "support/rank_nic.hpp"
#include "transport/gpu_queue/peer.hpp"

namespace mep_test {

using mep::QueuePairs;
using mep::gpu_queue::LocalMemory;
using mep::gpu_queue::Patience;
using mep::gpu_queue::Queue;
using mep::gpu_queue::QueueError;
using mep::gpu_queue::QueuePeer;
using mep::gpu_queue::RemoteMemory;
using mep::gpu_queue::Status;

inline constexpr uint32_t kPosters = 3;
inline constexpr uint64_t kLimitMs = 100'000;
inline constexpr size_t kCellBytes = size_t{24} << 10;

// False: the condition has not come about, or another thread has found something.
template <typename Condition>
bool wait_until(Report& report, const char* what, const Condition& condition) {
  const mep::Deadline deadline = mep::Deadline::after_ms(kLimitMs);
  while (!condition() && !report.bad()) {
    if (deadline.expired()) report.add("waited too long: %s", what);
    sched_yield();
  }
  return !report.bad();
}

// --- An object of a rank --------------------------------------------------------------------------

// A window has a cell, a word and an acknowledgement for each rank and poster that writes to it, a source a cell for each
// that it goes to.
struct Places {
  size_t cell(uint32_t rank, uint32_t poster) const {
    return (size_t{rank} * kPosters + poster) * kCellBytes;
  }
  size_t source_bytes() const { return cell(ranks, 0); }
  size_t word(uint32_t rank, uint32_t poster) const {
    return source_bytes() + (size_t{rank} * kPosters + poster) * 2 * sizeof(uint64_t);
  }
  size_t read(uint32_t rank, uint32_t poster) const {
    return word(rank, poster) + sizeof(uint64_t);
  }
  size_t window_bytes() const { return word(ranks, 0); }

  uint32_t ranks;
};

// Around what user's threads do with windows.
class InCall {
 public:
  InCall(mep::Comm& comm, Report& report) : comm_(comm), is_inside_(comm.enter_call()) {
    COLL_CHECK(report, is_inside_);
  }
  ~InCall() {
    if (is_inside_) comm_.leave_call();
  }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  mep::Comm& comm_;
  const bool is_inside_;
};

// The library's object, with the memory that a GPU and its owner would have.
class Pairs {
 public:
  Pairs(mep_comm_t comm, RankNic* nic, uint32_t entries, Report& report)
      : Pairs(comm, nic->pairs(), entries, report) {}
  Pairs(mep_comm_t comm, std::unique_ptr<mep::gpu_queue::NicPairs> nic, uint32_t entries,
        Report& report)
      : comm(*comm->comm),
        places{comm->comm->size()},
        report(report),
        source(places.source_bytes()),
        entries_(entries),
        ready_(size_t{places.ranks} * entries),
        pairs_(std::make_unique<QueuePairs>(this->comm.identity(), std::move(nic))),
        rings_(pages(pairs_->ring_bytes(places.ranks, entries))) {}
  ~Pairs() { destroy(); }
  Pairs(const Pairs&) = delete;
  Pairs& operator=(const Pairs&) = delete;

  // By all ranks.
  mep_result_t make(uint64_t id) {
    const InCall call(comm, report);
    QueuePairs::Memory memory;
    memory.rings = rings_.get();
    memory.entries = entries_;
    memory.ready = ready_.data();
    mep_result_t result = pairs_->use_source({source.data(), source.size()});
    if (result != MEP_SUCCESS) return result;
    result = pairs_->offer(id, places.window_bytes(), memory);
    if (result != MEP_SUCCESS) return result;
    const mep_result_t connected =
        pairs_->connect(*comm.latest_view(), mep::Deadline::after_ms(kLimitMs));
    queues_.assign(pairs_->queues().begin(), pairs_->queues().end());
    return connected;
  }
  void destroy() {
    if (pairs_ == nullptr) return;
    const InCall call(comm, report);
    pairs_.reset();
  }
  void keep(const mep::CommView& view) { pairs_->keep(view); }
  bool reaches(const mep::CommView& view) const { return pairs_->reaches(view); }
  // While nobody posts.
  mep_result_t reach(const mep::CommView& view) {
    const InCall call(comm, report);
    std::vector<uint32_t> added;
    const mep_result_t result = pairs_->reach(view, mep::Deadline::after_ms(kLimitMs), &added);
    for (const uint32_t rank : added) {
      std::fill_n(ready_.begin() + size_t{rank} * entries_, entries_, 0);
      queues_[rank] = pairs_->queues()[rank];
    }
    return result;
  }

  QueuePeer<> peer(uint32_t rank) {
    const uint64_t now = mep::gpu_queue::SystemMemory::nanoseconds();
    return {&queues_[rank], Patience{now + kLimitMs * 1'000'000, nullptr, 0}};
  }
  const std::byte* window() const { return pairs_->window().data(); }
  bool has_new_pages() const { return pairs_->window().generation() != 0; }
  bool await(size_t offset, uint64_t value) {
    return wait_until(report, "a word",
                      [&] { return mep::load_signal(window(), offset) >= value; });
  }
  bool check(Status status, const char* what, uint32_t to) {
    if (status == Status::kOk) return true;
    QueueError error{};
    const bool failed = peer(to).error(&error);
    report.add("rank %u to %u: %s: status %u, error %d: 0x%x, 0x%x", comm.rank(), to, what,
               static_cast<uint32_t>(status), failed, error.syndrome, error.vendor);
    return false;
  }
  static unsigned long long number(uint64_t value) { return value; }

  mep::Comm& comm;
  const Places places;
  Report& report;
  std::vector<std::byte> source;

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  using Pages = std::unique_ptr<std::byte, Free>;
  static Pages pages(size_t bytes) {
    constexpr size_t kPage = 4096;
    return Pages(static_cast<std::byte*>(std::aligned_alloc(kPage, (bytes / kPage + 1) * kPage)));
  }

  const uint32_t entries_;
  std::vector<uint64_t> ready_;
  std::unique_ptr<QueuePairs> pairs_;  // destroy() ends it before its memory
  Pages rings_;
  std::vector<Queue> queues_;
};

// --- Traffic --------------------------------------------------------------------------------------

// A round of one poster to one rank: up to three pieces of any size, at any place in its cell, and what is in them.
class Round {
 public:
  struct Piece {
    size_t at;
    size_t bytes;
  };

  Round(uint32_t from, uint32_t to, uint32_t poster, uint64_t round)
      : seed_(mix(mix(test_seed() + from, to), mix(poster, round))) {
    RandomStream random(seed_);
    const uint64_t pieces = 1 + random.below(3);
    size_t at = 0;
    for (uint64_t i = 0; i < pieces; ++i) {
      at += random.below(40);
      const uint64_t most = random.one_in(2) ? 40 : (kCellBytes - 120) / pieces;
      this->pieces.push_back({at, 1 + random.below(most)});
      at += this->pieces.back().bytes;
    }
  }
  void fill(std::byte* cell) const {
    RandomStream random(mix(seed_, 1));
    for (const Piece& piece : pieces) {
      for (size_t done = 0; done < piece.bytes; done += sizeof(uint64_t)) {
        const uint64_t bits = random.bits();
        std::memcpy(cell + piece.at + done, &bits, std::min(sizeof bits, piece.bytes - done));
      }
    }
  }

  std::vector<Piece> pieces;

 private:
  uint64_t seed_;
};

using Uses = std::function<bool(uint32_t from, uint32_t to)>;  // alike both ways

// The life of poster `number` of a rank. All posters of that number on all ranks send each other rounds.
class Poster {
 public:
  Poster(Pairs* pairs, uint32_t number, const Uses& uses)
      : p_(*pairs), own_(p_.comm.rank()), number_(number) {
    for (uint32_t rank = 0; rank < p_.places.ranks; ++rank) {
      if (uses(own_, rank)) peers_.push_back(rank);
    }
    expected_.resize(p_.places.source_bytes());
  }
  void run(uint64_t rounds) {
    for (uint64_t round = 1; round <= rounds; ++round) {
      for (const uint32_t to : peers_) {
        if (!p_.await(p_.places.read(to, number_), round - 1) || !post(to, round)) return;
      }
      if (!flush()) return;
      for (const uint32_t from : peers_) {
        if (!take(from, round)) return;
      }
    }
    (void)flush();
  }

 private:
  bool post(uint32_t to, uint64_t round) {
    const Round content(own_, to, number_, round);
    std::byte* cell = source(to);
    content.fill(cell);
    QueuePeer<> peer = p_.peer(to);
    const size_t there = p_.places.cell(own_, number_);
    for (const Round::Piece& piece : content.pieces) {
      const Status status =
          peer.put(peer.in_window(there + piece.at), peer.in_source(cell + piece.at), piece.bytes);
      if (!p_.check(status, "put", to)) {
        return false;
      }
    }
    return p_.check(peer.signal(peer.in_window(p_.places.word(own_, number_)), round), "signal",
                    to);
  }
  // Afterwards the source is this thread's.
  bool flush() {
    for (const uint32_t to : peers_) {
      if (!p_.check(p_.peer(to).flush(), "flush", to)) return false;
      std::memset(source(to), 0xee, kCellBytes);
    }
    return true;
  }
  bool take(uint32_t from, uint64_t round) {
    if (!p_.await(p_.places.word(from, number_), round)) return false;
    const size_t cell = p_.places.cell(from, number_);
    std::byte* expected = expected_.data() + cell;
    Round(from, own_, number_, round).fill(expected);
    if (std::memcmp(p_.window() + cell, expected, kCellBytes) != 0) {
      p_.report.add("rank %u, poster %u: other bytes from rank %u in round %llu", own_, number_,
                    from, Pairs::number(round));
      return false;
    }
    QueuePeer<> peer = p_.peer(from);
    const RemoteMemory read = peer.in_window(p_.places.read(own_, number_));
    return p_.check(peer.signal(read, round), "acknowledgement", from);
  }
  std::byte* source(uint32_t to) { return p_.source.data() + p_.places.cell(to, number_); }

  Pairs& p_;
  const uint32_t own_;
  const uint32_t number_;
  std::vector<uint32_t> peers_;
  std::vector<std::byte> expected_;  // of the window
};

class Threads {
 public:
  ~Threads() { join(); }
  template <typename Body>
  void add(Body body) {
    threads_.emplace_back(std::move(body));
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

// A window and its words are new.
inline void start_traffic(Threads* threads, Pairs* pairs, uint64_t rounds, const Uses& uses) {
  for (uint32_t number = 0; number < kPosters; ++number) {
    threads->add([=] { Poster(pairs, number, uses).run(rounds); });
  }
}
inline void run_traffic(Pairs* pairs, uint64_t rounds, const Uses& uses) {
  Threads threads;
  start_traffic(&threads, pairs, rounds, uses);
}
inline bool all(uint32_t from, uint32_t to) {
  return from != to;
}

}  // namespace mep_test
