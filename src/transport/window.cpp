#include "transport/window.hpp"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/status.hpp"
#include "transport/doorbell.hpp"
#include "transport/memfd.hpp"

namespace mep {
namespace {

[[nodiscard]] mep_result_t create_window_memfd(size_t bytes, UniqueFd* out) {
  UniqueFd fd;
  MEP_TRY(create_memfd("mep-window", bytes, &fd));
  MEP_TRY(seal_memfd(fd.get(), false));
  *out = std::move(fd);
  return MEP_SUCCESS;
}

// From byte `begin` on, and only pages that somebody touched: windows are large and sparse.
[[nodiscard]] mep_result_t copy_touched_pages(int fd, const std::byte* from, std::byte* to,
                                              size_t begin, size_t bytes) {
  const auto end = static_cast<off_t>(bytes);
  auto position = static_cast<off_t>(begin);
  while (position < end) {
    const off_t data = lseek(fd, position, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;  // nothing but untouched pages from here on
    const off_t hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
    if (hole < 0) return fail(MEP_ERR_SYSTEM, "a window's touched pages cannot be found: %m");
    const off_t stop = hole < end ? hole : end;
    if (data < stop) std::memcpy(to + data, from + data, static_cast<size_t>(stop - data));
    position = hole;
  }
  return MEP_SUCCESS;
}

}  // namespace

mep_result_t Window::create(uint64_t id, size_t bytes, std::shared_ptr<Window>* out) {
  std::shared_ptr<Window> window(new Window());
  window->id_ = id;
  window->bytes_ = bytes;
  MEP_TRY(create_window_memfd(bytes, &window->fd_));
  Mapping mapping;
  MEP_TRY(Mapping::of(window->fd_.get(), bytes, true, &mapping));
  window->data_ = mapping.release();
  *out = std::move(window);
  return MEP_SUCCESS;
}

Window::~Window() {
  unmap_memory(data_, bytes_);
}

mep_result_t Window::renew() {
  const bool has_doorbell = id_ == kWorldWindowId && bytes_ >= sizeof(Doorbell);
  UniqueFd fresh;
  MEP_TRY(create_window_memfd(bytes_, &fresh));
  Mapping copy;
  MEP_TRY(Mapping::of(fresh.get(), bytes_, true, &copy));
  // The doorbell is in use all the time and goes its own way.
  const size_t begin = has_doorbell ? sizeof(Doorbell) : 0;
  MEP_TRY(copy_touched_pages(fd_.get(), data_, copy.data(), begin, bytes_));
  // Threads of this rank that sleep on the old pages must be woken through them.
  Mapping old_doorbell;
  if (has_doorbell) {
    MEP_TRY(Mapping::of(fd_.get(), sizeof(Doorbell), true, &old_doorbell));
    doorbell_prepare_renewed(reinterpret_cast<Doorbell*>(data_),
                             reinterpret_cast<Doorbell*>(copy.data()));
  }
  MEP_TRY(copy.move_to(data_));
  fd_ = std::move(fresh);
  ++generation_;
  if (has_doorbell) {
    doorbell_renewed(reinterpret_cast<Doorbell*>(data_),
                     reinterpret_cast<Doorbell*>(old_doorbell.data()));
  }
  return MEP_SUCCESS;
}

}  // namespace mep
