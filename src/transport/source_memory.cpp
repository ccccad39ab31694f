#include "transport/source_memory.hpp"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/fork_hold.hpp"
#include "base/status.hpp"
#include "base/system_error.hpp"

namespace mep {
namespace {

constexpr uint32_t kSourceMagic = 0x4d455052;

struct SourceTicket {
  uint32_t magic;
  uint32_t reserved;
  uint64_t incarnation;
  uint64_t allocation;
  uint64_t bytes;
};
static_assert(sizeof(SourceTicket) == 32 && sizeof(SourceTicket) <= kMaxWindowBlobBytes);

// Every allocation of the ranks of this process, by (incarnation, allocation); does not keep them
// alive.
class ProcessSources {
 public:
  using Key = std::pair<uint64_t, uint64_t>;

  static ProcessSources& instance() {
    const ForkHold hold;
    static auto* sources = new ProcessSources();  // never destroyed: owners may end later
    return *sources;
  }
  void add(Key key, const std::shared_ptr<SourceAllocation>& allocation) {
    const ForkHold hold;
    const std::lock_guard lock(mutex_);
    allocations_[key] = allocation;
  }
  void remove(Key key) {
    const ForkHold hold;
    const std::lock_guard lock(mutex_);
    allocations_.erase(key);
  }
  std::shared_ptr<SourceAllocation> find(Key key) {
    const ForkHold hold;
    const std::lock_guard lock(mutex_);
    const auto found = allocations_.find(key);
    return found == allocations_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::weak_ptr<SourceAllocation>> allocations_;
};

// A second open file of the same memory, for reading only. Where /proc is not mounted a duplicate
// has to do: the seal alone keeps its holders from writing.
[[nodiscard]] mep_result_t open_read_only(int fd, UniqueFd* out) {
  char path[32];
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  UniqueFd read_only(::open(path, O_RDONLY | O_CLOEXEC));
  if (!read_only.valid() && !is_shortage(errno)) {
    read_only.reset(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  }
  if (!read_only.valid()) {
    return fail(result_of_errno(errno), "source memory cannot be opened for reading: %m");
  }
  *out = std::move(read_only);
  return MEP_SUCCESS;
}

unsigned long long printable(uint64_t value) {
  return value;
}

}  // namespace

SourceMemory::~SourceMemory() {
  for (const auto& [address, allocation] : allocations_) {
    ProcessSources::instance().remove({incarnation_, allocation->id});
  }
}

mep_result_t SourceMemory::allocate(size_t bytes, void** memory) {
  auto allocation = std::make_shared<SourceAllocation>();
  UniqueFd fd;
  MEP_TRY(create_memfd("mep-source", bytes, &fd));
  // In this order: the seal spares the writable mappings that exist already.
  MEP_TRY(Mapping::of(fd.get(), bytes, true, &allocation->memory));
  MEP_TRY(seal_memfd(fd.get(), true));
  MEP_TRY(open_read_only(fd.get(), &allocation->read_only_fd));

  std::byte* data = allocation->memory.data();
  const std::unique_lock lock(mutex_);
  allocation->id = next_id_++;
  ProcessSources::instance().add({incarnation_, allocation->id}, allocation);
  allocations_.emplace(reinterpret_cast<uintptr_t>(data), std::move(allocation));
  *memory = data;
  return MEP_SUCCESS;
}

mep_result_t SourceMemory::free(void* memory, uint64_t* allocation,
                                std::shared_ptr<const void>* kept) {
  std::shared_ptr<SourceAllocation> freed;  // unmapped after the lock is released
  {
    const std::unique_lock lock(mutex_);
    const auto found = allocations_.find(reinterpret_cast<uintptr_t>(memory));
    if (found == allocations_.end()) {
      return fail(MEP_ERR_INVALID_ARGUMENT, "%p is not the start of memory from mep_mem_alloc",
                  memory);
    }
    freed = std::move(found->second);
    allocations_.erase(found);
  }
  ProcessSources::instance().remove({incarnation_, freed->id});
  if (allocation != nullptr) *allocation = freed->id;
  if (kept != nullptr) *kept = std::move(freed);
  return MEP_SUCCESS;
}

bool SourceMemory::find(const void* pointer, size_t bytes, Place* place) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::shared_lock lock(mutex_);
  auto found = allocations_.upper_bound(address);
  if (found == allocations_.begin()) return false;
  --found;
  const size_t offset = address - found->first;
  const size_t size = found->second->memory.bytes();
  if (offset > size || bytes > size - offset) return false;
  *place = {found->second->id, offset};
  return true;
}

mep_result_t SourceMemory::export_allocation(uint64_t allocation, WindowExport* out) const {
  const std::shared_lock lock(mutex_);
  for (const auto& [address, candidate] : allocations_) {
    if (candidate->id != allocation) continue;
    UniqueFd fd(fcntl(candidate->read_only_fd.get(), F_DUPFD_CLOEXEC, 0));
    if (!fd.valid()) {
      return fail(result_of_errno(errno),
                  "the descriptor of source memory cannot be duplicated: %m");
    }
    const SourceTicket ticket{kSourceMagic, 0, incarnation_, allocation, candidate->memory.bytes()};
    out->blob.resize(sizeof(ticket));
    std::memcpy(out->blob.data(), &ticket, sizeof(ticket));
    out->fd = std::move(fd);
    return MEP_SUCCESS;
  }
  return fail(MEP_ERR_NOT_FOUND, "source memory %llu does not exist any more",
              printable(allocation));
}

mep_result_t SourceImports::import(uint32_t slot, uint64_t incarnation, uint64_t allocation,
                                   bool same_process, std::span<const std::byte> blob,
                                   UniqueFd fd) {
  SourceTicket ticket{};
  if (blob.size() != sizeof(ticket)) {
    return fail(MEP_ERR_DENIED, "slot %u described its source memory in %zu bytes instead of %zu",
                slot, blob.size(), sizeof(ticket));
  }
  std::memcpy(&ticket, blob.data(), sizeof(ticket));
  if (ticket.magic != kSourceMagic || ticket.incarnation != incarnation ||
      ticket.allocation != allocation || ticket.bytes == 0 || ticket.bytes > kMaxMemfdBytes) {
    return fail(MEP_ERR_DENIED, "slot %u described other source memory than printable %llu", slot,
                printable(allocation));
  }
  Imported imported;
  imported.bytes = static_cast<size_t>(ticket.bytes);
  if (same_process) {
    std::shared_ptr<SourceAllocation> found =
        ProcessSources::instance().find({incarnation, allocation});
    if (found == nullptr || found->memory.bytes() < imported.bytes) {
      return fail(MEP_ERR_NOT_FOUND, "slot %u has freed its source memory %llu", slot,
                  printable(allocation));
    }
    imported.data = found->memory.data();
    imported.keep = std::move(found);
  } else {
    MEP_TRY(check_foreign_memfd(fd.get(), imported.bytes));
    auto mapping = std::make_shared<Mapping>();
    MEP_TRY(Mapping::of(fd.get(), imported.bytes, false, mapping.get()));
    imported.data = mapping->data();
    imported.keep = std::move(mapping);
  }
  const std::unique_lock lock(mutex_);
  std::swap(imported_[{slot, incarnation, allocation}], imported);
  return MEP_SUCCESS;  // what was there before ends with `imported`
}

mep_result_t SourceImports::find(uint32_t slot, uint64_t incarnation, uint64_t allocation,
                                 uint64_t offset, size_t bytes, SourceView* view) const {
  const std::shared_lock lock(mutex_);
  const auto found = imported_.find({slot, incarnation, allocation});
  if (found == imported_.end()) {
    return fail(MEP_ERR_NOT_FOUND, "source memory %llu of slot %u is not imported",
                printable(allocation), slot);
  }
  const Imported& imported = found->second;
  if (offset > imported.bytes || bytes > imported.bytes - offset) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "%zu bytes at offset %llu are not within the %zu bytes of slot %u's source memory",
                bytes, printable(offset), imported.bytes, slot);
  }
  *view = {imported.data + offset, imported.keep};
  return MEP_SUCCESS;
}

void SourceImports::drop(uint32_t slot, uint64_t incarnation, uint64_t allocation) {
  const std::unique_lock lock(mutex_);
  imported_.erase({slot, incarnation, allocation});
}

void SourceImports::drop_peer(uint32_t slot) {
  const std::unique_lock lock(mutex_);
  imported_.erase(imported_.lower_bound({slot, 0, 0}),
                  imported_.upper_bound({slot, UINT64_MAX, UINT64_MAX}));
}

size_t SourceImports::size() const {
  const std::shared_lock lock(mutex_);
  return imported_.size();
}

}  // namespace mep
