#include <cuda_runtime.h>

#include <stdexcept>

#include "device.hpp"
#include "device/context.hpp"
#include "error.hpp"
#include "numbers.hpp"

namespace mep::programs {
namespace {

constexpr size_t kAlignment = 256;
constexpr uint32_t kHostPercent = 30;

class CudaDevice : public Device {
 public:
  CudaDevice(mep_comm_t comm, int32_t number, size_t bytes)
      : context_(comm, number), bytes_(bytes) {
    pools_[kOnGpu].memory = context_.allocate<uint8_t>(bytes);
    void* pinned = nullptr;
    perf::require_cuda(cudaHostAlloc(&pinned, bytes, cudaHostAllocDefault), "cudaHostAlloc");
    pools_[kOnHost].memory = static_cast<uint8_t*>(pinned);
  }
  ~CudaDevice() override { (void)cudaFreeHost(pools_[kOnHost].memory); }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  void use() override { context_.use(); }
  mep_stream_t stream() override { return context_.stream(); }
  void* take(size_t bytes) override {
    const size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    Pool& pool = pools_[random_.percent(kHostPercent) ? kOnHost : kOnGpu];
    if (whole > bytes_ - pool.taken) throw std::runtime_error("a step needs more memory");
    pool.taken += whole;
    return pool.memory + pool.taken - whole;
  }
  void recycle(uint64_t key) override {
    random_ = RandomStream(key);
    for (Pool& pool : pools_) pool.taken = 0;
  }
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
  enum Place { kOnGpu, kOnHost };
  struct Pool {
    uint8_t* memory = nullptr;
    size_t taken = 0;
  };

  perf::DeviceContext context_;
  const size_t bytes_;  // of each pool
  Pool pools_[2];       // by Place
  RandomStream random_{0};
};

}  // namespace

bool device_is_built() {
  return true;
}
std::unique_ptr<Device> make_device(mep_comm_t comm, size_t bytes) {
  int32_t number = 0;
  perf::require(mep_comm_device(comm, nullptr, &number), "mep_comm_device");
  return std::make_unique<CudaDevice>(comm, number, bytes);
}

}  // namespace mep::programs
