// The lengths of blocks that have one each: as a call gives them, and as an operation keeps them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mep {

// In elements, as in mep.h. Read during the call only.
struct BlockCounts {
  const size_t* own = nullptr;  // of the buffer with one block; null: it is this rank's of `counts`
  // By comm rank, of the buffer that has a block for each: sendbuf where both have.
  const uint64_t* counts = nullptr;
  const uint64_t* displs = nullptr;  // null: one behind the other
  // These are recvbuf's where both buffers have their own.
  const uint64_t* recv_counts = nullptr;
  const uint64_t* recv_displs = nullptr;
};

// Bytes in one of the caller's buffers.
struct Block {
  size_t offset = 0;
  size_t bytes = 0;
};

struct CountedBlocks {
  std::vector<Block> given;   // by comm rank that gets it
  std::vector<Block> gotten;  // by comm rank that gives it
  // This rank's small contribution, or its beginning alone where the rest does not fit into an eager slot.
  std::vector<std::byte> contribution;
  size_t contribution_bytes = 0;
  bool is_whole = false;  // all of it is there
  uint64_t most_bytes =
      0;  // of a block that some rank gives another, once all contributions are here
};

}  // namespace mep
