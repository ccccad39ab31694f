// The part of a backend that does not depend on how collectives travel: EP buffers, and the checks before a kernel is
// enqueued.
#pragma once

#include <memory>

#include "core/comm/gpu_backend.hpp"

namespace mep {

class CudaBackend : public GpuBackend {
 public:
  using GpuBackend::GpuBackend;
  mep_result_t make_ep_buffers(const EpShape& shape, const EpDeviceOptions& options,
                               std::unique_ptr<EpBuffers>* out) override;
  mep_result_t estimate_ep_buffers(const EpShape& shape, const EpDeviceOptions& options,
                                   mep_ep_size_t* out) const override;
  mep_result_t count_layout(const device::DispatchLayout& layout, void* stream) override;
  // Before every call on a stream. The GPU is the thread's current one.
  [[nodiscard]] mep_result_t check_call(const void* stream) const;

 protected:
  mep_result_t check_memory(const void* memory, const char* name) const override;
  // Before a collective; with counts the caller looks at the buffers.
  [[nodiscard]] mep_result_t check_collective(Collective kind, const CollectiveArgs& args,
                                              const void* stream) const;
};

}  // namespace mep
