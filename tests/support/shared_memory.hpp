// Zeroed memory that a test's process and all that it forks from now on share.
#pragma once

#include <sys/mman.h>

#include <memory>

#include "support/cmocka_cpp.hpp"

namespace mep_test {

struct Unmap {
  size_t bytes;
  void operator()(void* memory) const { munmap(memory, bytes); }
};

template <typename T>
using SharedMemory = std::unique_ptr<T, Unmap>;

// The first of `count`.
template <typename T>
SharedMemory<T> make_shared_memory(size_t count = 1) {
  const size_t bytes = count * sizeof(T);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(memory != MAP_FAILED);
  return SharedMemory<T>(static_cast<T*>(memory), Unmap{bytes});
}

}  // namespace mep_test
