// A window: memory of this rank that its peers may write, addressed by (window id, offset).
//
// Invariants
//   - The same id has the same size and layout on every rank of a comm.
//   - The memory is a memfd without a name: nothing is left behind, however the process ends.
//   - data() never changes. renew() replaces the physical pages under it: whoever mapped the old
//     ones can go on writing them and nobody reads them any more. That is the fence against a
//     process that was excluded while it may still run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/unique_fd.hpp"
#include "mep.h"

namespace mep {

// The window that every rank has from the start: its first bytes are the Doorbell.
constexpr uint64_t kWorldWindowId = 0;

class Window {
 public:
  // Zeroed, page-aligned; pages are taken when they are first touched.
  [[nodiscard]] static mep_result_t create(uint64_t id, size_t bytes, std::shared_ptr<Window>* out);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  uint64_t id() const { return id_; }
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  // Counts renew() calls; part of what peers are told, so that nobody imports old pages late.
  uint32_t generation() const { return generation_; }

  // New pages with the same contents under the same address. No put of this process may be under
  // way into this window by its own threads, and peers must import it again.
  [[nodiscard]] mep_result_t renew();

 private:
  Window() = default;

  uint64_t id_ = 0;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  UniqueFd fd_;
  uint32_t generation_ = 0;
};

}  // namespace mep
