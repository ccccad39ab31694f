#include "transport/tcp/out_queue.hpp"

#include <algorithm>
#include <cstring>

namespace mep::tcp {

// The chunk that was written to until now is free when its last piece is sent; if it has none, it begins
// anew.
void OutQueue::open_chunk() {
  const auto last = std::find_if(pieces_.rbegin(), pieces_.rend(),
                                 [](const Piece& piece) { return piece.in_chunk; });
  const bool is_used = last != pieces_.rend() && !last->ends_chunk;
  if (is_used) last->ends_chunk = true;
  if (is_used || chunks_.empty()) {
    if (spare_ == nullptr) spare_ = std::make_unique<std::byte[]>(kChunkBytes);
    chunks_.push_back(std::move(spare_));
  }
  used_ = 0;
}

std::byte* OutQueue::extend(size_t bytes) {
  if (chunks_.empty() || kChunkBytes - used_ < bytes) open_chunk();
  std::byte* place = chunks_.back().get() + used_;
  Piece* const last = pieces_.empty() ? nullptr : &pieces_.back();
  if (last != nullptr && last->in_chunk && last->data + last->bytes == place && !last->ends_chunk) {
    last->bytes += bytes;
  } else {
    pieces_.push_back({place, bytes, nullptr, 0, true, false});
  }
  used_ += bytes;
  bytes_ += bytes;
  return place;
}

void OutQueue::append_external(const std::byte* data, size_t bytes, uint64_t number) {
  pieces_.push_back({data, bytes, nullptr, number, false, false});
  bytes_ += bytes;
}

uint64_t OutQueue::first_external() const {
  const auto found = std::find_if(pieces_.begin(), pieces_.end(), [](const Piece& piece) {
    return !piece.in_chunk && piece.owned == nullptr;
  });
  return found == pieces_.end() ? 0 : found->number;
}

void OutQueue::own_all() {
  for (Piece& piece : pieces_) {
    if (piece.in_chunk || piece.owned != nullptr) continue;
    // The part that is sent already is not worth a special case.
    piece.owned = std::make_unique_for_overwrite<std::byte[]>(piece.bytes);
    std::memcpy(piece.owned.get(), piece.data, piece.bytes);
    piece.data = piece.owned.get();
  }
}

void OutQueue::clear() {
  pieces_.clear();
  chunks_.clear();
  used_ = 0;
  front_sent_ = 0;
  bytes_ = 0;
}

int OutQueue::pieces(iovec* out, int capacity) const {
  int count = 0;
  size_t skip = front_sent_;
  for (const Piece& piece : pieces_) {
    if (count == capacity) break;
    out[count].iov_base = const_cast<std::byte*>(piece.data + skip);
    out[count].iov_len = piece.bytes - skip;
    skip = 0;
    ++count;
  }
  return count;
}

size_t OutQueue::copy_front(std::byte* out, size_t capacity) const {
  size_t copied = 0;
  size_t skip = front_sent_;
  for (const Piece& piece : pieces_) {
    if (copied == capacity) break;
    const size_t part = std::min(piece.bytes - skip, capacity - copied);
    std::memcpy(out + copied, piece.data + skip, part);
    copied += part;
    skip = 0;
  }
  return copied;
}

void OutQueue::consume(size_t bytes) {
  bytes_ -= bytes;
  while (bytes > 0) {
    Piece& front = pieces_.front();
    const size_t left = front.bytes - front_sent_;
    if (bytes < left) {
      front_sent_ += bytes;
      return;
    }
    bytes -= left;
    front_sent_ = 0;
    if (front.ends_chunk) {
      spare_ = std::move(chunks_.front());
      chunks_.pop_front();
    }
    pieces_.pop_front();
  }
  // All sent: the chunk begins anew.
  if (pieces_.empty()) used_ = 0;
}

}  // namespace mep::tcp
