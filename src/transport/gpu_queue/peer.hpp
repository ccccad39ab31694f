// A peer that a send queue reaches, as kernels see it: {put, signal, flush}. Kernels store to mapped peers themselves.
//
//   put      copies to the peer's memory. The copy may be under way, and read the local memory, until flush.
//   signal   stores an aligned word of 8 bytes in the peer's memory. The thread that acquires it there sees all puts
//            that came before it on the same queue, also those of other posters that this one has met since.
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
  MEP_HOST_DEVICE RemoteMemory in_window(uint64_t offset) const { return queue_.in_window(offset); }
  MEP_HOST_DEVICE LocalMemory in_source(const void* address) const {
    return queue_.in_source(address);
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

}  // namespace mep::gpu_queue
