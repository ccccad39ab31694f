#include <cuda_runtime.h>

#include <stdexcept>

#include "device.hpp"
#include "device/context.hpp"
#include "error.hpp"

namespace mep::programs {
namespace {

constexpr size_t kAlignment = 256;

class CudaDevice : public Device {
 public:
  CudaDevice(mep_comm_t comm, int32_t number, size_t bytes)
      : context_(comm, number), memory_(context_.allocate<uint8_t>(bytes)), bytes_(bytes) {}
  void use() override { context_.use(); }
  mep_stream_t stream() override { return context_.stream(); }
  void* take(size_t bytes) override {
    const size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (whole > bytes_ - taken_) throw std::runtime_error("a step needs more memory of the GPU");
    taken_ += whole;
    return memory_ + taken_ - whole;
  }
  void recycle() override { taken_ = 0; }
  void upload(void* to, const void* from, size_t bytes) override {
    context_.upload(to, from, bytes);
  }
  void download(void* to, const void* from, size_t bytes) override {
    context_.download(to, from, bytes);
  }
  void synchronize() override {
    perf::require_cuda(cudaStreamSynchronize(context_.stream()), "cudaStreamSynchronize");
  }

 private:
  perf::DeviceContext context_;
  uint8_t* memory_;
  size_t bytes_;
  size_t taken_ = 0;
};

}  // namespace

bool device_is_built() {
  return true;
}
std::unique_ptr<Device> make_device(mep_comm_t comm, size_t bytes) {
  int32_t number = 0;
  perf::require(mep_comm_device(comm, &number), "mep_comm_device");
  return std::make_unique<CudaDevice>(comm, number, bytes);
}

}  // namespace mep::programs
