// Builds without CUDA.
#include "base/status.hpp"
#include "core/comm/gpu_backend.hpp"

#if !MEP_HAVE_CUDA

namespace mep {

mep_result_t check_device(int32_t) {
  return fail(MEP_ERR_UNSUPPORTED,
              "this library was built without CUDA: leave out config.device_type");
}

mep_result_t choose_device(const mep_comm_config_t& config, uint64_t, int32_t*) {
  return check_device(config.device);
}

mep_result_t make_gpu_backend(Comm&, const GpuPlace& place, std::span<const GpuPlace>,
                              std::unique_ptr<GpuBackend>*) {
  return check_device(place.device);
}

mep_result_t join_gpu_backend(Comm&, const GpuPlace& place, std::span<const std::byte>,
                              const Deadline&, std::unique_ptr<GpuBackend>*) {
  return check_device(place.device);
}

}  // namespace mep

#endif
