// Source memory: what a rank reads from and its peers on the host may pull, but never write.
//
// The owner writes through the one mapping that exists when the memory is sealed
// (F_SEAL_FUTURE_WRITE); nobody can get a second writable one, and the descriptor that peers are
// given is open for reading only. Peers name a place in it by (slot, incarnation, allocation,
// offset) and map an allocation when they first meet it.
//
// Invariants
//   - An allocation id is never used again by the same incarnation.
//   - Memory that a peer found stays readable until the peer lets go of it, also when the owner has
//     freed the allocation or is dead.
//   - Ranks of one process read at the owner's own address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <span>
#include <tuple>

#include "mep.h"
#include "transport/memfd.hpp"
#include "transport/transport.hpp"

namespace mep {

struct SourceAllocation {
  uint64_t id = 0;
  Mapping memory;
  UniqueFd read_only_fd;
};

// The memory that one rank has allocated. Any thread.
class SourceMemory {
 public:
  explicit SourceMemory(uint64_t incarnation) : incarnation_(incarnation) {}
  ~SourceMemory();
  SourceMemory(const SourceMemory&) = delete;
  SourceMemory& operator=(const SourceMemory&) = delete;

  struct Place {
    uint64_t allocation = 0;
    uint64_t offset = 0;
  };

  // Zeroed and page-aligned.
  [[nodiscard]] mep_result_t allocate(size_t bytes, void** memory);
  // *allocation (may be null): which one it was, so that peers can be told to forget it. *kept (may be null)
  // holds the mapping from then on.
  [[nodiscard]] mep_result_t free(void* memory, uint64_t* allocation,
                                  std::shared_ptr<const void>* kept = nullptr);
  // Whether [pointer, pointer + bytes) lies in one allocation. False is no error.
  bool find(const void* pointer, size_t bytes, Place* place) const;
  // For a peer: the same blob and descriptor serve all of them, in this process or another.
  [[nodiscard]] mep_result_t export_allocation(uint64_t allocation, WindowExport* out) const;

 private:
  const uint64_t incarnation_;
  mutable std::shared_mutex mutex_;
  uint64_t next_id_ = 1;
  // By address of the first byte.
  std::map<uintptr_t, std::shared_ptr<SourceAllocation>> allocations_;
};

// Bytes of a peer's source memory; they stay readable as long as this lives.
struct SourceView {
  const std::byte* data = nullptr;
  std::shared_ptr<const void> keep;
};

// The peers' allocations that this rank has met. Any thread.
class SourceImports {
 public:
  // The memory comes from the process-wide list if the owner is a rank of this process
  // (`same_process`), else by mapping `fd` for reading. Importing again replaces.
  [[nodiscard]] mep_result_t import(uint32_t slot, uint64_t incarnation, uint64_t allocation,
                                    bool same_process, std::span<const std::byte> blob,
                                    UniqueFd fd);
  // MEP_ERR_NOT_FOUND: not imported yet, ask the owner for it. MEP_ERR_INVALID_ARGUMENT: imported,
  // but the peer named bytes outside of it.
  [[nodiscard]] mep_result_t find(uint32_t slot, uint64_t incarnation, uint64_t allocation,
                                  uint64_t offset, size_t bytes, SourceView* view) const;
  // The owner has freed it, or has gone. Views that were given out stay good.
  void drop(uint32_t slot, uint64_t incarnation, uint64_t allocation);
  void drop_peer(uint32_t slot);
  size_t size() const;

 private:
  using Key = std::tuple<uint32_t, uint64_t, uint64_t>;  // slot, incarnation, allocation
  struct Imported {
    const std::byte* data = nullptr;
    size_t bytes = 0;
    std::shared_ptr<const void> keep;
  };

  mutable std::shared_mutex mutex_;
  std::map<Key, Imported> imported_;
};

}  // namespace mep
