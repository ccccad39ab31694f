// Dispatch and combine on a comm with a GPU: what the ABI calls in place of an EpObject. No CUDA here;
// builds without it have the same interface and answer MEP_ERR_UNSUPPORTED.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/comm/comm.hpp"
#include "core/comm/device_side.hpp"
#include "core/ep/ep_config.hpp"
#include "mep.h"

namespace mep {

struct EpHandle;

// What of the config is for GPUs alone.
struct EpDeviceOptions {
  bool column_major = false;  // scales
  uint32_t num_sms = 0;       // blocks of a kernel at most; 0: chosen
};

// What a handle of the ABI holds. Only the thread that uses the handle touches it.
struct EpDeviceHandle {
  uint32_t buffer = 0;
  uint32_t tokens = 0;          // of its last dispatch
  std::byte* memory = nullptr;  // mapped: device memory with the routing
  EpHandle* staged = nullptr;   // staged: the host's
};

class EpDevice {
 public:
  virtual ~EpDevice() = default;
  virtual const EpShape& shape() const = 0;
  // A send phase was called and its receive phase was not.
  virtual bool in_flight() = 0;

  [[nodiscard]] virtual mep_result_t make_handle(EpDeviceHandle* handle) = 0;
  [[nodiscard]] virtual mep_result_t end_handle(EpDeviceHandle& handle) = 0;
  [[nodiscard]] virtual mep_result_t set_expert_map(const int32_t* map) = 0;
  virtual void fill_view(uint32_t buffer, mep_ep_view_t* view) const = 0;

  // Check and enqueue; never wait.
  [[nodiscard]] virtual mep_result_t dispatch(EpDeviceHandle& handle,
                                              const mep_dispatch_args_t& args, void* stream) = 0;
  [[nodiscard]] virtual mep_result_t combine(EpDeviceHandle& handle, const mep_combine_args_t& args,
                                             void* stream) = 0;
  // The buffer's streams are idle.
  [[nodiscard]] virtual mep_result_t last_op(uint32_t buffer, mep_op_info_t* info) = 0;
};

// Collective. After an error nothing is left behind but device memory that the comm keeps.
[[nodiscard]] mep_result_t make_ep_device(Comm& comm, DeviceSide& side, const EpShape& shape,
                                          const EpDeviceOptions& options, const char* name,
                                          std::unique_ptr<EpDevice>* out);

// Refuses what the kernels cannot do.
[[nodiscard]] mep_result_t check_ep_device(const Comm& comm, const EpShape& shape);
// What make_ep_device would take.
void estimate_ep_device_size(const EpShape& shape, const EpDeviceOptions& options, bool staged,
                             mep_ep_size_t* out);

}  // namespace mep
