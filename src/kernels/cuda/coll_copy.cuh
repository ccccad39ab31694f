// Moving bytes between the caller's buffers, which need no alignment, and windows, whose places begin
// at multiples of 16 bytes and end in padding: windows are always read and written 16 bytes at a time.
#pragma once

#include <cstdint>

namespace mep::device {

__device__ inline bool is_aligned(const void* memory) {
  return (reinterpret_cast<uintptr_t>(memory) & 15) == 0;
}

// 16 bytes at `from + offset` of a buffer of `bytes`; what lies beyond its end is 0.
__device__ inline uint4 load_user(const uint8_t* from, uint64_t offset, uint64_t bytes,
                                  bool aligned) {
  if (aligned && offset + 16 <= bytes) return *reinterpret_cast<const uint4*>(from + offset);
  const uint32_t count = bytes - offset < 16 ? static_cast<uint32_t>(bytes - offset) : 16;
  uint32_t words[4] = {};
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) {
    if (i < count) words[i / 4] |= uint32_t{from[offset + i]} << (i % 4 * 8);
  }
  return {words[0], words[1], words[2], words[3]};
}

__device__ inline void store_user(uint8_t* to, uint64_t offset, uint64_t bytes, bool aligned,
                                  const uint4& value) {
  if (aligned && offset + 16 <= bytes) {
    *reinterpret_cast<uint4*>(to + offset) = value;
    return;
  }
  const uint32_t count = bytes - offset < 16 ? static_cast<uint32_t>(bytes - offset) : 16;
  const uint32_t words[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) {
    if (i < count) to[offset + i] = static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8));
  }
}

// Past the first-level cache, which does not see what others write.
__device__ inline uint4 load_window(const uint8_t* from) {
  return __ldcg(reinterpret_cast<const uint4*>(from));
}
__device__ inline void store_window(uint8_t* to, const uint4& value) {
  __stcg(reinterpret_cast<uint4*>(to), value);
}

}  // namespace mep::device
