// Memory for the requests of a comm's messages: blocks of one size, of which some are kept for the next ones.
//
// Owned by the thread that is inside the comm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace mep {

class RequestBlocks {
 public:
  RequestBlocks() = default;
  RequestBlocks(const RequestBlocks&) = delete;
  RequestBlocks& operator=(const RequestBlocks&) = delete;
  ~RequestBlocks() {
    while (first_ != nullptr) ::operator delete(pop());
  }

  // `bytes` is always the same.
  void* take(size_t bytes) {
    void* const block = first_ != nullptr ? pop() : ::operator new(bytes);
    ++lent_;
    return block;
  }
  void give_back(void* block) {
    --lent_;
    if (kept_ == kMostKept) return ::operator delete(block);
    first_ = new (block) Kept{first_};
    ++kept_;
  }
  bool has_lent() const { return lent_ != 0; }

 private:
  // A program that once had many messages under way need not keep the memory of all.
  static constexpr uint32_t kMostKept = 256;
  struct Kept {
    Kept* behind;
  };
  void* pop() {
    Kept* const block = first_;
    first_ = block->behind;
    --kept_;
    return block;
  }

  Kept* first_ = nullptr;
  uint32_t kept_ = 0;
  uint64_t lent_ = 0;
};

}  // namespace mep
