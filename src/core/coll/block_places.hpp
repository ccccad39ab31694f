// Where the blocks of an operation lie in its buffers, and between whom they go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/coll/collectives.hpp"

namespace mep {

// Where in a rank's contribution the block for `target` begins, if all are equally long.
inline size_t offset_for(const Operation& operation, uint32_t target) {
  return type_of(operation).gives_each_a_block() ? target * operation.bytes : 0;
}

inline Block block_given(const Operation& operation, uint32_t target) {
  if (operation.counted != nullptr) return operation.counted->given[target];
  return {offset_for(operation, target), operation.bytes};
}

inline Block block_gotten(const Operation& operation, uint32_t source) {
  if (operation.counted != nullptr) return operation.counted->gotten[source];
  return {type_of(operation).gets_a_block_of_each() ? source * operation.bytes : 0,
          operation.bytes};
}

inline const std::byte* place_of_given(const Operation& operation, uint32_t target) {
  return static_cast<const std::byte*>(operation.args.send) + block_given(operation, target).offset;
}

inline std::byte* place_of_gotten(const Operation& operation, uint32_t source) {
  return static_cast<std::byte*>(operation.args.receive) + block_gotten(operation, source).offset;
}

// Whether `target` gets something of this rank; and this rank of `source`.
inline bool gives_to(const Collectives& comm, const Operation& operation, uint32_t target) {
  return target != comm.rank() && gives(operation, comm.rank()) && gets(operation, target);
}

inline bool gets_from(const Collectives& comm, const Operation& operation, uint32_t source) {
  return source != comm.rank() && gets(operation, comm.rank()) && gives(operation, source);
}

inline void copy_own_block(const Collectives& comm, const Operation& operation) {
  const uint32_t rank = comm.rank();
  if (!gives(operation, rank) || !gets(operation, rank)) return;
  const size_t bytes = block_gotten(operation, rank).bytes;
  const std::byte* from = place_of_given(operation, rank);
  std::byte* to = place_of_gotten(operation, rank);
  if (bytes != 0 && from != to) std::memcpy(to, from, bytes);
}

}  // namespace mep
