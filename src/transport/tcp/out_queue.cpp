#include "transport/tcp/out_queue.hpp"

#include <algorithm>
#include <cstring>

namespace mep::tcp {

// The chunk that was written to until now is free when its last piece is sent, or now if it has none.
void OutQueue::open_chunk() {
  if (!chunks_.empty()) {
    Piece* last = nullptr;
    for (auto piece = pieces_.rbegin(); piece != pieces_.rend(); ++piece) {
      if (!piece->in_chunk) continue;
      if (!piece->ends_chunk) last = &*piece;
      break;
    }
    if (last != nullptr) {
      last->ends_chunk = true;
    } else {
      spare_ = std::move(chunks_.back());
      chunks_.pop_back();
    }
  }
  chunks_.push_back(spare_ != nullptr ? std::move(spare_)
                                      : std::make_unique<std::byte[]>(kChunkBytes));
  used_ = 0;
}

std::byte* OutQueue::extend(size_t bytes) {
  if (chunks_.empty() || kChunkBytes - used_ < bytes) open_chunk();
  std::byte* place = chunks_.back().get() + used_;
  used_ += bytes;
  bytes_ += bytes;
  if (!pieces_.empty()) {
    Piece& last = pieces_.back();
    if (last.in_chunk && last.data + last.bytes == place && !last.ends_chunk) {
      last.bytes += bytes;
      return place;
    }
  }
  pieces_.push_back({place, bytes, nullptr, true, false});
  return place;
}

void OutQueue::append_external(const std::byte* data, size_t bytes) {
  pieces_.push_back({data, bytes, nullptr, false, false});
  bytes_ += bytes;
}

void OutQueue::own_all() {
  for (Piece& piece : pieces_) {
    if (piece.in_chunk || piece.owned != nullptr) continue;
    // What of it is sent already is not worth a special case.
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
