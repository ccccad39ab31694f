// Broadcast.
//   Small  the root puts its contribution to all and is done: whoever has it can give it to others. Ranks of
//          other hosts get it from their host leader, to which the root has put it.
//   Large  chunk by chunk through the root's out area (put to peers that cannot read it). All
//          acknowledge by "taken"; that of chunk c - 2 from all lets the root use its area again. Ends
//          with a round of "finished", the acknowledgement of the last two. In one copy where that suits and
//          pays: pulled_blocks.hpp.
//          Over several hosts: broadcast_over_hosts.cpp. On one host whose ranks do not map each other: pair_blocks.hpp.
#include <algorithm>
#include <cstring>

#include "core/coll/block_places.hpp"
#include "core/coll/check.hpp"
#include "core/coll/over_hosts.hpp"
#include "core/coll/pair_blocks.hpp"
#include "core/coll/pulled_blocks.hpp"
#include "core/coll/steps.hpp"

namespace mep {
namespace {

bool is_root(const Collectives& comm, const CollectiveArgs& args) {
  return static_cast<uint32_t>(args.root) == comm.rank();
}

mep_result_t check_broadcast(const Collectives& comm, const CollectiveArgs& args) {
  MEP_TRY(check_root(comm, args.root));
  MEP_TRY(check_buffers(args, is_root(comm, args), true));
  if (!is_root(comm, args)) return MEP_SUCCESS;
  const size_t bytes = args.count * mep_dtype_size(args.dtype);
  return check_overlap(args, bytes, bytes, 0);
}

Step step_small_broadcast(Collectives& comm, Operation& operation) {
  const auto root = static_cast<uint32_t>(operation.args.root);
  if (root == comm.rank()) {
    const Step entered = enter_as_root(comm, operation);
    if (entered != Step::kDone) return entered;
    copy_own_block(comm, operation);
  } else {
    const Step arrived = take_from_root(comm, operation, root);
    if (arrived != Step::kDone) return arrived;
    if (operation.bytes != 0) {
      std::memcpy(operation.args.receive, comm.contribution(operation, root), operation.bytes);
    }
  }
  return acknowledge_step(comm, operation, root == comm.rank());
}

uint64_t chunk_count(const Operation& operation) {
  return (operation.bytes + Pipeline::kChunkBytes - 1) / Pipeline::kChunkBytes;
}

size_t bytes_of(const Operation& operation, uint64_t chunk) {
  return std::min(Pipeline::kChunkBytes, operation.bytes - chunk * Pipeline::kChunkBytes);
}

Step send_chunks(Collectives& comm, Operation& operation) {
  const Pipeline& pipeline = comm.pipeline();
  for (; operation.chunk < chunk_count(operation); ++operation.chunk) {
    const uint64_t global = pipeline.first_chunk() + operation.chunk;
    if (operation.chunk >= Pipeline::kRing &&
        !pipeline.arrived_from_all(Pipeline::Word::kTaken, global - Pipeline::kRing,
                                   &operation.cursor)) {
      return Step::kPending;
    }
    mep_result_t result =
        pipeline.publish_whole(global,
                               static_cast<const std::byte*>(operation.args.send) +
                                   operation.chunk * Pipeline::kChunkBytes,
                               bytes_of(operation, operation.chunk));
    if (result == MEP_SUCCESS) result = pipeline.signal_all(Pipeline::Word::kPosted, global);
    if (result != MEP_SUCCESS) return fail_step(operation, result);
  }
  return Step::kDone;
}

Step take_chunks(Collectives& comm, Operation& operation, uint32_t root) {
  const Pipeline& pipeline = comm.pipeline();
  for (; operation.chunk < chunk_count(operation); ++operation.chunk) {
    const uint64_t global = pipeline.first_chunk() + operation.chunk;
    if (!pipeline.arrived(Pipeline::Word::kPosted, global, root)) return Step::kPending;
    std::memcpy(
        static_cast<std::byte*>(operation.args.receive) + operation.chunk * Pipeline::kChunkBytes,
        pipeline.whole(global, root), bytes_of(operation, operation.chunk));
    if (operation.chunk + Pipeline::kRing >= chunk_count(operation)) continue;
    const mep_result_t taken = pipeline.signal_one(Pipeline::Word::kTaken, global, root);
    if (taken != MEP_SUCCESS) return fail_step(operation, taken);
  }
  return Step::kDone;
}

Step move_chunks_here(Collectives& comm, Operation& operation) {
  const auto root = static_cast<uint32_t>(operation.args.root);
  const PostingScope posting = comm.posting();
  if (!posting.allowed()) return Step::kPending;
  const Step moved =
      root == comm.rank() ? send_chunks(comm, operation) : take_chunks(comm, operation, root);
  if (moved == Step::kDone) comm.pipeline().advance(chunk_count(operation));
  return moved;
}

Step move_chunks(Collectives& comm, Operation& operation) {
  const bool over_hosts = comm.pipeline().hosts().several();
  const Step moved =
      over_hosts ? broadcast_over_hosts(comm, operation) : move_chunks_here(comm, operation);
  if (moved == Step::kDone) copy_own_block(comm, operation);
  return moved;
}

Step step_large_broadcast(Collectives& comm, Operation& operation) {
  if (comm.eager().is_apart()) return step_large_pairs(comm, operation);
  const auto move = [&] { return move_chunks(comm, operation); };
  if (suits_pulling(comm, operation) && pays_pulling(comm, operation, operation.bytes)) {
    return step_pulled(comm, operation, move);
  }
  return step_large_phases(
      comm, operation, [] { return Step::kDone; }, move);
}

Step step_broadcast(Collectives& comm, Operation& operation) {
  if (comm.adopted().live.size() == 1) {
    copy_own_block(comm, operation);
    comm.eager().note_all_entered(operation.seq);
    return Step::kDone;
  }
  return operation.is_small ? step_small_broadcast(comm, operation)
                            : step_large_broadcast(comm, operation);
}

Step settle_broadcast(Collectives& comm, Operation& operation) {
  if (!operation.is_small) return settle_large(operation);
  const auto root = static_cast<uint32_t>(operation.args.root);
  const std::byte* bytes = comm.contribution(operation, root);
  if (bytes == nullptr) return not_root_step(operation);
  if (operation.bytes != 0) std::memcpy(operation.args.receive, bytes, operation.bytes);
  return Step::kDone;
}

}  // namespace

const CollectiveType CollectiveTypes::broadcast = {
    facts_of(Collective::k_broadcast), check_broadcast, step_broadcast, settle_broadcast};

}  // namespace mep
