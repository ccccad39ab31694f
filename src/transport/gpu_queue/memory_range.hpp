#pragma once

#include <cstddef>

namespace mep::gpu_queue {

// Memory that a NIC reads or writes.
struct MemoryRange {
  void* address = nullptr;  // of the host, or of a GPU
  size_t bytes = 0;
  // Memory of a GPU begins with this descriptor, which is needed only during a call that takes the range. -1: memory of the
  // host, or of a GPU as the NIC's driver finds it by its address.
  int dmabuf = -1;
};

}  // namespace mep::gpu_queue
