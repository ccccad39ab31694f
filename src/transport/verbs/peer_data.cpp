// Puts and signals: how bytes get into work requests, and what a full queue answers.
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

mep_result_t Peer::post(Batch* batch) {
  const Lock lock(mutex_);
  for (; batch->next < batch->postings.size(); ++batch->next) {
    MEP_TRY(usable());
    const Posting& posting = batch->postings[batch->next];
    MEP_TRY(posting.is_signal ? signal(posting, &batch->resume) : put(posting, &batch->resume));
    batch->resume = 0;
    ++posted_;
  }
  return MEP_SUCCESS;
}

mep_result_t Peer::put(const Posting& posting, uint64_t* done) {
  RemoteWindow target;
  MEP_TRY(find_target(posting.window, posting.offset, posting.bytes, &target));
  if (posting.bytes == 0) return MEP_SUCCESS;
  if (posting.local == nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "a put of %zu bytes has no source", posting.bytes);
  }
  if (posting.bytes <= rails_[0].connection->max_inline_bytes()) return put_inline(target, posting);
  Registration known;
  if (fabric_->memory().find(posting.local, posting.bytes, &known)) {
    return put_direct(target, posting, known, done);
  }
  RegistrationCache::Ticket ticket = 0;
  if (posting.bytes >= kMinCachedBytes &&
      fabric_->memory().borrow(posting.local, posting.bytes, &known, &ticket)) {
    borrowed_.push_back({posted_ + 1, ticket});
    return put_direct(target, posting, known, done);
  }
  if (posting.bytes <= kMaxSharedBytes) return put_into_open_chunk(target, posting);
  return put_copied(target, posting, done);
}

mep_result_t Peer::put_inline(const RemoteWindow& target, const Posting& posting) {
  MEP_TRY(check_room(0));
  Connection::Write write;
  write.local = posting.local;
  write.bytes = static_cast<uint32_t>(posting.bytes);
  write.remote = target.address + posting.offset;
  write.rkey = target.rkeys[0];
  write.is_inline = true;
  write.may_wait = true;
  return post(0, write, nullptr);
}

// Signals wait until it has arrived over rails other than theirs.
void Peer::note_put(size_t rail, const RemoteWindow& target) {
  if (rail == 0) return;
  settling_[rail].last_put = posted_ + 1;
  settling_[rail].remote = target.address;
  settling_[rail].rkey = target.rkeys[rail];
}

mep_result_t Peer::put_direct(const RemoteWindow& target, const Posting& posting,
                              const Registration& source, uint64_t* done) {
  const auto* local = static_cast<const std::byte*>(posting.local);
  const Striping stripes(posting.bytes, rails_.size());
  for (size_t rail = 0; rail < stripes.rails(); ++rail) {
    const size_t end = stripes.begin(rail + 1);
    const size_t most = rails_[rail].connection->hca().max_message_bytes();
    while (*done < end) {
      const size_t piece = std::min<size_t>(end - *done, most);
      MEP_TRY(check_room(rail));
      Connection::Write write;
      write.local = local + *done;
      write.lkey = source.lkeys[rails_[rail].hca];
      write.bytes = static_cast<uint32_t>(piece);
      write.remote = target.address + posting.offset + *done;
      write.rkey = target.rkeys[rail];
      write.may_wait = posting.bytes <= kMaxWaitingBytes;
      uint64_t number = 0;
      MEP_TRY(post(rail, write, &number));
      reading_.push_back({posted_ + 1, rail, number});
      note_put(rail, target);
      *done += piece;
    }
  }
  return MEP_SUCCESS;
}

mep_result_t Peer::put_copied(const RemoteWindow& target, const Posting& posting, uint64_t* done) {
  const auto* local = static_cast<const std::byte*>(posting.local);
  const size_t rails = Striping(posting.bytes, rails_.size()).rails();
  while (*done < posting.bytes) {
    const size_t rail = static_cast<size_t>(*done / BouncePool::kChunkBytes) % rails;
    MEP_TRY(check_room(rail));
    uint32_t chunk = 0;
    MEP_TRY(take_chunk(&chunk));
    const size_t piece = std::min<size_t>(posting.bytes - *done, BouncePool::kChunkBytes);
    std::memcpy(fabric_->bounce().data(chunk), local + *done, piece);
    Connection::Write write;
    write.local = fabric_->bounce().data(chunk);
    write.lkey = fabric_->bounce().registration().lkeys[rails_[rail].hca];
    write.bytes = static_cast<uint32_t>(piece);
    write.remote = target.address + posting.offset + *done;
    write.rkey = target.rkeys[rail];
    write.signalled = true;
    uint64_t number = 0;
    const mep_result_t result = post(rail, write, &number);
    if (result != MEP_SUCCESS) {
      fabric_->bounce().give(chunk);
      return result;
    }
    copied_.push_back({chunk, rail, number});
    note_put(rail, target);
    *done += piece;
  }
  return MEP_SUCCESS;
}

mep_result_t Peer::put_into_open_chunk(const RemoteWindow& target, const Posting& posting) {
  MEP_TRY(check_room(0));
  if (open_chunk_.is_open && BouncePool::kChunkBytes - open_chunk_.used < posting.bytes) {
    retire_open_chunk();
  }
  if (!open_chunk_.is_open) {
    uint32_t chunk = 0;
    MEP_TRY(take_chunk(&chunk));
    open_chunk_ = {true, chunk, 0, 0};
  }
  std::byte* place = fabric_->bounce().data(open_chunk_.chunk) + open_chunk_.used;
  std::memcpy(place, posting.local, posting.bytes);
  Connection::Write write;
  write.local = place;
  write.lkey = fabric_->bounce().registration().lkeys[rails_[0].hca];
  write.bytes = static_cast<uint32_t>(posting.bytes);
  write.remote = target.address + posting.offset;
  write.rkey = target.rkeys[0];
  write.may_wait = true;
  uint64_t number = 0;
  MEP_TRY(post(0, write, &number));
  open_chunk_.number = number;
  open_chunk_.used =
      std::min((open_chunk_.used + posting.bytes + 63) / 64 * 64, BouncePool::kChunkBytes);
  return MEP_SUCCESS;
}

mep_result_t Peer::signal(const Posting& posting, uint64_t* settles) {
  RemoteWindow target;
  MEP_TRY(find_target(posting.window, posting.offset, sizeof posting.word, &target));
  if (posting.offset % sizeof posting.word != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "a signal at offset %llu, which is no multiple of 8",
                static_cast<unsigned long long>(posting.offset));
  }
  if (posting.wake && !windows_.contains(kWorldWindowId)) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "slot %u cannot be woken: its world window is not imported", identity_.slot);
  }
  // Settles what the calling thread had posted; others may go on posting while this is tried again.
  if (*settles == 0) *settles = posted_ + 1;
  MEP_TRY(settle_other_rails(*settles - 1));
  MEP_TRY(check_room(0));
  // One that need not wake can be written by the HCA alone, but must not overtake others.
  if (posting.wake || sent_.in_use()) return signal_by_code(posting);
  Connection::Write write;
  write.local = &posting.word;
  write.bytes = sizeof posting.word;
  write.remote = target.address + posting.offset;
  write.rkey = target.rkeys[0];
  write.is_inline = true;
  return post(0, write, nullptr);
}

// With the put before it, where that still waits; else in an empty message.
mep_result_t Peer::signal_by_code(const Posting& posting) {
  Connection::Write write;
  SignalDefinition definition;
  uint32_t code = 0;
  if (sent_.encode(posting.window, posting.offset, posting.word, &code, &definition)) {
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
mep_result_t Peer::settle_other_rails(uint64_t needed) {
  const auto is_settled = [&](size_t rail) {
    Settling& state = settling_[rail];
    if (state.read != 0 && rails_[rail].connection->queue().completed() >= state.read) {
      state.settled = state.covers;
      state.read = 0;
    }
    return state.settled >= std::min(needed, state.last_put);
  };
  bool is_waiting = false;
  for (size_t rail = 1; rail < rails_.size(); ++rail) {
    if (is_settled(rail)) continue;
    Settling& state = settling_[rail];
    if (state.read == 0) {
      MEP_TRY(check_room(rail));
      Connection::Write read;
      read.local = fabric_->bounce().waste();
      read.lkey = fabric_->bounce().registration().lkeys[rails_[rail].hca];
      read.bytes = sizeof(uint64_t);
      read.remote = state.remote;
      read.rkey = state.rkey;
      read.signalled = true;
      read.is_read = true;
      MEP_TRY(post(rail, read, &state.read));
      state.covers = posted_;
    }
    is_waiting = true;
  }
  if (!is_waiting) return MEP_SUCCESS;
  MEP_TRY(poll_rails());
  for (size_t rail = 1; rail < rails_.size(); ++rail) {
    if (!is_settled(rail)) return kWouldBlock;
  }
  return MEP_SUCCESS;
}

mep_result_t Peer::send_mark(uint64_t number) {
  MEP_TRY(settle_other_rails(posted_));
  MEP_TRY(check_room(0));
  Connection::Write write;
  write.wake = true;
  write.arrival = kMarkBit | static_cast<uint32_t>(number);
  MEP_TRY(post(0, write, nullptr));
  sent_mark_ = number;
  return MEP_SUCCESS;
}

bool Peer::quiesced(uint64_t number) {
  const Lock lock(mutex_);
  asked_mark_ = std::max(asked_mark_, number);
  if (usable() == MEP_SUCCESS) {
    // A rank that has not imported a window of the peer has posted nothing, and cannot receive yet.
    if (!connected_) return true;
    if (sent_mark_ < number && send_mark(number) == kWouldBlock) return false;
  }
  return arrived_->marked() >= number;
}

mep_result_t Peer::completion(bool is_urgent, Completion* out) {
  const Lock lock(mutex_);
  *out = {posted_, posted_};
  if (is_fenced()) return MEP_SUCCESS;  // the queue pairs are gone, and with them every read
  MEP_TRY(usable());
  if (reading_.empty()) return MEP_SUCCESS;
  // Without it nothing may tell of the last ones.
  if (is_urgent && !have_last_signalled()) return usable();
  MEP_TRY(poll_rails());
  give_back_done();
  out->completed = completed();
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

mep_result_t Peer::check_room(size_t rail) {
  if (!rails_[rail].connection->queue().full()) return MEP_SUCCESS;
  MEP_TRY(poll_rails());
  return rails_[rail].connection->queue().full() ? kWouldBlock : MEP_SUCCESS;
}

mep_result_t Peer::take_chunk(uint32_t* chunk) {
  if (fabric_->bounce().take(chunk)) return MEP_SUCCESS;
  MEP_TRY(poll_rails());
  give_back_done();
  if (fabric_->bounce().take(chunk)) return MEP_SUCCESS;
  fabric_->note_no_chunk();
  return kWouldBlock;
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
  std::erase_if(reading_, [&](const Reading& reading) {
    return rails_[reading.rail].connection->queue().completed() >= reading.number;
  });
  if (!borrowed_.empty()) give_back_borrowed(completed());
}

void Peer::give_back_borrowed(uint64_t up_to) {
  while (!borrowed_.empty() && borrowed_.front().posting <= up_to) {
    fabric_->memory().give_back(borrowed_.front().ticket);
    borrowed_.pop_front();
  }
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
