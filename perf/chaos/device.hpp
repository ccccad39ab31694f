// A rank's place on its GPU, seen without a header of CUDA. Built without CUDA, device_absent.cpp stands in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "mep.h"

namespace mep::programs {

// Used by one thread.
class Device {
 public:
  virtual ~Device() = default;
  // The GPU is the calling thread's from now on.
  virtual void use() = 0;
  virtual mep_stream_t stream() = 0;
  // Memory of the GPU, or pinned memory of the host, until recycle(). Throws when more than `bytes` of make_device() are
  // out.
  virtual void* take(size_t bytes) = 0;
  // `key`: from it follows which memory is of the host from now on.
  virtual void recycle(uint64_t key) = 0;
  // In the order of the stream; they return when it has come so far.
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  virtual void synchronize() = 0;
};

bool device_is_built();
// On the communicator's GPU. While it lives no memory is asked of CUDA: that could wait for kernels of other ranks.
std::unique_ptr<Device> make_device(mep_comm_t comm, size_t bytes);

}  // namespace mep::programs
