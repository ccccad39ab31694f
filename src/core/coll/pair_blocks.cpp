#include "core/coll/pair_blocks.hpp"

#include <algorithm>
#include <cstring>

#include "core/coll/block_places.hpp"
#include "core/coll/check.hpp"
#include "core/coll/counted_blocks.hpp"
#include "core/coll/pulled_blocks.hpp"
#include "core/coll/steps.hpp"
#include "kernels/host/kernels.hpp"

namespace mep {
namespace {

constexpr size_t kLeastLanding = size_t{64} << 10;
// A longer block saves more by landing whole than by going on before the entries have come.
constexpr size_t kLeastToWait = size_t{512} << 10;

// By rank, in the entry of `target`; null: it has none.
const std::byte* numbers_in(const Collectives& comm, const Operation& operation, uint32_t target) {
  const std::byte* entry = comm.contribution(operation, target);
  if (operation.counted == nullptr) return entry;
  return comm.eager().is_entry_only(operation.seq, target) ? numbers_in_counted(comm, entry)
                                                           : nullptr;
}

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
    const Step entered = enter_as_root(comm, operation);
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

// Where the blocks all have one length: entries may have the numbers of targets.
bool may_land(const Collectives& comm, const Operation& operation) {
  return !type_of(operation).takes_op && !comm.eager().groups().all_mapped() &&
         comm.size() * sizeof(uint64_t) <= comm.eager().payload_bytes();
}

// This rank's entry names its targets, if all blocks have one length. The sections that go before the entry do not land there.
void offer_landings(Collectives& comm, Operation& operation) {
  const size_t before = operation.chunk_entered * comm.pipeline().section_bytes();
  if (!may_land(comm, operation) || operation.bytes <= std::max(before, kLeastLanding)) return;
  operation.landing_bytes = comm.size() * sizeof(uint64_t);
  open_pair_landings(comm, operation);
}

// The target of the block for this rank; 0: it goes by sections. All entries are here.
uint64_t landing_at(const Collectives& comm, const Operation& operation, uint32_t target) {
  uint64_t number = 0;
  if (operation.landing_bytes == 0) return number;
  const std::byte* numbers = numbers_in(comm, operation, target);
  if (numbers != nullptr) {
    std::memcpy(&number, numbers + comm.rank() * sizeof number, sizeof number);
  }
  return number;
}

// The block goes on in this section.
bool reaches(const Pipeline& pipeline, const Block& block, uint64_t section) {
  return block.bytes > section * pipeline.section_bytes();
}

bool gives_section(const Collectives& comm, const Operation& operation, uint32_t target,
                   uint64_t section) {
  return gives_to(comm, operation, target) &&
         reaches(comm.pipeline(), block_given(operation, target), section) &&
         (section < operation.chunk_entered || landing_at(comm, operation, target) == 0);
}

bool gets_section(const Collectives& comm, const Operation& operation, uint32_t source,
                  uint64_t section) {
  return gets_from(comm, operation, source) &&
         reaches(comm.pipeline(), block_gotten(operation, source), section) &&
         (section < operation.chunk_entered || !comm.landings().is_offered(source));
}

mep_result_t post_pair_section(Collectives& comm, Operation& operation, uint64_t section) {
  const Pipeline& pipeline = comm.pipeline();
  const uint64_t global = pipeline.first_chunk() + section;
  for (const uint32_t target : pipeline.live()) {
    if (!gives_section(comm, operation, target, section)) continue;
    const Block block = block_given(operation, target);
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
    return !gives_section(comm, operation, target, section) ||
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
    if (!gets_section(comm, operation, source, section)) continue;
    const Block block = block_gotten(operation, source);
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
    if (!gets_section(comm, operation, source, operation.chunk + Pipeline::kRing)) continue;
    MEP_TRY(pipeline.signal_one(Pipeline::Word::kTaken, pipeline.first_chunk() + operation.chunk,
                                source));
  }
  return MEP_SUCCESS;
}

// Puts as much as the network takes of the blocks that land at others. *all: nothing of them is left to put.
mep_result_t put_landings(Collectives& comm, Operation& operation, bool* all) {
  const Pipeline& pipeline = comm.pipeline();
  const uint64_t first = operation.chunk_entered;
  const size_t before = first * pipeline.section_bytes();
  *all = true;
  if (operation.landing_bytes == 0) return MEP_SUCCESS;
  for (const uint32_t target : pipeline.live()) {
    const uint64_t number =
        gives_to(comm, operation, target) ? landing_at(comm, operation, target) : 0;
    if (number == 0) continue;
    const size_t bytes = block_given(operation, target).bytes - before;
    bool moved = true;
    while (moved && !comm.landings().is_put(target, bytes)) {
      MEP_TRY(comm.landings().put_part(target, number, place_of_given(operation, target) + before,
                                       bytes, &moved));
      if (!moved) break;
      ++operation.parts_put;
      if (!comm.landings().is_put(target, bytes)) continue;
      MEP_TRY(pipeline.signal_one(Pipeline::Word::kPosted, pipeline.first_chunk() + first, target));
    }
    *all = *all && comm.landings().is_put(target, bytes);
  }
  return MEP_SUCCESS;
}

bool have_landed(Collectives& comm, const Operation& operation) {
  const Pipeline& pipeline = comm.pipeline();
  const uint64_t word = pipeline.first_chunk() + operation.chunk_entered;
  return std::all_of(pipeline.live().begin(), pipeline.live().end(), [&](uint32_t source) {
    return !comm.landings().is_offered(source) ||
           pipeline.arrived(Pipeline::Word::kPosted, word, source);
  });
}

// --- Large, ended at the root ---------------------------------------------------------------------

// kDone: all others have entered, so each has what it gets and has given all.
Step collect_at_root(Collectives& comm, Operation& operation) {
  if (comm.eager().takes_batches() && relay_step(comm, operation) == Step::kFailed) {
    return Step::kFailed;
  }
  const std::vector<uint32_t>& sources = *operation.contributors;
  for (; operation.cursor < sources.size(); ++operation.cursor) {
    const uint32_t source = sources[operation.cursor];
    bool mismatch = false;
    if (source == comm.rank()) continue;
    if (!comm.eager().arrived(operation, source, &mismatch)) {
      return look_for_mismatch(comm, operation);
    }
    if (mismatch) return mismatch_step(comm, operation, source);
    // A rank that waits long for its block shows its call without having entered.
    if (!comm.eager().is_entry_only(operation.seq, source)) return Step::kPending;
    comm.eager().note_entered(source, operation.seq);
  }
  operation.cursor = 0;
  return Step::kDone;
}

// The entries stand for "posted" of all sections.
Step move_with_entries(Collectives& comm, Operation& operation) {
  operation.chunk_entered = Pipeline::kRing;
  return move_pair_blocks(comm, operation, comm.pipeline().sections_of(operation.bytes));
}

Step end_as_root(Collectives& comm, Operation& operation) {
  const bool is_giver = type_of(operation).only_root_gives();
  if (is_in(operation, LargePhase::kBegin)) {
    const Step moved = is_giver ? move_with_entries(comm, operation) : Step::kDone;
    if (moved != Step::kDone) return moved;
    go_to(operation, LargePhase::kEnter);
  }
  if (is_in(operation, LargePhase::kEnter)) {
    const Step entered = is_giver ? enter_large(comm, operation) : Step::kDone;
    if (entered != Step::kDone) return entered;
    go_to(operation, LargePhase::kCollect);
  }
  if (is_in(operation, LargePhase::kCollect)) {
    const Step collected = collect_at_root(comm, operation);
    if (collected != Step::kDone) return collected;
    go_to(operation, LargePhase::kMove);
  }
  if (is_in(operation, LargePhase::kMove)) {
    const Step moved = is_giver ? Step::kDone : move_with_entries(comm, operation);
    if (moved != Step::kDone) return moved;
    go_to(operation, LargePhase::kFinish);
  }
  MEP_TEST_DELAY_POINT("large finish");
  return enter_small(comm, operation, nullptr, 0, EagerRing::kRooted);
}

Step end_by_root(Collectives& comm, Operation& operation) {
  const auto root = static_cast<uint32_t>(operation.args.root);
  if (is_in(operation, LargePhase::kBegin)) {
    const Step entered =
        gets(operation, comm.rank()) ? take_from_root(comm, operation, root) : Step::kDone;
    if (entered != Step::kDone) return entered;
    go_to(operation, LargePhase::kMove);
  }
  if (is_in(operation, LargePhase::kMove)) {
    const Step moved = move_with_entries(comm, operation);
    if (moved != Step::kDone) return moved;
    go_to(operation, LargePhase::kEnter);
  }
  if (is_in(operation, LargePhase::kEnter)) {
    const Step entered = enter_large(comm, operation);
    if (entered != Step::kDone) return entered;
    go_to(operation, LargePhase::kFinish);
  }
  return comm.eager().has_ended(operation, root) ? Step::kDone : look_for_mismatch(comm, operation);
}

Step step_ended_at_root(Collectives& comm, Operation& operation) {
  const bool is_root = static_cast<uint32_t>(operation.args.root) == comm.rank();
  const Step ended = is_root ? end_as_root(comm, operation) : end_by_root(comm, operation);
  if (ended != Step::kDone) return ended;
  comm.pipeline().advance(comm.pipeline().sections_of(operation.bytes));
  comm.eager().note_all_entered(operation.seq);
  return Step::kDone;
}

Step step_pair_alone(Collectives& comm, Operation& operation) {
  take_own_pair_block(comm, operation);
  comm.eager().note_all_entered(operation.seq);
  return Step::kDone;
}

}  // namespace

bool may_end_at_root(const Collectives& comm, const Operation& operation) {
  const CollectiveType& type = type_of(operation);
  if (!type.is_rooted || type.has_counts || operation.kind == Collective::k_broadcast) return false;
  return comm.eager().is_apart() && comm.pipeline().live().size() > 1 &&
         comm.eager().groups().own().leader() == static_cast<uint32_t>(operation.args.root) &&
         comm.pipeline().sections_of(operation.bytes) <= Pipeline::kRing;
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
        // Long blocks land rather than go through the areas.
        const bool waits = operation.bytes > kLeastToWait && may_land(comm, operation);
        const Step posted = waits ? Step::kDone : post_before_entry(comm, operation, [&] {
          return post_pairs_ahead(comm, operation, sections);
        });
        if (posted == Step::kDone) offer_landings(comm, operation);
        return posted;
      },
      [&] {
        return enter_small(comm, operation, comm.landings().numbers().data(),
                           operation.landing_bytes, EagerRing::kEntryOnly);
      },
      move);
}

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

void open_pair_landings(Collectives& comm, Operation& operation) {
  const size_t before = operation.chunk_entered * comm.pipeline().section_bytes();
  comm.landings().begin();
  for (const uint32_t source : *operation.contributors) {
    if (!gets_from(comm, operation, source)) continue;
    const size_t bytes = block_gotten(operation, source).bytes;
    if (bytes <= std::max(before, kLeastLanding)) continue;
    comm.landings().offer(source, place_of_gotten(operation, source) + before, bytes - before);
  }
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
      bytes > kMostRestoredBytes) {
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
  bool are_put = true;
  const mep_result_t put = put_landings(comm, operation, &are_put);
  if (put != MEP_SUCCESS) return fail_step(operation, put);
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
  if (!are_put || !have_landed(comm, operation)) return Step::kPending;
  // A root may still end the operation as a mismatch, in which no rank uses chunks.
  if (!operation.ends_at_root) comm.pipeline().advance(sections);
  if (!type_of(operation).takes_op) copy_own_block(comm, operation);
  return Step::kDone;
}

Step step_pair_blocks(Collectives& comm, Operation& operation) {
  if (comm.adopted().live.size() == 1) return step_pair_alone(comm, operation);
  if (operation.ends_at_root) return step_ended_at_root(comm, operation);
  if (!operation.is_small) return step_large_pairs(comm, operation);
  return type_of(operation).only_root_gives() ? step_from_root(comm, operation)
                                              : step_small_pairs(comm, operation);
}

Step settle_pair_blocks(Collectives& comm, Operation& operation) {
  // The root's word says that this rank has what it gets.
  if (operation.ends_at_root) return Step::kDone;
  if (!operation.is_small) return settle_large(operation);
  return type_of(operation).only_root_gives() ? settle_from_root(comm, operation)
                                              : settle_small(comm, operation);
}

}  // namespace mep
