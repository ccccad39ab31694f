// Shared by tests of the kernels: memory with guards, the levels of SIMD, and a comparison of bytes.
#pragma once

#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <sys/mman.h>

#include "base/cpu_features.hpp"
#include "kernels/host/kernel_table.hpp"
#include "mep.h"
#include "support/cmocka_cpp.hpp"
#include "support/coll_reference.hpp"
#include "support/ep_reference.hpp"

namespace mep_test {

using namespace mep_reference;

inline uint64_t test_seed() {
  static const uint64_t seed = mep_reference::seed_of_run();
  return seed;
}

// Memory between two pages that fault: a block begins after the first or ends before the second.
class GuardedMemory {
 public:
  explicit GuardedMemory(size_t bytes) : bytes_((bytes + kPage - 1) / kPage * kPage) {
    void* map = mmap(nullptr, bytes_ + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) std::abort();
    base_ = static_cast<uint8_t*>(map);
    if (mprotect(base_ + kPage, bytes_, PROT_READ | PROT_WRITE) != 0) std::abort();
  }
  ~GuardedMemory() { munmap(base_, bytes_ + 2 * kPage); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  uint8_t* at_start() { return base_ + kPage; }
  uint8_t* at_end(size_t bytes) { return base_ + kPage + bytes_ - bytes; }
  // Fills all with a pattern, so that intact_outside() can tell what a kernel wrote.
  void paint() { std::memset(at_start(), 0xa5, bytes_); }
  bool intact_outside(const uint8_t* block, size_t bytes) {
    for (const uint8_t* p = at_start(); p < at_start() + bytes_; ++p) {
      if ((p < block || p >= block + bytes) && *p != 0xa5) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kPage = 4096;
  size_t bytes_;
  uint8_t* base_ = nullptr;
};

struct Level {
  const char* name;
  const mep::KernelTable* kernels;
};

// Every SIMD level that this processor has; at least the portable one.
inline std::vector<Level> levels() {
  std::vector<Level> found;
  for (const mep::SimdLevel level :
       {mep::SimdLevel::kPortable, mep::SimdLevel::kAvx2, mep::SimdLevel::kAvx512}) {
    const mep::KernelTable* kernels = mep::kernels_for(level);
    if (kernels != nullptr) found.push_back({mep::simd_level_name(level), kernels});
  }
  return found;
}

__attribute__((format(printf, 4, 5))) inline void check_bytes(const uint8_t* expected,
                                                              const uint8_t* actual, size_t bytes,
                                                              const char* format, ...) {
  if (bytes == 0 || std::memcmp(expected, actual, bytes) == 0) return;
  size_t at = 0;
  while (expected[at] == actual[at]) ++at;
  char what[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  fail_msg("%s: byte %zu of %zu is 0x%02x, not 0x%02x", what, at, bytes, actual[at], expected[at]);
}

}  // namespace mep_test
