// Windows of GPUs: memory of one rank that kernels of all ranks of its host write. It lies on the rank's GPU, or
// pinned on the host where GPUs do not map each other's memory; kernels are the same for both.
//
// The memory lives until the last process that has mapped it lets go, so a rank that ends does not pull it
// away under running kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/unique_fd.hpp"
#include "mep.h"

namespace mep {

enum class WindowPlace : uint8_t { kDevice, kHost };

class GpuWindow {
 public:
  // Zeroed, of at least `bytes`.
  [[nodiscard]] static mep_result_t create(WindowPlace place, int32_t device, size_t bytes,
                                           std::shared_ptr<GpuWindow>* out);
  // Another process's, by its descriptor, for this GPU. bytes: what its bytes() is.
  [[nodiscard]] static mep_result_t import(WindowPlace place, int32_t device, size_t bytes,
                                           const UniqueFd& fd, std::shared_ptr<GpuWindow>* out);
  virtual ~GpuWindow() = default;

  virtual std::byte* data() const = 0;
  virtual size_t bytes() const = 0;
  // The GPU of the rank.
  virtual int32_t device() const = 0;
  // A descriptor for import().
  [[nodiscard]] virtual mep_result_t export_fd(UniqueFd* fd) const = 0;
};

}  // namespace mep
