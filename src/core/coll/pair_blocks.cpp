#include "core/coll/pair_blocks.hpp"

#include <algorithm>
#include <cstring>

#include "core/coll/block_places.hpp"
#include "core/coll/check.hpp"
#include "core/coll/pulled_blocks.hpp"
#include "core/coll/steps.hpp"
#include "kernels/host/kernels.hpp"

namespace mep {
namespace {

bool is_in_place(const Collectives& comm, const Operation& operation) {
  const uint32_t rank = comm.rank();
  return gives(operation, rank) && gets(operation, rank) &&
         place_of_given(operation, rank) == place_of_gotten(operation, rank);
}

// --- Small ----------------------------------------------------------------------------------------

// Out of the contributions, which are all here or retained.
void take_contributed_blocks(Collectives& comm, Operation& operation) {
  if (operation.bytes == 0 || !gets(operation, comm.rank())) return;
  const std::vector<uint32_t>& sources = *operation.contributors;
  const size_t offset = offset_for(operation, comm.rank());
  if (!type_of(operation).takes_op) {
    for (const uint32_t source : sources) {
      std::memcpy(place_of_gotten(operation, source), comm.contribution(operation, source) + offset,
                  operation.bytes);
    }
    return;
  }
  std::vector<const void*>& inputs = comm.scratch_pointers();
  inputs.clear();
  for (const uint32_t source : sources) {
    inputs.push_back(comm.contribution(operation, source) + offset);
  }
  reduce_pair_blocks(comm, operation, inputs, 0, operation.bytes);
}

Step step_small_pairs(Collectives& comm, Operation& operation) {
  return exchange_small(comm, operation, [&] { take_contributed_blocks(comm, operation); });
}

Step settle_small(Collectives& comm, Operation& operation) {
  take_contributed_blocks(comm, operation);
  return Step::kDone;
}

// --- Small, from the root alone -------------------------------------------------------------------

Step step_from_root(Collectives& comm, Operation& operation) {
  const auto root = static_cast<uint32_t>(operation.args.root);
  if (root != comm.rank()) {
    const Step arrived = take_from_root(comm, operation, root);
    if (arrived != Step::kDone) return arrived;
  } else {
    const Step entered = enter_small(comm, operation, operation.args.send, operation.given_bytes,
                                     EagerRing::kRooted);
    if (entered != Step::kDone) return entered;
  }
  if (operation.bytes != 0) {
    std::memcpy(operation.args.receive,
                comm.contribution(operation, root) + offset_for(operation, comm.rank()),
                operation.bytes);
  }
  return acknowledge_step(comm, operation, root == comm.rank());
}

Step settle_from_root(Collectives& comm, Operation& operation) {
  const auto root = static_cast<uint32_t>(operation.args.root);
  const std::byte* contribution = comm.contribution(operation, root);
  if (contribution == nullptr) return not_root_step(operation);
  if (operation.bytes != 0) {
    std::memcpy(operation.args.receive, contribution + offset_for(operation, comm.rank()),
                operation.bytes);
  }
  return Step::kDone;
}

// --- Large ----------------------------------------------------------------------------------------

// The block goes on in this section.
bool reaches(const Pipeline& pipeline, const Block& block, uint64_t section) {
  return block.bytes > section * pipeline.section_bytes();
}

mep_result_t post_pair_section(Collectives& comm, Operation& operation, uint64_t section) {
  const Pipeline& pipeline = comm.pipeline();
  const uint64_t global = pipeline.first_chunk() + section;
  for (const uint32_t target : pipeline.live()) {
    if (!gives_to(comm, operation, target)) continue;
    const Block block = block_given(operation, target);
    if (!reaches(pipeline, block, section)) continue;
    const std::byte* data = place_of_given(operation, target) + section * pipeline.section_bytes();
    MEP_TRY(pipeline.put_in(global, target, data, pipeline.bytes_in_section(block.bytes, section)));
    if (section < operation.chunk_entered) continue;
    MEP_TRY(pipeline.signal_one(Pipeline::Word::kPosted, global, target));
  }
  return MEP_SUCCESS;
}

// Whether the areas are free for a section: all that get it have taken the one before the last.
bool is_free(Collectives& comm, const Operation& operation, uint64_t section) {
  const Pipeline& pipeline = comm.pipeline();
  if (section < Pipeline::kRing) return true;
  const uint64_t before = pipeline.first_chunk() + section - Pipeline::kRing;
  return std::all_of(pipeline.live().begin(), pipeline.live().end(), [&](uint32_t target) {
    return !gives_to(comm, operation, target) ||
           !reaches(pipeline, block_given(operation, target), section) ||
           pipeline.arrived(Pipeline::Word::kTaken, before, target);
  });
}

// Posts the present section and, once the one before it is taken, the next.
mep_result_t post_pairs_ahead(Collectives& comm, Operation& operation, uint64_t sections) {
  while (operation.chunk_posted < sections && operation.chunk_posted <= operation.chunk + 1) {
    if (!is_free(comm, operation, operation.chunk_posted)) return MEP_SUCCESS;
    MEP_TRY(post_pair_section(comm, operation, operation.chunk_posted));
    ++operation.chunk_posted;
  }
  return MEP_SUCCESS;
}

void reduce_section(Collectives& comm, Operation& operation, uint64_t section) {
  const Pipeline& pipeline = comm.pipeline();
  // The own block is as long as those of all others.
  const Block own = block_gotten(operation, comm.rank());
  if (!reaches(pipeline, own, section)) return;
  const size_t offset = section * pipeline.section_bytes();
  std::vector<const void*>& inputs = comm.scratch_pointers();
  inputs.clear();
  for (const uint32_t source : pipeline.live()) {
    inputs.push_back(source == comm.rank()
                         ? place_of_given(operation, source) + offset
                         : pipeline.in_section(pipeline.first_chunk() + section, source));
  }
  MEP_TEST_DELAY_POINT("large reduce");
  reduce_pair_blocks(comm, operation, inputs, offset,
                     pipeline.bytes_in_section(own.bytes, section));
}

// kDone: the present section of all blocks that this rank gets is in its receive buffer, once.
Step take_section(Collectives& comm, Operation& operation) {
  const Pipeline& pipeline = comm.pipeline();
  const uint64_t section = operation.chunk;
  const uint64_t global = pipeline.first_chunk() + section;
  if (operation.chunk_taken > section || !gets(operation, comm.rank())) return Step::kDone;
  const bool reduces = type_of(operation).takes_op;
  for (; operation.cursor < pipeline.live().size(); ++operation.cursor) {
    const uint32_t source = pipeline.live()[operation.cursor];
    if (!gets_from(comm, operation, source)) continue;
    const Block block = block_gotten(operation, source);
    if (!reaches(pipeline, block, section)) continue;
    if (section >= operation.chunk_entered &&
        !pipeline.arrived(Pipeline::Word::kPosted, global, source)) {
      return Step::kPending;
    }
    if (reduces) continue;
    MEP_TEST_DELAY_POINT("large copy");
    std::memcpy(place_of_gotten(operation, source) + section * pipeline.section_bytes(),
                pipeline.in_section(global, source),
                pipeline.bytes_in_section(block.bytes, section));
  }
  operation.cursor = 0;
  if (reduces) reduce_section(comm, operation, section);
  operation.chunk_taken = section + 1;
  return Step::kDone;
}

// Acknowledges the present section to those from whom another one will follow in its area.
mep_result_t signal_taken(Collectives& comm, const Operation& operation, uint64_t sections) {
  const Pipeline& pipeline = comm.pipeline();
  if (operation.chunk + Pipeline::kRing >= sections) return MEP_SUCCESS;
  for (const uint32_t source : pipeline.live()) {
    if (!gets_from(comm, operation, source) ||
        !reaches(pipeline, block_gotten(operation, source), operation.chunk + Pipeline::kRing)) {
      continue;
    }
    MEP_TRY(pipeline.signal_one(Pipeline::Word::kTaken, pipeline.first_chunk() + operation.chunk,
                                source));
  }
  return MEP_SUCCESS;
}

Step step_large_pairs(Collectives& comm, Operation& operation) {
  const uint64_t sections = comm.pipeline().sections_of(operation.bytes);
  const auto move = [&] { return move_pair_blocks(comm, operation, sections); };
  if (suits_pulling(comm, operation) && pays_pulling(comm, operation, operation.bytes)) {
    return step_pulled(comm, operation, move);
  }
  return step_large_phases(
      comm, operation,
      [&] {
        return post_before_entry(comm, operation,
                                 [&] { return post_pairs_ahead(comm, operation, sections); });
      },
      move);
}

Step step_pair_alone(Collectives& comm, Operation& operation) {
  take_own_pair_block(comm, operation);
  comm.eager().note_all_entered(operation.seq);
  return Step::kDone;
}

}  // namespace

mep_result_t check_pair_blocks(Collective kind, const Collectives& comm,
                               const CollectiveArgs& args) {
  const OperationFacts& facts = facts_of(kind);
  if (facts.is_rooted) MEP_TRY(check_root(comm, args.root));
  const bool gives = facts.gives(comm.rank(), static_cast<uint32_t>(args.root));
  const bool gets = facts.gets(comm.rank(), static_cast<uint32_t>(args.root));
  MEP_TRY(check_buffers(args, gives, gets));
  if (facts.takes_op) MEP_TRY(check_operator(args));
  const size_t bytes = args.count * mep_dtype_size(args.dtype);
  if (bytes > SIZE_MAX / 4 / comm.size()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "count %zu is too large for %u ranks", args.count,
                comm.size());
  }
  if (!gives || !gets) return MEP_SUCCESS;
  const size_t send_bytes = bytes * facts.send_blocks(comm.size());
  const size_t receive_bytes = bytes * facts.receive_blocks(comm.size());
  if (facts.gives_each_a_block() && facts.gets_a_block_of_each()) {
    return check_apart(args, send_bytes, receive_bytes);
  }
  // In place a rank's own block lies where it gives it.
  const size_t own = comm.rank() * bytes;
  return check_overlap(args, send_bytes, receive_bytes, facts.gets_a_block_of_each() ? own : 0,
                       facts.gives_each_a_block() ? own : 0);
}

// Like an allreduce, an operation that fits into an eager slot in every epoch writes its result only when nothing
// can fail any more.
mep_result_t prepare_pair_blocks(const Collectives& comm, Operation& operation) {
  if (operation.given_bytes <= EagerRing::kMappedPayloadBytes) return MEP_SUCCESS;
  return save_pair_block_input(comm, operation);
}

mep_result_t save_pair_block_input(const Collectives& comm, Operation& operation) {
  const size_t bytes = block_gotten(operation, comm.rank()).bytes;
  if (!type_of(operation).takes_op || bytes == 0 || !is_in_place(comm, operation) ||
      bytes > comm.world().config().in_place_restore_bytes) {
    return MEP_SUCCESS;
  }
  const std::byte* input = place_of_given(operation, comm.rank());
  operation.saved_input.assign(input, input + bytes);
  return MEP_SUCCESS;
}

void reduce_pair_blocks(const Collectives& comm, Operation& operation,
                        const std::vector<const void*>& inputs, size_t offset, size_t bytes) {
  operation.input_intact = operation.input_intact && !is_in_place(comm, operation);
  reduce_rows(operation.args.dtype, operation.args.op,
              static_cast<std::byte*>(operation.args.receive) + offset, inputs.data(),
              inputs.size(), bytes / mep_dtype_size(operation.args.dtype),
              static_cast<uint32_t>(inputs.size()));
}

void take_own_pair_block(Collectives& comm, Operation& operation) {
  if (!type_of(operation).takes_op) return copy_own_block(comm, operation);
  const size_t bytes = block_gotten(operation, comm.rank()).bytes;
  if (bytes == 0) return;
  std::vector<const void*>& inputs = comm.scratch_pointers();
  inputs.assign(1, place_of_given(operation, comm.rank()));
  reduce_pair_blocks(comm, operation, inputs, 0, bytes);
}

Step move_pair_blocks(Collectives& comm, Operation& operation, uint64_t sections) {
  const PostingScope posting = comm.posting();
  if (!posting.allowed()) return Step::kPending;
  while (operation.chunk < sections) {
    mep_result_t result = post_pairs_ahead(comm, operation, sections);
    if (result != MEP_SUCCESS) return fail_step(operation, result);
    // A section that could not be posted yet is not the one that is awaited.
    if (operation.chunk_posted <= operation.chunk) return Step::kPending;
    if (take_section(comm, operation) == Step::kPending) return Step::kPending;
    result = signal_taken(comm, operation, sections);
    if (result != MEP_SUCCESS) return fail_step(operation, result);
    ++operation.chunk;
  }
  comm.pipeline().advance(sections);
  if (!type_of(operation).takes_op) copy_own_block(comm, operation);
  return Step::kDone;
}

Step step_pair_blocks(Collectives& comm, Operation& operation) {
  if (comm.adopted().live.size() == 1) return step_pair_alone(comm, operation);
  if (!operation.is_small) return step_large_pairs(comm, operation);
  return type_of(operation).only_root_gives() ? step_from_root(comm, operation)
                                              : step_small_pairs(comm, operation);
}

Step settle_pair_blocks(Collectives& comm, Operation& operation) {
  if (!operation.is_small) return settle_large(operation);
  return type_of(operation).only_root_gives() ? settle_from_root(comm, operation)
                                              : settle_small(comm, operation);
}

}  // namespace mep
