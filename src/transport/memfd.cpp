#include "transport/memfd.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/status.hpp"
#include "base/system_error.hpp"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace mep {
namespace {

constexpr long kTmpfsMagic = 0x01021994;
// From here on huge pages pay where the system allows them for shared memory.
constexpr size_t kHugePageThresholdBytes = size_t{4} << 20;

int open_memfd(const char* name) {
  const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd >= 0 || errno != EINVAL) return fd;
  return memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);  // before Linux 6.3
}

}  // namespace

size_t page_bytes() {
  return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t round_up_to_pages(size_t bytes) {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

mep_result_t create_memfd(const char* name, size_t bytes, UniqueFd* out) {
  if (bytes == 0 || bytes > kMaxMemfdBytes) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "shared memory of %zu bytes was asked for; 1 to %zu work",
                bytes, kMaxMemfdBytes);
  }
  const size_t size = round_up_to_pages(bytes);
  // Growing a file beyond this limit raises SIGXFSZ, which ends the process by default.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      size > limit.rlim_cur) {
    return fail(MEP_ERR_NO_MEMORY,
                "shared memory of %zu bytes is over the file size limit of %llu; raise ulimit -f",
                size, static_cast<unsigned long long>(limit.rlim_cur));
  }
  UniqueFd fd(open_memfd(name));
  if (!fd.valid()) return fail_call("shared memory", "memfd_create", errno);
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
    return fail(result_of_errno(errno), "no shared memory of %zu bytes: %m", size);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return fail(result_of_errno(errno), "the size of shared memory cannot be sealed: %m");
  }
  *out = std::move(fd);
  return MEP_SUCCESS;
}

mep_result_t seal_memfd(int fd, bool read_only) {
  const int seals = F_SEAL_SEAL | (read_only ? F_SEAL_FUTURE_WRITE : 0);
  if (fcntl(fd, F_ADD_SEALS, seals) == 0) return MEP_SUCCESS;
  if (read_only && errno == EINVAL) {
    return fail(MEP_ERR_UNSUPPORTED,
                "this kernel cannot make shared memory read-only for peers (needs Linux 5.1)");
  }
  return fail(result_of_errno(errno), "shared memory cannot be sealed: %m");
}

mep_result_t check_foreign_memfd(int fd, size_t bytes) {
  if (fd < 0) return fail(MEP_ERR_DENIED, "the peer sent no descriptor with its memory");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return fail(MEP_ERR_DENIED, "the peer's memory is not sealed against shrinking; refused");
  }
  // Huge page memory has seals too, but touching it can still fail for want of a page.
  struct statfs file_system {};
  if (fstatfs(fd, &file_system) != 0 || file_system.f_type != kTmpfsMagic) {
    return fail(MEP_ERR_DENIED, "the peer's descriptor is not ordinary shared memory; refused");
  }
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    return fail(result_of_errno(errno), "the size of the peer's memory cannot be read: %m");
  }
  if (status.st_size < 0 || static_cast<size_t>(status.st_size) < bytes) {
    return fail(MEP_ERR_MISMATCH, "the peer's memory has %lld bytes where %zu are needed; refused",
                static_cast<long long>(status.st_size), bytes);
  }
  return MEP_SUCCESS;
}

mep_result_t Mapping::of(int fd, size_t bytes, bool writable, Mapping* out) {
  if (bytes == 0 || bytes > kMaxMemfdBytes) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "%zu bytes of shared memory cannot be mapped", bytes);
  }
  const size_t size = round_up_to_pages(bytes);
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* data = mmap(nullptr, size, protection, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return fail(result_of_errno(errno), "%zu bytes of shared memory cannot be mapped: %m", size);
  }
  // A hint; refused where huge pages are not built in.
  if (size >= kHugePageThresholdBytes) (void)madvise(data, size, MADV_HUGEPAGE);
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.bytes_ = bytes;
  *out = std::move(mapping);
  return MEP_SUCCESS;
}

mep_result_t Mapping::move_to(std::byte* place) {
  const size_t size = round_up_to_pages(bytes_);
  if (mremap(data_, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED) {
    return fail(result_of_errno(errno), "a mapping of %zu bytes cannot be replaced: %m", size);
  }
  data_ = nullptr;
  return MEP_SUCCESS;
}

void Mapping::unmap() {
  unmap_memory(std::exchange(data_, nullptr), bytes_);
}

void unmap_memory(std::byte* data, size_t bytes) {
  if (data != nullptr) munmap(data, round_up_to_pages(bytes));
}

}  // namespace mep
