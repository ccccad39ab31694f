// The data of a large operation in one copy: whoever gets a block reads it in the memory of the rank that gives it,
// straight into the receive buffer.
//
//   Enter  the entry of each rank, which all get, has an offer: where its send buffer is, whether it can read all
//          others, and where its watched word (peer_memory.hpp) is and what that shows during this call. So all
//          ranks decide alike, out of the same offers: if one cannot, the data goes through the areas.
//   Pull   each rank reads its blocks, beginning with the rank behind it, so that not all read the same one.
//   Finish the round of "finished" words of every large operation.
//
// All that an operation which succeeds has read was its owner's, inside the call:
//   - The owner shows a value that no other call has before it enters, and hides it before the call returns, however
//     it ends. A reader looks for the value after it has read a block. So a block that counts was read while the
//     owner's process was alive and in the call, even if the reader was stopped for long and is excluded by now.
//   - A rank signals "finished" after all its blocks count, and an operation succeeds nowhere before all have
//     signalled, neither here nor by a view change (Pipeline::finished_by_all()).
//   - A block that does not count is left as what an operation that fails leaves in a receive buffer. The reader
//     waits: the membership sees that the owner has died, or the others' decision or the deadline ends the call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/function_ref.hpp"
#include "core/coll/collectives.hpp"

namespace mep {

// Where this rank finds its block of a source.
struct PullPlace {
  const std::byte* here = nullptr;  // it has come already; else:
  MemoryOffer offer;
  uint64_t from = 0;
};

// Whether this can be done in the comm's present view, if all ranks can; and whether it is worth while where no block is
// longer. The same on all ranks.
bool suits_pulling(Collectives& comm, const Operation& operation);
bool pays_pulling(const Collectives& comm, const Operation& operation, size_t longest);
// Whether this rank can read the memory of all others.
bool reads_all(const Collectives& comm);
// Makes this rank's offer, comm.open_memory().offer(). These bytes of its send buffer may be read from here on.
void offer_memory(Collectives& comm, const Operation& operation, Block given);
// A large operation whose blocks are equally long, where it suits and pays: in one copy if all ranks offer their
// memory, else by move(), as between others.
[[nodiscard]] Step step_pulled(Collectives& comm, Operation& operation, FunctionRef<Step()> move);
// kDone: all blocks that this rank gets are in its receive buffer.
[[nodiscard]] Step pull_blocks(Collectives& comm, Operation& operation,
                               FunctionRef<PullPlace(uint32_t source)> place_of);

}  // namespace mep
