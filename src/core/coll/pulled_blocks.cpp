#include "core/coll/pulled_blocks.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "base/peer_memory.hpp"
#include "base/test_delay.hpp"
#include "core/coll/block_places.hpp"
#include "core/coll/steps.hpp"

namespace mep {
namespace {

// The lengths from which on one copy pays. Between two ranks it does soonest. A root that reads all blocks has one core for
// it, but several cores make two copies at a time. A block that all ranks get is written once for all of them.
constexpr size_t kLeastOfTwo = size_t{32} << 10;
constexpr size_t kLeast = size_t{64} << 10;
constexpr size_t kLeastFromRoot = size_t{256} << 10;
constexpr size_t kLeastOfBroadcast = size_t{512} << 10;
constexpr size_t kLeastOfAllgather = size_t{2} << 20;  // all blocks together
constexpr size_t kLeastToRoot = size_t{1} << 20;
// Between two looks at the channel.
constexpr size_t kSliceBytes = size_t{1} << 20;

// Once for an epoch: the next operations go through the areas on all ranks.
void note_unreadable(Collectives& comm, const Operation& operation, uint32_t source, int error) {
  if (error == ESRCH || !comm.channel().undisturbed(operation.epoch)) return;
  if (!comm.open_memory().forbid_reading()) return;
  log(LogLevel::kWarn,
      "comm %s: the memory of rank %u cannot be read any more (%s); this operation will run into "
      "its timeout, later ones copy twice",
      comm.comm().name().c_str(), source, strerrordesc_np(error));
}

// A read came short at `to`: whether it is this rank's buffer that cannot be written, while the peer's can be read.
bool is_own_fault(pid_t pid, uint64_t from, int error) {
  std::byte probe;
  return error == EFAULT && read_peer_memory(pid, from, &probe, 1) == 1;
}

// operation.chunk_taken counts the block's bytes that are here.
Step pull_block(Collectives& comm, Operation& operation, uint32_t source, const PullPlace& place) {
  const size_t bytes = block_gotten(operation, source).bytes;
  std::byte* const to = place_of_gotten(operation, source);
  if (bytes == 0) return Step::kDone;
  if (place.here != nullptr) {
    std::memcpy(to, place.here, bytes);
    return Step::kDone;
  }
  const pid_t pid = comm.windows()[source].readable_pid;
  while (operation.chunk_taken < bytes) {
    if (!comm.channel().undisturbed(operation.epoch)) return Step::kPending;
    MEP_TEST_DELAY_POINT("large copy");
    const size_t wanted = std::min(kSliceBytes, bytes - operation.chunk_taken);
    const size_t got = read_peer_memory(pid, place.from + operation.chunk_taken,
                                        to + operation.chunk_taken, wanted);
    if (got != wanted) {
      const int error = errno;
      operation.unwritable = is_own_fault(pid, place.from + operation.chunk_taken + got, error);
      if (operation.unwritable) return Step::kDone;
      note_unreadable(comm, operation, source, error);
      return Step::kPending;
    }
    operation.chunk_taken += got;
  }
  MEP_TEST_DELAY_POINT("pulled");
  if (!shows(pid, place.offer.word_at, place.offer.word)) return Step::kPending;
  // Relaxed: a count.
  pulled_blocks.fetch_add(1, std::memory_order_relaxed);
  return Step::kDone;
}

MemoryOffer offer_of(const Collectives& comm, const Operation& operation, uint32_t source) {
  MemoryOffer offer;
  std::memcpy(&offer, comm.contribution(operation, source), sizeof offer);
  return offer;
}

// All contributions are here.
bool all_offer_memory(const Collectives& comm, const Operation& operation) {
  return std::all_of(operation.contributors->begin(), operation.contributors->end(),
                     [&](uint32_t source) { return offer_of(comm, operation, source).word != 0; });
}

}  // namespace

bool suits_pulling(Collectives& comm, const Operation& operation) {
  return !type_of(operation).takes_op && comm.eager().groups().all_mapped();
}

bool pays_pulling(const Collectives& comm, const Operation& operation, size_t longest) {
  const CollectiveType& type = type_of(operation);
  const bool others_give = !type.is_rooted || type.gives(/*rank=*/1, /*root=*/0);
  const size_t live = comm.adopted().live.size();
  if (live == 2) return longest >= kLeastOfTwo;
  if (type.is_rooted && others_give) return longest >= kLeastToRoot;
  if (type.gives_each_a_block()) return longest >= (type.is_rooted ? kLeastFromRoot : kLeast);
  return type.is_rooted ? longest >= kLeastOfBroadcast : longest * live >= kLeastOfAllgather;
}

bool reads_all(const Collectives& comm) {
  const std::vector<uint32_t>& live = comm.adopted().live;
  return comm.open_memory().may_read() && std::all_of(live.begin(), live.end(), [&](uint32_t rank) {
           return rank == comm.rank() || comm.windows()[rank].readable_pid != 0;
         });
}

void offer_memory(Collectives& comm, const Operation& operation, Block given) {
  const auto* const send = static_cast<const std::byte*>(operation.args.send);
  const bool is_offered = reads_all(comm) && comm.world().peers().keeps_read_rights() &&
                          (given.bytes == 0 || others_can_read(send + given.offset, given.bytes));
  if (is_offered) {
    comm.open_memory().open(send);
  } else {
    comm.open_memory().keep_closed();
  }
}

// Each rank's entry has its offer.
Step step_pulled(Collectives& comm, Operation& operation, FunctionRef<Step()> move) {
  return step_large_phases(
      comm, operation,
      [&] {
        const bool gives_any = gives(operation, comm.rank());
        offer_memory(comm, operation, {0, gives_any ? operation.given_bytes : 0});
        return Step::kDone;
      },
      [&] {
        return enter_small(comm, operation, &comm.open_memory().offer(), sizeof(MemoryOffer),
                           EagerRing::kEntryOnly);
      },
      [&] {
        if (!all_offer_memory(comm, operation)) return move();
        return pull_blocks(comm, operation, [&](uint32_t source) {
          const MemoryOffer offer = offer_of(comm, operation, source);
          return PullPlace{nullptr, offer, offer.data + offset_for(operation, comm.rank())};
        });
      });
}

Step pull_blocks(Collectives& comm, Operation& operation,
                 FunctionRef<PullPlace(uint32_t source)> place_of) {
  const std::vector<uint32_t>& live = comm.pipeline().live();
  for (; operation.cursor < live.size() && !operation.unwritable; ++operation.cursor) {
    const size_t behind = comm.pipeline().position() + 1 + operation.cursor;
    const uint32_t source = live[behind % live.size()];
    if (!gets_from(comm, operation, source)) continue;
    if (pull_block(comm, operation, source, place_of(source)) == Step::kPending) {
      return Step::kPending;
    }
    operation.chunk_taken = 0;
  }
  operation.cursor = 0;
  if (!operation.unwritable) copy_own_block(comm, operation);
  return Step::kDone;
}

}  // namespace mep
