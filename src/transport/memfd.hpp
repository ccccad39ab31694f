// Anonymous shared memory with a fixed size. The seals make that size a fact for everybody who maps
// it: no access inside it can ever raise SIGBUS, whatever the other process does.
#pragma once

#include <cstddef>
#include <utility>

#include "base/unique_fd.hpp"
#include "mep.h"

namespace mep {

size_t page_bytes();
// Whole pages for `bytes`; bytes must be at most kMaxMemfdBytes.
size_t round_up_to_pages(size_t bytes);
constexpr size_t kMaxMemfdBytes = size_t{1} << 46;

// Zeroed, whole pages, cannot shrink or grow, closed by exec. `name` is shown in /proc/PID/maps
// only.
[[nodiscard]] mep_result_t create_memfd(const char* name, size_t bytes, UniqueFd* out);

// Forbids changes of the seals, and with `read_only` also all writing except through the mappings
// that exist by now.
[[nodiscard]] mep_result_t seal_memfd(int fd, bool read_only);

// Refuses what is not memory of at least `bytes` that can never shrink.
[[nodiscard]] mep_result_t check_foreign_memfd(int fd, size_t bytes);

// Shared memory in this process's address space, unmapped with its owner.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      unmap();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = other.bytes_;
    }
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { unmap(); }

  // The first `bytes` of the descriptor (rounded up to pages), at an address of the kernel's
  // choice.
  [[nodiscard]] static mep_result_t of(int fd, size_t bytes, bool writable, Mapping* out);

  // Takes the place of the mapping of the same size at `place`, whose owner stays its owner; this
  // one is empty then. On failure both are as before.
  [[nodiscard]] mep_result_t move_to(std::byte* place);

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  std::byte* release() { return std::exchange(data_, nullptr); }

 private:
  void unmap();

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

void unmap_memory(std::byte* data, size_t bytes);

}  // namespace mep
