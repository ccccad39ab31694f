// Registered memory through which puts go whose source the HCA does not know: the bytes are copied into
// a chunk, and the caller's memory is free at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "transport/verbs/registration_cache.hpp"

namespace mep::verbs {

class BouncePool {
 public:
  static constexpr size_t kChunkBytes = size_t{32} << 10;
  static constexpr uint32_t kChunks = 256;

  explicit BouncePool(Registrar* registrar) : registrar_(registrar) {}
  ~BouncePool();
  BouncePool(const BouncePool&) = delete;
  BouncePool& operator=(const BouncePool&) = delete;

  [[nodiscard]] mep_result_t open();
  // False: all are in use.
  bool take(uint32_t* chunk);
  void give(uint32_t chunk);
  bool is_empty();
  std::byte* data(uint32_t chunk) const { return memory_ + chunk * kChunkBytes; }
  // Eight bytes that nobody reads, for reads whose answer only tells that it came.
  std::byte* waste() const { return memory_ + kChunks * kChunkBytes; }
  const Registration& registration() const { return registration_; }

 private:
  static constexpr size_t kBytes = kChunks * kChunkBytes + 4096;
  Registrar* registrar_;
  std::byte* memory_ = nullptr;
  Registration registration_;
  bool registered_ = false;
  std::mutex mutex_;
  std::vector<uint32_t> free_;
};

}  // namespace mep::verbs
