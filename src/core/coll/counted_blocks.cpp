#include "core/coll/counted_blocks.hpp"

#include <algorithm>
#include <cstring>

#include "core/coll/block_places.hpp"
#include "core/coll/pair_blocks.hpp"
#include "core/coll/pulled_blocks.hpp"
#include "core/coll/steps.hpp"

namespace mep {
namespace {

struct Beginning {
  uint64_t given;
  uint64_t expected;
  uint64_t most;       // bytes of a block for another rank
  uint32_t bytes;      // of the contribution, this included
  uint32_t reads_all;  // 1: this rank can read the memory of all others
};

// Where the blocks begin in a contribution to an operation of `size` ranks.
size_t blocks_at(const Operation& operation, uint32_t size) {
  const size_t ends =
      type_of(operation).gives_each_a_block() ? (size + size_t{1}) / 2 * sizeof(uint64_t) : 0;
  return sizeof(Beginning) + ends;
}

size_t offer_bytes(uint32_t size) {
  return sizeof(Beginning) + sizeof(MemoryOffer) + size * sizeof(uint64_t);
}

// --- Lengths that fit together --------------------------------------------------------------------

// Neighbouring numbers give hashes that have nothing to do with each other, so that errors do not add up to 0.
uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

uint64_t hash_of(uint32_t source, uint32_t target, size_t bytes) {
  const uint64_t pair = uint64_t{source} << 32 | target;
  return mixed(mixed(pair + 0x9e3779b97f4a7c15u) ^ bytes);
}

Beginning make_beginning(const Collectives& comm, const Operation& operation) {
  const CountedBlocks& blocks = *operation.counted;
  const uint32_t own = comm.rank();
  Beginning beginning{};
  for (const uint32_t rank : *operation.contributors) {
    if (gives(operation, own) && gets(operation, rank)) {
      beginning.given += hash_of(own, rank, blocks.given[rank].bytes);
      if (rank != own)
        beginning.most = std::max(beginning.most, uint64_t{blocks.given[rank].bytes});
    }
    if (gives(operation, rank) && gets(operation, own)) {
      beginning.expected += hash_of(rank, own, blocks.gotten[rank].bytes);
    }
  }
  return beginning;
}

Beginning beginning_of(const std::byte* contribution) {
  Beginning beginning;
  std::memcpy(&beginning, contribution, sizeof beginning);
  return beginning;
}

Step lengths_mismatch(const Collectives& comm, Operation& operation) {
  return fail_step(operation,
                   fail(MEP_ERR_MISMATCH,
                        "the counts that the ranks of comm %s gave this %s do not fit together: "
                        "what a rank gives another must be as long as what that one expects",
                        comm.comm().name().c_str(), type_of(operation).name));
}

// Compares the lengths in all contributions; the answer is the same on all ranks.
bool lengths_fit(const Collectives& comm, const Operation& operation) {
  uint64_t difference = 0;
  operation.counted->most_bytes = 0;
  for (const uint32_t source : *operation.contributors) {
    const Beginning beginning = beginning_of(comm.contribution(operation, source));
    difference += beginning.given - beginning.expected;
    operation.counted->most_bytes = std::max(operation.counted->most_bytes, beginning.most);
  }
  return difference == 0;
}

// --- The own contribution -------------------------------------------------------------------------

// Copies the blocks for the live ranks behind each other, if they fit, and notes where they end.
void pack_blocks(const Collectives& comm, const Operation& operation, size_t most) {
  CountedBlocks& blocks = *operation.counted;
  const bool for_each = type_of(operation).gives_each_a_block();
  const auto* send = static_cast<const std::byte*>(operation.args.send);
  size_t at = blocks_at(operation, comm.size());
  blocks.is_whole = at <= most;
  uint32_t next = 0;
  const auto end_before = [&](uint32_t rank) {
    for (; for_each && blocks.is_whole && next < rank; ++next) {
      const auto end = static_cast<uint32_t>(at - blocks_at(operation, comm.size()));
      std::memcpy(blocks.contribution.data() + sizeof(Beginning) + next * sizeof end, &end,
                  sizeof end);
    }
  };
  for (const uint32_t target : *operation.contributors) {
    if (!blocks.is_whole) break;
    const Block& block = blocks.given[target];
    if (!gives(operation, comm.rank()) || !gets(operation, target)) continue;
    end_before(target);
    blocks.is_whole = block.bytes <= most - at;
    if (!blocks.is_whole) break;
    if (block.bytes != 0) {
      std::memcpy(blocks.contribution.data() + at, send + block.offset, block.bytes);
    }
    at += block.bytes;
    if (!for_each) break;  // one and the same for all
  }
  end_before(comm.size());
  blocks.contribution_bytes = blocks.is_whole ? at : sizeof(Beginning);
}

// The part of the send buffer from the first byte that another rank gets to the last one.
Block given_extent(const Collectives& comm, const Operation& operation) {
  size_t first = SIZE_MAX;
  size_t end = 0;
  for (const uint32_t target : *operation.contributors) {
    const Block& block = operation.counted->given[target];
    if (!gives_to(comm, operation, target) || block.bytes == 0) continue;
    first = std::min(first, block.offset);
    end = std::max(end, block.offset + block.bytes);
  }
  return end == 0 ? Block{} : Block{first, end - first};
}

size_t longest_block(const Collectives& comm, const Operation& operation) {
  size_t longest = 0;
  for (const uint32_t rank : *operation.contributors) {
    if (gives_to(comm, operation, rank)) {
      longest = std::max(longest, operation.counted->given[rank].bytes);
    }
    if (gets_from(comm, operation, rank)) {
      longest = std::max(longest, operation.counted->gotten[rank].bytes);
    }
  }
  return longest;
}

// Behind the beginning: where the others may read in this call, and for each rank where its block is.
void pack_offer(Collectives& comm, const Operation& operation, size_t most) {
  CountedBlocks& blocks = *operation.counted;
  const size_t bytes = offer_bytes(comm.size());
  if (bytes > most || !pays_pulling(comm, operation, longest_block(comm, operation))) {
    comm.open_memory().keep_closed();
  } else {
    offer_memory(comm, operation, given_extent(comm, operation));
  }
  const MemoryOffer& offer = comm.open_memory().offer();
  if (bytes > most) return;
  std::byte* at = blocks.contribution.data() + sizeof(Beginning);
  std::memcpy(at, &offer, sizeof offer);
  at += sizeof offer;
  for (const Block& block : blocks.given) {
    const uint64_t from = offer.data + block.offset;
    std::memcpy(at, &from, sizeof from);
    at += sizeof from;
  }
  blocks.contribution_bytes = bytes;
}

// Behind the beginning: the targets where the blocks of others may land.
void pack_landings(Collectives& comm, Operation& operation, size_t most) {
  CountedBlocks& blocks = *operation.counted;
  const size_t bytes = comm.size() * sizeof(uint64_t);
  if (type_of(operation).takes_op || sizeof(Beginning) + bytes > most) return;
  operation.landing_bytes = bytes;
  if (blocks.is_whole) return comm.landings().begin();
  open_pair_landings(comm, operation);
  std::memcpy(blocks.contribution.data() + sizeof(Beginning), comm.landings().numbers().data(),
              bytes);
  blocks.contribution_bytes = sizeof(Beginning) + bytes;
}

void pack(Collectives& comm, Operation& operation) {
  CountedBlocks& blocks = *operation.counted;
  const size_t most = std::min(comm.eager().payload_bytes(), blocks.contribution.size());
  // All need all counts in any case: blocks that go alone are an exchange more.
  pack_blocks(comm, operation, std::min(most, comm.eager().bytes_before_blocks(/*exchanges=*/2)));
  const bool may_pull = suits_pulling(comm, operation) && reads_all(comm);
  if (may_pull && !blocks.is_whole) pack_offer(comm, operation, most);
  if (!comm.eager().groups().all_mapped()) pack_landings(comm, operation, most);
  Beginning beginning = make_beginning(comm, operation);
  beginning.bytes = static_cast<uint32_t>(blocks.contribution_bytes);
  beginning.reads_all = may_pull ? 1 : 0;
  std::memcpy(blocks.contribution.data(), &beginning, sizeof beginning);
}

// --- Small ----------------------------------------------------------------------------------------

// This rank's block in the contribution of `source`; null if it is not as long as it must be.
const std::byte* find_block(const Collectives& comm, const Operation& operation, uint32_t source,
                            size_t most) {
  const std::byte* contribution = comm.contribution(operation, source);
  const size_t begin = blocks_at(operation, comm.size());
  const size_t bytes = counted_contribution_bytes(contribution, most);
  if (bytes < begin) return nullptr;
  size_t first = 0;
  size_t end = bytes - begin;
  if (type_of(operation).gives_each_a_block()) {
    uint32_t ends[2] = {0, 0};
    const std::byte* table = contribution + sizeof(Beginning);
    const uint32_t own = comm.rank();
    if (own != 0) std::memcpy(&ends[0], table + (own - 1) * sizeof ends[0], sizeof ends[0]);
    std::memcpy(&ends[1], table + own * sizeof ends[1], sizeof ends[1]);
    if (ends[1] > end) return nullptr;
    first = ends[0];
    end = ends[1];
  }
  if (first > end || end - first != operation.counted->gotten[source].bytes) return nullptr;
  return contribution + begin + first;
}

// Out of the contributions, which are all here or retained. False: the lengths of one of them contradict it.
bool take_blocks(Collectives& comm, Operation& operation) {
  if (!gets(operation, comm.rank())) return true;
  std::vector<const void*>& inputs = comm.scratch_pointers();
  inputs.clear();
  const size_t most = comm.eager().slot_bytes() - sizeof(uint64_t);
  for (const uint32_t source : *operation.contributors) {
    if (!gives(operation, source)) continue;
    const std::byte* block = find_block(comm, operation, source, most);
    if (block == nullptr) return false;
    const Block& place = operation.counted->gotten[source];
    if (type_of(operation).takes_op) {
      inputs.push_back(block);
    } else if (place.bytes != 0) {
      std::memcpy(static_cast<std::byte*>(operation.args.receive) + place.offset, block,
                  place.bytes);
    }
  }
  const size_t bytes = operation.counted->gotten[comm.rank()].bytes;
  if (!inputs.empty() && bytes != 0) reduce_pair_blocks(comm, operation, inputs, 0, bytes);
  return true;
}

// --- Large, in one copy ---------------------------------------------------------------------------

// The offer in a contribution that is not whole; none if it has no room for one.
MemoryOffer offer_of_counted(const Collectives& comm, const Operation& operation, uint32_t source) {
  MemoryOffer offer;
  const std::byte* contribution = comm.contribution(operation, source);
  if (counted_contribution_bytes(contribution, SIZE_MAX) == offer_bytes(comm.size())) {
    std::memcpy(&offer, contribution + sizeof(Beginning), sizeof offer);
  }
  return offer;
}

bool all_can_pull(Collectives& comm, const Operation& operation) {
  if (!suits_pulling(comm, operation) ||
      !pays_pulling(comm, operation, operation.counted->most_bytes)) {
    return false;
  }
  return std::all_of(operation.contributors->begin(), operation.contributors->end(),
                     [&](uint32_t source) {
                       return beginning_of(comm.contribution(operation, source)).reads_all != 0 &&
                              (!comm.eager().is_entry_only(operation.seq, source) ||
                               offer_of_counted(comm, operation, source).word != 0);
                     });
}

PullPlace place_of_block(Collectives& comm, const Operation& operation, uint32_t source) {
  if (!comm.eager().is_entry_only(operation.seq, source)) {
    const size_t most = comm.eager().slot_bytes() - sizeof(uint64_t);
    return {find_block(comm, operation, source, most), {}, 0};
  }
  PullPlace place{nullptr, offer_of_counted(comm, operation, source), 0};
  std::memcpy(&place.from,
              comm.contribution(operation, source) + sizeof(Beginning) + sizeof(MemoryOffer) +
                  comm.rank() * sizeof place.from,
              sizeof place.from);
  return place;
}

// --- Both -----------------------------------------------------------------------------------------

bool all_are_whole(Collectives& comm, const Operation& operation) {
  return std::none_of(
      operation.contributors->begin(), operation.contributors->end(),
      [&](uint32_t source) { return comm.eager().is_entry_only(operation.seq, source); });
}

// All contributions are here. kDone: the operation has ended; kPending: it goes on as a large one.
Step take_contributions(Collectives& comm, Operation& operation) {
  const bool fits = lengths_fit(comm, operation);
  if (fits && !all_are_whole(comm, operation)) return Step::kPending;
  const bool taken = fits && take_blocks(comm, operation);
  comm.eager().note_all_entered(operation.seq);
  return taken ? Step::kDone : lengths_mismatch(comm, operation);
}

Step step_counted_alone(Collectives& comm, Operation& operation) {
  comm.eager().note_all_entered(operation.seq);
  const Beginning beginning = make_beginning(comm, operation);
  if (beginning.given != beginning.expected) return lengths_mismatch(comm, operation);
  take_own_pair_block(comm, operation);
  return Step::kDone;
}

}  // namespace

size_t counted_contribution_bytes(const std::byte* contribution, size_t most) {
  return std::min<size_t>(beginning_of(contribution).bytes, most);
}

const std::byte* numbers_in_counted(const Collectives& comm, const std::byte* contribution) {
  const size_t bytes = sizeof(Beginning) + comm.size() * sizeof(uint64_t);
  if (counted_contribution_bytes(contribution, SIZE_MAX) != bytes) return nullptr;
  return contribution + sizeof(Beginning);
}

// Acquires all that must be there before the operation has its number.
mep_result_t prepare_counted_blocks(const Collectives& comm, Operation& operation) {
  operation.counted = std::make_unique<CountedBlocks>();
  CountedBlocks& blocks = *operation.counted;
  lay_out_counted_blocks(operation.kind, comm, operation.args, operation.counted.get());
  operation.args.counts = nullptr;
  size_t bytes = blocks_at(operation, comm.size());
  const size_t most = EagerRing::slot_bytes_of(comm.size()) - sizeof(uint64_t);
  for (const Block& block : blocks.given) {
    bytes += std::min(block.bytes, most);
    if (!type_of(operation).gives_each_a_block() && block.bytes != 0) break;
  }
  const size_t least = std::min(offer_bytes(comm.size()), most);
  blocks.contribution.resize(std::clamp(bytes, least, most));
  return save_pair_block_input(comm, operation);
}

Step step_counted_blocks(Collectives& comm, Operation& operation) {
  if (comm.adopted().live.size() == 1) return step_counted_alone(comm, operation);
  const CountedBlocks& blocks = *operation.counted;
  if (is_in(operation, LargePhase::kBegin)) {
    pack(comm, operation);
    go_to(operation, LargePhase::kEnter);
  }
  if (is_in(operation, LargePhase::kEnter)) {
    const Step entered =
        enter_small(comm, operation, blocks.contribution.data(), blocks.contribution_bytes,
                    blocks.is_whole ? 0 : EagerRing::kEntryOnly);
    if (entered != Step::kDone) return entered;
    go_to(operation, LargePhase::kCollect);
  }
  if (is_in(operation, LargePhase::kCollect)) {
    const Step collected = collect_small(comm, operation);
    if (collected != Step::kDone) return collected;
    const Step taken = take_contributions(comm, operation);
    if (taken != Step::kPending) return taken;
    go_to(operation, LargePhase::kMove);
  }
  const uint64_t sections = comm.pipeline().sections_of(blocks.most_bytes);
  return move_and_finish(comm, operation, [&] {
    if (!all_can_pull(comm, operation)) return move_pair_blocks(comm, operation, sections);
    return pull_blocks(comm, operation,
                       [&](uint32_t source) { return place_of_block(comm, operation, source); });
  });
}

Step settle_counted_blocks(Collectives& comm, Operation& operation) {
  if (operation.retained == nullptr) return settle_large(operation);
  if (lengths_fit(comm, operation) && take_blocks(comm, operation)) return Step::kDone;
  return lengths_mismatch(comm, operation);
}

}  // namespace mep
