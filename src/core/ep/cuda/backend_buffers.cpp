// CudaBackend's part in EP objects: only this room knows how their buffers are made on a GPU.
#include "base/status.hpp"
#include "core/cuda/cuda_backend.hpp"
#include "core/ep/cuda/ep_call.hpp"
#include "core/ep/cuda/ep_geometry.hpp"
#include "core/ep/cuda/gpu_buffers.hpp"

namespace mep {

mep_result_t CudaBackend::make_ep_buffers(const EpShape& shape, const EpDeviceOptions& options,
                                          std::unique_ptr<EpBuffers>* out) {
  MEP_TRY(check_ep_shape(shape));
  *out = std::make_unique<GpuBuffers>(comm_, *this, shape, options);
  return MEP_SUCCESS;
}

mep_result_t CudaBackend::estimate_ep_buffers(const EpShape& shape, const EpDeviceOptions& options,
                                              mep_ep_size_t* out) const {
  return estimate_gpu_buffers(*this, shape, options, out);
}

mep_result_t CudaBackend::count_layout(const device::DispatchLayout& layout, void* stream) {
  MEP_TRY(check_stream(stream));
  return enqueue_layout(device(), layout, stream);
}

}  // namespace mep
