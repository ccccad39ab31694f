// Memory that kernels of several ranks share, without a CUDA header: windows in device memory that other
// processes can map, and pinned host memory that both sides read and write in place.
//
// No function here may be called by the control thread: CUDA calls can wait for running kernels.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "mep.h"

namespace mep {

// The least that the kernels need: 10 * major + minor.
constexpr int32_t kLeastComputeCapability = 80;

struct DeviceFacts {
  std::string name;
  std::string pci;  // "0000:18:00.0"
  uint32_t multiprocessors = 0;
  uint64_t memory_bytes = 0;
  int32_t compute_capability = 0;  // 90 for 9.0
  std::array<uint64_t, 2> uuid{};
  bool exports_memory = false;  // descriptors that other processes can map
};

// Number of GPUs that can be used; the error's text says why there is none.
[[nodiscard]] mep_result_t count_devices(int32_t* count);
[[nodiscard]] mep_result_t describe_device(int32_t device, DeviceFacts* facts);
// Whether kernels of that GPU that acquire a word written by a NIC see what it wrote before.
bool orders_writes_of_nics(int32_t device);
// Whether `device` reaches the memory of `peer`.
bool device_reaches(int32_t device, int32_t peer);
// The same of a GPU by its UUID; of one that this process does not see nothing is known, so it may.
bool may_reach(int32_t device, const std::array<uint64_t, 2>& uuid);

// Makes `device` the calling thread's for the life of the object; starts a context on no other GPU.
class DeviceScope {
 public:
  explicit DeviceScope(int32_t device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  [[nodiscard]] mep_result_t check() const;

 private:
  int32_t error_ = 0;  // of the driver
  bool is_pushed_ = false;
};

// Zeroed device memory of one rank, mapped read-write for one GPU: access from another GPU of this process would start
// a context there, some 530 MiB of its memory. The memory lives until the last process that has
// mapped it lets go, so a rank that ends does not pull it away under running kernels.
class DeviceMemory {
 public:
  [[nodiscard]] static mep_result_t create(int32_t device, size_t bytes,
                                           std::shared_ptr<DeviceMemory>* out);
  // Another process's, by its descriptor.
  [[nodiscard]] static mep_result_t import(int32_t device, size_t bytes, const UniqueFd& fd,
                                           std::shared_ptr<DeviceMemory>* out);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return std::bit_cast<std::byte*>(address_); }
  size_t bytes() const { return bytes_; }
  int32_t device() const { return device_; }
  // A descriptor for import().
  [[nodiscard]] mep_result_t export_fd(UniqueFd* fd) const;
  // A descriptor for a NIC's driver: a dmabuf of data() and bytes().
  [[nodiscard]] mep_result_t export_dmabuf(UniqueFd* fd) const;

 private:
  DeviceMemory() = default;
  mep_result_t map();

  int32_t device_ = 0;
  size_t bytes_ = 0;
  uint64_t handle_ = 0;
  uint64_t address_ = 0;
  bool mapped_ = false;
};

// Zeroed pinned host memory at one address for host and devices.
class PinnedMemory {
 public:
  [[nodiscard]] static mep_result_t create(size_t bytes, std::shared_ptr<PinnedMemory>* out);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  void* data() const { return data_; }

 private:
  PinnedMemory() = default;
  void* data_ = nullptr;
};

// Makes memory of the process that exists already reachable for kernels, at its own address.
class PinnedRange {
 public:
  PinnedRange() = default;
  ~PinnedRange() { unpin(); }
  PinnedRange(const PinnedRange&) = delete;
  PinnedRange& operator=(const PinnedRange&) = delete;
  // Whole pages, which stay until unpin(). MEP_ERR_UNSUPPORTED: this system gives them another address for kernels.
  [[nodiscard]] mep_result_t pin(void* data, size_t bytes);
  // No kernel uses it.
  void unpin();

 private:
  void* data_ = nullptr;
};

// Whether kernels on that GPU can use the memory; `name` is the argument's. Device memory must be its own.
[[nodiscard]] mep_result_t check_pointer(int32_t device, const void* memory, const char* name);

// Whether the stream is one of that GPU, which is the thread's. CUDA itself launches on any GPU's stream.
[[nodiscard]] mep_result_t check_stream_device(int32_t device, const void* stream);

// Returns when the bytes have arrived.
[[nodiscard]] mep_result_t copy_to_device(void* to, const void* from, size_t bytes);
// Either way, in the order of the stream; `from` in ordinary memory may be written again at once.
[[nodiscard]] mep_result_t copy_in_order(void* to, const void* from, size_t bytes, void* stream);
[[nodiscard]] mep_result_t synchronize_stream(void* stream);
// Whether what is enqueued on the stream goes into a graph.
[[nodiscard]] mep_result_t is_capturing(void* stream, bool* capturing);
// The result for what a call of the CUDA runtime returned.
[[nodiscard]] mep_result_t check_cuda(int32_t error, const char* what);

// A stream of this library's own.
class DeviceStream {
 public:
  [[nodiscard]] mep_result_t open();
  DeviceStream() = default;
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  void* get() const { return stream_; }
  [[nodiscard]] mep_result_t synchronize() const;

 private:
  void* stream_ = nullptr;
};

// A place in a stream.
class DeviceEvent {
 public:
  DeviceEvent() = default;
  ~DeviceEvent();
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;
  // Behind what the stream has.
  [[nodiscard]] mep_result_t record(void* stream);
  // The stream goes on when all before the latest place has run.
  [[nodiscard]] mep_result_t hold(void* stream) const;
  // All before the latest place has run.
  bool has_passed() const;

 private:
  void* event_ = nullptr;
};

}  // namespace mep
