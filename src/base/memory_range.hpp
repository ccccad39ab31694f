#pragma once

#include <cstddef>
#include <cstdint>

namespace mep {

// Whether two pieces of memory share a byte.
inline bool overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto from_a = reinterpret_cast<uintptr_t>(a);
  const auto from_b = reinterpret_cast<uintptr_t>(b);
  return a_bytes != 0 && b_bytes != 0 && from_a < from_b + b_bytes && from_b < from_a + a_bytes;
}

}  // namespace mep
