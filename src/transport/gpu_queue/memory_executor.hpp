// A peer whose memory this process has mapped: RemoteRegion::place is the address of the region here.
#pragma once

#include <bit>
#include <cstring>

#include "transport/gpu_queue/executor.hpp"

namespace mep::gpu_queue {

class MemoryExecutor final : public Executor {
 public:
  Executed put(const RemoteRegion& region, uint64_t offset, const void* from,
               size_t bytes) override {
    std::memcpy(at<uint8_t>(region, offset), from, bytes);
    return Executed::kDone;
  }
  Executed write_word(const RemoteRegion& region, uint64_t offset, uint64_t word) override {
    if (!is_aligned(region, offset)) return Executed::kRefused;
    // Release: publishes the puts before it to the peer that acquires the word.
    __atomic_store_n(at<uint64_t>(region, offset), word, __ATOMIC_RELEASE);
    return Executed::kDone;
  }
  Executed fetch_add(const RemoteRegion& region, uint64_t offset, uint64_t add,
                     uint64_t* before) override {
    if (!is_aligned(region, offset)) return Executed::kRefused;
    // Release: as above. Acquire: the poster that reads *before sees what the peer published by the word.
    *before = __atomic_fetch_add(at<uint64_t>(region, offset), add, __ATOMIC_ACQ_REL);
    return Executed::kDone;
  }
  bool counts(Counts* out) override {
    *out = {};
    return true;
  }

 private:
  static bool is_aligned(const RemoteRegion& region, uint64_t offset) {
    return (region.place + offset) % 8 == 0;
  }
  template <typename T>
  static T* at(const RemoteRegion& region, uint64_t offset) {
    return std::bit_cast<T*>(region.place + offset);
  }
};

}  // namespace mep::gpu_queue
