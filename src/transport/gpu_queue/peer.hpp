// A peer as kernels see it: Peer {put, signal, flush}. Kernels of dispatch and combine use QueuePeer, and store to mapped
// peers themselves; MappedPeer, with the same calls, is for tests and the queue benchmark alone.
//
//   put      copies to the peer's memory. The local memory is free, and for a queue the copy is under way, until flush.
//   signal   stores an aligned word of 8 bytes in the peer's memory. The thread that acquires it there sees all puts
//            that came before it on the same Peer; with a queue also those of other posters that this one has met since.
//   flush    afterwards the local memory of all puts before it is free.
//
// All lanes of a warp call together with the same arguments, and get the same status; before it they have stored, or met
// those who have stored, what is put. A thread of the host calls alone.
#pragma once

#include <cstdint>

#include "transport/gpu_queue/send_queue.hpp"

namespace mep::gpu_queue {

// Over a send queue. RDMA writes of one queue pair land in the order in which they were posted.
template <typename Memory = SystemMemory>
class QueuePeer {
 public:
  MEP_HOST_DEVICE QueuePeer(Queue* queue, const Patience& patience) : queue_(queue, patience) {}

  MEP_HOST_DEVICE Status put(const RemoteMemory& remote, const LocalMemory& local, uint64_t bytes) {
    return by_first([&] { return post_writes(remote, local, bytes); });
  }
  MEP_HOST_DEVICE Status signal(const RemoteMemory& word, uint64_t value) {
    return by_first([&] { return queue_.post(write_word(word, value)); });
  }
  // One request of each lane that wants it, in the order of the lanes.
  MEP_HOST_DEVICE Status post_lanes(bool wants, const Request& request) {
    Memory::meet();
    return queue_.post_lanes(wants, request);
  }
  MEP_HOST_DEVICE Status flush() {
    return by_first([&] { return queue_.flush(); });
  }
  MEP_HOST_DEVICE bool error(QueueError* error) const { return queue_.error(error); }

 private:
  template <typename Call>
  MEP_HOST_DEVICE static Status by_first(const Call& call) {
    Memory::meet();
    const Status status = Memory::lane() == 0 ? call() : Status::kOk;
    return static_cast<Status>(Memory::from_first(static_cast<uint32_t>(status)));
  }

  MEP_HOST_DEVICE Status post_writes(RemoteMemory remote, LocalMemory local, uint64_t bytes) {
    if (bytes != 0 && bytes <= kMaxInline) {
      return queue_.post(write_inline(remote, local.address, static_cast<uint32_t>(bytes)));
    }
    Status status = Status::kOk;
    while (bytes != 0 && status == Status::kOk) {
      const uint64_t part = bytes < kMaxWrite ? bytes : kMaxWrite;
      status = queue_.post(write(remote, local, static_cast<uint32_t>(part)));
      remote.address += part;
      local.address = static_cast<const uint8_t*>(local.address) + part;
      bytes -= part;
    }
    return status;
  }

  SendQueue<Memory> queue_;
};

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
