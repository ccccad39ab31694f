#include "transport/cuda/gpu_window.hpp"

#include <fcntl.h>

#include <cerrno>

#include "base/status.hpp"
#include "base/system_error.hpp"
#include "transport/cuda/device_memory.hpp"
#include "transport/memfd.hpp"

namespace mep {
namespace {

class OnDevice final : public GpuWindow {
 public:
  explicit OnDevice(std::shared_ptr<DeviceMemory> memory) : memory_(std::move(memory)) {}
  std::byte* data() const override { return memory_->data(); }
  size_t bytes() const override { return memory_->bytes(); }
  int32_t device() const override { return memory_->device(); }
  mep_result_t export_fd(UniqueFd* fd) const override { return memory_->export_fd(fd); }

 private:
  const std::shared_ptr<DeviceMemory> memory_;
};

// An anonymous memory file whose size is sealed. Pinned memory is mapped for all GPUs of the process.
class OnHost final : public GpuWindow {
 public:
  explicit OnHost(int32_t device) : device_(device) {}
  mep_result_t open(const UniqueFd& fd, size_t bytes) {
    const DeviceScope scope(device_);
    MEP_TRY(scope.check());
    MEP_TRY(Mapping::of(fd.get(), bytes, true, &mapping_));
    return pinned_.pin(mapping_.data(), mapping_.bytes());
  }
  void keep(UniqueFd fd) { fd_ = std::move(fd); }
  std::byte* data() const override { return mapping_.data(); }
  size_t bytes() const override { return mapping_.bytes(); }
  int32_t device() const override { return device_; }
  mep_result_t export_fd(UniqueFd* fd) const override {
    *fd = UniqueFd(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
    if (fd->valid()) return MEP_SUCCESS;
    return fail(result_of_errno(errno), "the descriptor of a window cannot be copied: %m");
  }

 private:
  const int32_t device_;
  UniqueFd fd_;  // of the rank's own window
  Mapping mapping_;
  PinnedRange pinned_;  // let go before the mapping
};

}  // namespace

mep_result_t GpuWindow::create(WindowPlace place, int32_t device, size_t bytes,
                               std::shared_ptr<GpuWindow>* out) {
  if (place == WindowPlace::kDevice) {
    std::shared_ptr<DeviceMemory> memory;
    MEP_TRY(DeviceMemory::create(device, bytes, &memory));
    *out = std::make_shared<OnDevice>(std::move(memory));
    return MEP_SUCCESS;
  }
  UniqueFd fd;
  MEP_TRY(create_memfd("mep-gpu-window", bytes, &fd));
  MEP_TRY(seal_memfd(fd.get(), false));
  auto window = std::make_shared<OnHost>(device);
  MEP_TRY(window->open(fd, round_up_to_pages(bytes)));
  window->keep(std::move(fd));
  *out = std::move(window);
  return MEP_SUCCESS;
}

mep_result_t GpuWindow::import(WindowPlace place, int32_t device, size_t bytes, const UniqueFd& fd,
                               std::shared_ptr<GpuWindow>* out) {
  if (place == WindowPlace::kDevice) {
    std::shared_ptr<DeviceMemory> memory;
    MEP_TRY(DeviceMemory::import(device, bytes, fd, &memory));
    *out = std::make_shared<OnDevice>(std::move(memory));
    return MEP_SUCCESS;
  }
  MEP_TRY(check_foreign_memfd(fd.get(), bytes));
  auto window = std::make_shared<OnHost>(device);
  MEP_TRY(window->open(fd, bytes));
  *out = std::move(window);
  return MEP_SUCCESS;
}

}  // namespace mep
