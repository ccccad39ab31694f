// The calls of a QueuePeer over memory that is mapped: what tests of queues compare with, and their benchmark.
#pragma once

#include <cstdint>

#include "transport/gpu_queue/peer.hpp"

namespace mep::gpu_queue {

// Over the peer's memory itself, mapped at the address of RemoteMemory. Keys are not used and nothing fails.
template <typename Memory = SystemMemory>
class MappedPeer {
 public:
  MEP_HOST_DEVICE Status put(const RemoteMemory& remote, const LocalMemory& local, uint64_t bytes) {
    Memory::meet();
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the address names memory that is mapped here
    auto* to = reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(remote.address));
    const auto* from = static_cast<const uint8_t*>(local.address);
    uint64_t done = 0;
    if (((remote.address | reinterpret_cast<uintptr_t>(from)) & (sizeof(Unit) - 1)) == 0) {
      done = bytes & ~uint64_t{sizeof(Unit) - 1};
      copy(reinterpret_cast<Unit*>(to), reinterpret_cast<const Unit*>(from), done / sizeof(Unit));
    }
    copy(to + done, from + done, bytes - done);
    return Status::kOk;
  }
  MEP_HOST_DEVICE Status signal(const RemoteMemory& word, uint64_t value) {
    Memory::meet();
    if (Memory::lane() == 0) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): as above
      Memory::store_signal(reinterpret_cast<uint64_t*>(static_cast<uintptr_t>(word.address)),
                           value);
    }
    return Status::kOk;
  }
  MEP_HOST_DEVICE Status flush() {
    Memory::meet();
    return Status::kOk;
  }

 private:
  struct alignas(16) Unit {
    uint64_t words[2];
  };
  template <typename T>
  MEP_HOST_DEVICE static void copy(T* to, const T* from, uint64_t count) {
    for (uint64_t i = Memory::lane(); i < count; i += Memory::lanes()) to[i] = from[i];
  }
};

}  // namespace mep::gpu_queue
