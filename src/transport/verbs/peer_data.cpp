// Puts, signals and flush: how bytes get into work requests, and how a full queue is waited for.
#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/status.hpp"
#include "transport/verbs/peer.hpp"

namespace mep::verbs {
namespace {

// Smaller sources are copied even where registering them is allowed: that costs less.
constexpr size_t kMinCachedBytes = size_t{256} << 10;
// Puts of at most this share a chunk with others.
constexpr size_t kMaxSharedBytes = BouncePool::kChunkBytes / 2;
// Smaller puts may wait for the signal behind them, see Connection::post().
constexpr size_t kMaxWaitingBytes = size_t{16} << 10;

}  // namespace

mep_result_t Peer::put(uint64_t window, uint64_t offset, const void* local, size_t bytes) {
  Lock lock(mutex_);
  MEP_TRY(usable());
  RemoteWindow target;
  MEP_TRY(find_target(window, offset, bytes, &target));
  if (bytes == 0) return MEP_SUCCESS;
  if (local == nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "a put of %zu bytes has no source", bytes);
  }
  if (bytes <= rails_[0].connection->max_inline_bytes()) {
    return put_inline(lock, target, offset, local, bytes);
  }
  const auto* source = static_cast<const std::byte*>(local);
  Registration known;
  if (fabric_->memory().find(local, bytes, &known)) {
    return put_direct(lock, target, offset, source, bytes, known);
  }
  RegistrationCache::Ticket ticket = 0;
  if (bytes >= kMinCachedBytes && fabric_->memory().borrow(local, bytes, &known, &ticket)) {
    mep_result_t result = put_direct(lock, target, offset, source, bytes, known);
    if (result == MEP_SUCCESS) result = flush_rails(lock);
    fabric_->memory().give_back(ticket);
    return result;
  }
  return put_copied(lock, target, offset, source, bytes);
}

mep_result_t Peer::put_inline(Lock& lock, const RemoteWindow& target, uint64_t offset,
                              const void* local, size_t bytes) {
  MEP_TRY(wait_for_room(lock, 0));
  Connection::Write write;
  write.local = local;
  write.bytes = static_cast<uint32_t>(bytes);
  write.remote = target.address + offset;
  write.rkey = target.rkeys[0];
  write.is_inline = true;
  write.may_wait = true;
  return post(0, write, nullptr);
}

mep_result_t Peer::put_direct(Lock& lock, const RemoteWindow& target, uint64_t offset,
                              const std::byte* local, size_t bytes, const Registration& source) {
  const Striping stripes(bytes, rails_.size());
  for (size_t rail = 0; rail < stripes.rails(); ++rail) {
    const size_t end = stripes.begin(rail + 1);
    const size_t most = rails_[rail].connection->hca().max_message_bytes();
    for (size_t at = stripes.begin(rail); at < end;) {
      const size_t piece = std::min(end - at, most);
      MEP_TRY(wait_for_room(lock, rail));
      Connection::Write write;
      write.local = local + at;
      write.lkey = source.lkeys[rails_[rail].hca];
      write.bytes = static_cast<uint32_t>(piece);
      write.remote = target.address + offset + at;
      write.rkey = target.rkeys[rail];
      write.may_wait = bytes <= kMaxWaitingBytes;
      MEP_TRY(post(rail, write, nullptr));
      at += piece;
    }
    if (rail > 0) unsettled_[rail] = {true, target.address, target.rkeys[rail]};
  }
  return MEP_SUCCESS;
}

mep_result_t Peer::put_copied(Lock& lock, const RemoteWindow& target, uint64_t offset,
                              const std::byte* local, size_t bytes) {
  if (bytes <= kMaxSharedBytes) return put_into_open_chunk(lock, target, offset, local, bytes);
  const size_t rails = Striping(bytes, rails_.size()).rails();
  size_t rail = 0;
  for (size_t at = 0; at < bytes;) {
    const size_t piece = std::min(bytes - at, BouncePool::kChunkBytes);
    uint32_t chunk = 0;
    MEP_TRY(take_chunk(lock, &chunk));
    std::memcpy(fabric_->bounce().data(chunk), local + at, piece);
    Connection::Write write;
    write.local = fabric_->bounce().data(chunk);
    write.lkey = fabric_->bounce().registration().lkeys[rails_[rail].hca];
    write.bytes = static_cast<uint32_t>(piece);
    write.remote = target.address + offset + at;
    write.rkey = target.rkeys[rail];
    write.signalled = true;
    uint64_t number = 0;
    mep_result_t result = wait_for_room(lock, rail);
    if (result == MEP_SUCCESS) result = post(rail, write, &number);
    if (result != MEP_SUCCESS) {
      fabric_->bounce().give(chunk);
      return result;
    }
    copied_.push_back({chunk, rail, number});
    if (rail > 0) unsettled_[rail] = {true, target.address, target.rkeys[rail]};
    rail = (rail + 1) % rails;
    at += piece;
  }
  return MEP_SUCCESS;
}

mep_result_t Peer::put_into_open_chunk(Lock& lock, const RemoteWindow& target, uint64_t offset,
                                       const std::byte* local, size_t bytes) {
  MEP_TRY(wait_for_room(lock, 0));
  // Neither wait below leaves with room in the queue or the chunk promised: another thread may have
  // used it up meanwhile.
  while (!open_chunk_.is_open || BouncePool::kChunkBytes - open_chunk_.used < bytes ||
         rails_[0].connection->queue().full()) {
    if (!open_chunk_.is_open || BouncePool::kChunkBytes - open_chunk_.used < bytes) {
      retire_open_chunk();
      uint32_t chunk = 0;
      MEP_TRY(take_chunk(lock, &chunk));
      if (open_chunk_.is_open) {
        fabric_->bounce().give(chunk);
      } else {
        open_chunk_ = {true, chunk, 0, 0};
      }
    }
    MEP_TRY(wait_for_room(lock, 0));
  }
  std::byte* place = fabric_->bounce().data(open_chunk_.chunk) + open_chunk_.used;
  std::memcpy(place, local, bytes);
  Connection::Write write;
  write.local = place;
  write.lkey = fabric_->bounce().registration().lkeys[rails_[0].hca];
  write.bytes = static_cast<uint32_t>(bytes);
  write.remote = target.address + offset;
  write.rkey = target.rkeys[0];
  write.may_wait = true;
  uint64_t number = 0;
  MEP_TRY(post(0, write, &number));
  open_chunk_.number = number;
  open_chunk_.used = std::min((open_chunk_.used + bytes + 63) / 64 * 64, BouncePool::kChunkBytes);
  return MEP_SUCCESS;
}

mep_result_t Peer::signal(uint64_t window, uint64_t offset, uint64_t word, bool wake) {
  Lock lock(mutex_);
  MEP_TRY(usable());
  RemoteWindow target;
  MEP_TRY(find_target(window, offset, sizeof(word), &target));
  if (offset % sizeof(word) != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "a signal at offset %llu, which is no multiple of 8",
                static_cast<unsigned long long>(offset));
  }
  if (wake && !windows_.contains(kWorldWindowId)) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "slot %u cannot be woken: its world window is not imported", identity_.slot);
  }
  MEP_TRY(settle_other_rails(lock));
  MEP_TRY(wait_for_room(lock, 0));
  // One that need not wake can be written by the HCA alone, but must not overtake others.
  if (wake || sent_.in_use()) return signal_by_code(window, offset, word);
  Connection::Write write;
  write.local = &word;
  write.bytes = sizeof(word);
  write.remote = target.address + offset;
  write.rkey = target.rkeys[0];
  write.is_inline = true;
  return post(0, write, nullptr);
}

// With the put before it, where that still waits; else in an empty message.
mep_result_t Peer::signal_by_code(uint64_t window, uint64_t offset, uint64_t word) {
  Connection::Write write;
  SignalDefinition definition;
  uint32_t code = 0;
  if (sent_.encode(window, offset, word, &code, &definition)) {
    bool joined = false;
    if (rails_[0].connection->join_last(code, &joined) != MEP_SUCCESS) {
      return broken(last_error_text());
    }
    if (joined) {
      fabric_->note_posted();
      return MEP_SUCCESS;
    }
    write.wake = true;
    write.arrival = code;
  } else {
    write.local = &definition;
    write.bytes = sizeof(definition);
    write.is_inline = true;
    write.is_send = true;
  }
  return post(0, write, nullptr);
}

// An acknowledged write has reached the other HCA, not yet its host's memory; an answered read behind
// it has pushed it there.
mep_result_t Peer::settle_other_rails(Lock& lock) {
  std::array<uint64_t, kMaxRails> reads{};
  for (size_t rail = 1; rail < rails_.size(); ++rail) {
    if (!unsettled_[rail].is_set) continue;
    const Unsettled unsettled = unsettled_[rail];
    MEP_TRY(wait_for_room(lock, rail));
    Connection::Write read;
    read.local = fabric_->bounce().waste();
    read.lkey = fabric_->bounce().registration().lkeys[rails_[rail].hca];
    read.bytes = sizeof(uint64_t);
    read.remote = unsettled.remote;
    read.rkey = unsettled.rkey;
    read.signalled = true;
    read.is_read = true;
    MEP_TRY(post(rail, read, &reads[rail]));
    unsettled_[rail].is_set = false;
  }
  for (size_t rail = 1; rail < rails_.size(); ++rail) {
    if (reads[rail] != 0) MEP_TRY(wait_for_number(lock, rail, reads[rail]));
  }
  return MEP_SUCCESS;
}

mep_result_t Peer::mark(uint64_t number) {
  Lock lock(mutex_);
  MEP_TRY(usable());
  MEP_TRY(settle_other_rails(lock));
  MEP_TRY(wait_for_room(lock, 0));
  Connection::Write write;
  write.wake = true;
  write.arrival = kMarkBit | static_cast<uint32_t>(number);
  return post(0, write, nullptr);
}

mep_result_t Peer::flush() {
  Lock lock(mutex_);
  if (is_fenced()) return MEP_SUCCESS;  // the queue pairs are gone, and with them every read
  MEP_TRY(usable());
  return flush_rails(lock);
}

mep_result_t Peer::flush_rails(Lock& lock) {
  for (size_t rail = 0; rail < rails_.size(); ++rail) {
    if (rails_[rail].connection->queue().idle()) continue;
    if (!rails_[rail].connection->queue().last_is_signalled()) {
      MEP_TRY(wait_for_room(lock, rail));
      if (rails_[rail].connection->post_marker() != MEP_SUCCESS) return broken(last_error_text());
    }
    MEP_TRY(wait_for_number(lock, rail, rails_[rail].connection->queue().posted()));
  }
  return MEP_SUCCESS;
}

// --- Queues -----------------------------------------------------------------------------------------

mep_result_t Peer::post(size_t rail, const Connection::Write& write, uint64_t* number) {
  const mep_result_t result = rails_[rail].connection->post(write, number);
  if (result != MEP_SUCCESS) return broken(last_error_text());
  fabric_->note_posted();
  return MEP_SUCCESS;
}

mep_result_t Peer::poll_rails() {
  for (Rail& rail : rails_) {
    if (rail.connection->ring() != MEP_SUCCESS || rail.connection->poll() != MEP_SUCCESS) {
      return broken(last_error_text());
    }
  }
  return MEP_SUCCESS;
}

mep_result_t Peer::pause(Lock& lock) {
  lock.unlock();
  fabric_->help();
  sched_yield();
  lock.lock();
  return usable();
}

mep_result_t Peer::wait_for_room(Lock& lock, size_t rail) {
  while (rails_[rail].connection->queue().full()) {
    MEP_TRY(poll_rails());
    if (!rails_[rail].connection->queue().full()) break;
    MEP_TRY(pause(lock));
  }
  return MEP_SUCCESS;
}

mep_result_t Peer::wait_for_number(Lock& lock, size_t rail, uint64_t number) {
  constexpr int kSpins = 200;
  int spins = 0;
  while (rails_[rail].connection->queue().completed() < number) {
    MEP_TRY(poll_rails());
    if (rails_[rail].connection->queue().completed() >= number) break;
    if (++spins % kSpins == 0) MEP_TRY(pause(lock));
  }
  give_back_done();
  return MEP_SUCCESS;
}

mep_result_t Peer::take_chunk(Lock& lock, uint32_t* chunk) {
  while (!fabric_->bounce().take(chunk)) {
    MEP_TRY(poll_rails());
    give_back_done();
    if (fabric_->bounce().take(chunk)) break;
    MEP_TRY(pause(lock));
  }
  return MEP_SUCCESS;
}

void Peer::retire_open_chunk() {
  if (!open_chunk_.is_open) return;
  copied_.push_back({open_chunk_.chunk, 0, open_chunk_.number});
  open_chunk_ = {};
}

void Peer::give_back_done() {
  std::erase_if(copied_, [&](const Copied& copied) {
    if (rails_[copied.rail].connection->queue().completed() < copied.number) return false;
    fabric_->bounce().give(copied.chunk);
    return true;
  });
}

void Peer::progress() {
  const Lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || failed_ || is_fenced()) return;
  if (poll_rails() == MEP_SUCCESS) give_back_done();
}

void Peer::reclaim() {
  const Lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || failed_ || is_fenced()) return;
  retire_open_chunk();
  if (!copied_.empty() && have_last_signalled() && poll_rails() == MEP_SUCCESS) give_back_done();
}

bool Peer::check() {
  const Lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return true;
  if (failed_ || is_fenced() || !connected_) return false;
  if (!have_last_signalled() || poll_rails() != MEP_SUCCESS) return false;
  give_back_done();
  return std::any_of(rails_.begin(), rails_.end(),
                     [](const Rail& rail) { return !rail.connection->queue().idle(); });
}

// False: the peer is broken.
bool Peer::have_last_signalled() {
  for (Rail& rail : rails_) {
    const SendQueue& queue = rail.connection->queue();
    if (queue.idle() || queue.last_is_signalled() || queue.full()) continue;
    if (rail.connection->post_marker() == MEP_SUCCESS) continue;
    (void)broken(last_error_text());
    return false;
  }
  return true;
}

}  // namespace mep::verbs
