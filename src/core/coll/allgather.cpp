// Allgather.
//   Small  flat: every rank gives its block to all.
//   Large  section by section: every rank publishes a section of its block; all others copy it out and
//          acknowledge by "taken". Two areas are used in turn, so section c + 2 is published after "taken"
//          of c has come from all. For the last two sections "finished" is the acknowledgement. In one copy
//          where that suits and pays: pulled_blocks.hpp.
//          Over several hosts: allgather_over_hosts.cpp. On one host whose ranks do not map each other: pair_blocks.hpp.
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

mep_result_t check_allgather(const Collectives& comm, const CollectiveArgs& args) {
  MEP_TRY(check_buffers(args, true, true));
  const size_t bytes = args.count * mep_dtype_size(args.dtype);
  if (bytes > SIZE_MAX / 4 / comm.size()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "count %zu is too large for %u ranks", args.count,
                comm.size());
  }
  return check_overlap(args, bytes, bytes * comm.size(), comm.rank() * bytes);
}

void copy_blocks(Collectives& comm, Operation& operation) {
  if (operation.bytes == 0) return;
  for (const uint32_t source : *operation.contributors) {
    if (source == comm.rank()) continue;
    std::memcpy(place_of_gotten(operation, source), comm.contribution(operation, source),
                operation.bytes);
  }
  copy_own_block(comm, operation);
}

Step step_small_allgather(Collectives& comm, Operation& operation) {
  return exchange_small(comm, operation, [&] { copy_blocks(comm, operation); });
}

mep_result_t publish_gathered(Collectives& comm, Operation& operation, uint64_t section) {
  const Pipeline& pipeline = comm.pipeline();
  const uint64_t global = pipeline.first_chunk() + section;
  const size_t bytes = pipeline.bytes_in_section(operation.bytes, section);
  MEP_TRY(pipeline.publish_section(
      global,
      static_cast<const std::byte*>(operation.args.send) + section * pipeline.section_bytes(),
      bytes));
  return pipeline.signal_all(Pipeline::Word::kPosted, global);
}

void copy_section(Collectives& comm, Operation& operation, uint64_t section) {
  const Pipeline& pipeline = comm.pipeline();
  for (const uint32_t source : pipeline.live()) {
    if (source == comm.rank()) continue;
    std::memcpy(place_of_gotten(operation, source) + section * pipeline.section_bytes(),
                pipeline.out_section(pipeline.first_chunk() + section, source),
                pipeline.bytes_in_section(operation.bytes, section));
  }
}

// Publishes the present section (operation.chunk), and the next one once all have taken the one before the present.
Step publish_ahead(Collectives& comm, Operation& operation, uint64_t sections) {
  const Pipeline& pipeline = comm.pipeline();
  while (operation.chunk_posted < sections && operation.chunk_posted <= operation.chunk + 1) {
    uint32_t cursor = 0;
    if (operation.chunk_posted >= Pipeline::kRing &&
        !pipeline.arrived_from_all(
            Pipeline::Word::kTaken,
            pipeline.first_chunk() + operation.chunk_posted - Pipeline::kRing, &cursor)) {
      return Step::kPending;
    }
    const mep_result_t published = publish_gathered(comm, operation, operation.chunk_posted);
    if (published != MEP_SUCCESS) return fail_step(operation, published);
    ++operation.chunk_posted;
  }
  return Step::kDone;
}

Step step_sections(Collectives& comm, Operation& operation) {
  const Pipeline& pipeline = comm.pipeline();
  const uint64_t sections = pipeline.sections_of(operation.bytes);
  const PostingScope posting = comm.posting();
  if (!posting.allowed()) return Step::kPending;
  for (;;) {
    if (operation.chunk == sections) break;
    if (publish_ahead(comm, operation, sections) == Step::kFailed) return Step::kFailed;
    // Only the next section may be unpublished when this rank goes on to wait for the present one of the others.
    if (operation.chunk_posted <= operation.chunk) return Step::kPending;
    const uint64_t global = pipeline.first_chunk() + operation.chunk;
    if (!pipeline.arrived_from_all(Pipeline::Word::kPosted, global, &operation.cursor)) {
      return Step::kPending;
    }
    copy_section(comm, operation, operation.chunk);
    if (operation.chunk + Pipeline::kRing < sections) {
      const mep_result_t taken = pipeline.signal_all(Pipeline::Word::kTaken, global);
      if (taken != MEP_SUCCESS) return fail_step(operation, taken);
    }
    ++operation.chunk;
  }
  comm.pipeline().advance(sections);
  return Step::kDone;
}

Step move_blocks(Collectives& comm, Operation& operation) {
  const bool over_hosts = comm.pipeline().hosts().several();
  const Step moved =
      over_hosts ? allgather_over_hosts(comm, operation) : step_sections(comm, operation);
  if (moved == Step::kDone) copy_own_block(comm, operation);
  return moved;
}

Step step_large_allgather(Collectives& comm, Operation& operation) {
  if (comm.eager().is_apart()) return step_large_pairs(comm, operation);
  const auto move = [&] { return move_blocks(comm, operation); };
  if (suits_pulling(comm, operation) && pays_pulling(comm, operation, operation.bytes)) {
    return step_pulled(comm, operation, move);
  }
  return step_large_phases(
      comm, operation, [] { return Step::kDone; }, move);
}

Step step_allgather(Collectives& comm, Operation& operation) {
  if (comm.adopted().live.size() == 1) {
    copy_own_block(comm, operation);
    comm.eager().note_all_entered(operation.seq);
    return Step::kDone;
  }
  return operation.is_small ? step_small_allgather(comm, operation)
                            : step_large_allgather(comm, operation);
}

Step settle_allgather(Collectives& comm, Operation& operation) {
  if (!operation.is_small) return settle_large(operation);
  if (operation.bytes == 0) return Step::kDone;
  for (const uint32_t source : *operation.contributors) {
    std::memcpy(place_of_gotten(operation, source), comm.contribution(operation, source),
                operation.bytes);
  }
  return Step::kDone;
}

}  // namespace

const CollectiveType CollectiveTypes::allgather = {
    facts_of(Collective::k_allgather), check_allgather, step_allgather, settle_allgather};

}  // namespace mep
