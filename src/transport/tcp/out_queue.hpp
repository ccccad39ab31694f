// Bytes on their way out, in order: small ones are copied, large ones stay where they are until they
// are sent or own_all() is called.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

namespace mep::tcp {

class OutQueue {
 public:
  // Room for `bytes` (at most kMaxCopyBytes) at the end, to be filled by the caller now.
  std::byte* extend(size_t bytes);
  // `data` stays readable until it is sent or own_all() was called. Numbers grow.
  void append_external(const std::byte* data, size_t bytes, uint64_t number);
  // The number of the first that still has to stay readable; 0: none.
  uint64_t first_external() const;
  // Copies all that is external.
  void own_all();
  void clear();

  bool empty() const { return bytes_ == 0; }
  size_t bytes() const { return bytes_; }
  // The first pieces; returns how many.
  int pieces(iovec* out, int capacity) const;
  // Copies up to `capacity` bytes from the front.
  size_t copy_front(std::byte* out, size_t capacity) const;
  void consume(size_t bytes);

  static constexpr size_t kMaxCopyBytes = 8192;

 private:
  static constexpr size_t kChunkBytes = size_t{64} << 10;
  struct Piece {
    const std::byte* data;
    size_t bytes;
    std::unique_ptr<std::byte[]> owned;  // data of this piece alone
    uint64_t number;                     // of what is external
    bool in_chunk;
    bool ends_chunk;  // the front chunk is free once this piece is sent
  };

  void open_chunk();

  std::deque<Piece> pieces_;
  std::deque<std::unique_ptr<std::byte[]>> chunks_;  // the last one is written to
  std::unique_ptr<std::byte[]> spare_;
  size_t used_ = 0;        // of the last chunk
  size_t front_sent_ = 0;  // of the first piece
  size_t bytes_ = 0;
};

}  // namespace mep::tcp
