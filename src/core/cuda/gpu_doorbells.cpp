#include "core/cuda/gpu_doorbells.hpp"

#include <bit>

#include "base/guarded.hpp"
#include "kernels/cuda/device/doorbell.hpp"

namespace mep {

mep_result_t GpuDoorbells::add(uint64_t* word, uint64_t* doorbell, uint64_t** of_posters) {
  const std::lock_guard lock(mutex_);
  return guarded([&] {
    std::weak_ptr<MappedPage>& known =
        pages_[std::bit_cast<uint64_t>(doorbell) / MappedPage::kBytes];
    std::shared_ptr<MappedPage> page = known.lock();
    if (page == nullptr) {
      page = std::make_shared<MappedPage>();
      MEP_TRY(page->map(device_, doorbell));
      known = page;
    }
    *of_posters = reinterpret_cast<uint64_t*>(page->of_kernels(doorbell));
    users_[word] = std::move(page);
    return mep_result_t{MEP_SUCCESS};
  });
}

void GpuDoorbells::remove(const uint64_t* word) {
  const std::lock_guard lock(mutex_);
  users_.erase(word);
}

mep_result_t GpuDoorbells::ring(uint64_t* of_posters, uint64_t value) {
  const DeviceScope scope(device_);
  MEP_TRY(scope.check());
  DeviceStream stream;
  MEP_TRY(stream.open());
  MEP_TRY(check_cuda(device::launch_ring(of_posters, value, stream.get()), "ringing an adapter"));
  return stream.synchronize();
}

}  // namespace mep
