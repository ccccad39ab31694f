// Broadcast of large messages over several hosts.
//
// The root puts a chunk into its own out area and into that of one rank on each other host, the
// publisher there. Root and publishers say "posted" to the ranks of their hosts, which read it in place
// (or get it by put) and say "taken" to whom they have it from, for two chunks at a time. A publisher
// whose host has all taken says it to the root.
//
// Reuse of areas: chunk c + 4 is posted after "taken" of c has come from the root's host and from all
// publishers, who said it when all of their hosts had copied c; so also no put of c is under way. Of
// the last chunks "finished" says it.
#include "core/coll/over_hosts.hpp"

#include <algorithm>
#include <cstring>

#include "core/coll/steps.hpp"

namespace mep {
namespace {

using Area = HostBulk::Area;
using Word = HostBulk::Word;

// "Taken" is said of two chunks at once, by the second.
constexpr uint64_t kTogether = HostBulk::kRing / 2;

uint64_t chunk_count(const Operation& operation) {
  return (operation.bytes + HostBulk::kChunkBytes - 1) / HostBulk::kChunkBytes;
}

size_t bytes_of(const Operation& operation, uint64_t chunk) {
  return std::min(HostBulk::kChunkBytes, operation.bytes - chunk * HostBulk::kChunkBytes);
}

// The last chunk whose "taken" the root awaits before it posts `chunk`.
uint64_t awaited_before(uint64_t chunk) {
  return chunk - HostBulk::kRing + kTogether - 1;
}

// Whether the root will wait for "taken" of this chunk.
bool is_awaited(const Operation& operation, uint64_t chunk) {
  return chunk % kTogether == kTogether - 1 &&
         chunk + HostBulk::kRing - kTogether + 1 < chunk_count(operation);
}

mep_result_t post(Collectives& comm, Operation& operation, uint64_t chunk) {
  const HostBulk& hosts = comm.bulk().hosts();
  const uint64_t global = comm.bulk().first_chunk() + chunk;
  const size_t bytes = bytes_of(operation, chunk);
  std::memcpy(hosts.own(Area::kOut, global, 0),
              static_cast<const std::byte*>(operation.args.send) + chunk * HostBulk::kChunkBytes,
              bytes);
  // The network first: it takes longest.
  MEP_TRY(hosts.give_entries(Area::kOut, global, 0, bytes));
  MEP_TRY(hosts.signal_all(Word::kPosted, global, comm.rank(), hosts.entries()));
  MEP_TRY(hosts.give_mates(Area::kOut, global, 0, bytes));
  return hosts.signal_all(Word::kPosted, global, comm.rank(), hosts.mates());
}

Step post_chunks(Collectives& comm, Operation& operation) {
  const Bulk& bulk = comm.bulk();
  for (; operation.chunk < chunk_count(operation); ++operation.chunk) {
    const uint64_t chunk = operation.chunk;
    if (chunk >= HostBulk::kRing && chunk % kTogether == 0 &&
        !bulk.hosts().arrived_from(bulk.hosts().takers(), Word::kTaken,
                                   bulk.first_chunk() + awaited_before(chunk))) {
      return Step::kPending;
    }
    const mep_result_t posted = post(comm, operation, chunk);
    if (posted != MEP_SUCCESS) return fail_step(operation, posted);
  }
  return Step::kDone;
}

// A publisher tells the root what all of its host have copied. operation.chunk_passed counts it.
mep_result_t pass_taken(Collectives& comm, Operation& operation, uint32_t root) {
  const Bulk& bulk = comm.bulk();
  for (;;) {
    const uint64_t chunk = operation.chunk_passed + kTogether - 1;
    const uint64_t global = bulk.first_chunk() + chunk;
    if (chunk >= operation.chunk || !is_awaited(operation, chunk) ||
        !bulk.hosts().arrived_from(bulk.hosts().mates(), Word::kTaken, global)) {
      return MEP_SUCCESS;
    }
    MEP_TRY(bulk.hosts().signal(Word::kTaken, global, comm.rank(), root));
    operation.chunk_passed += kTogether;
  }
}

mep_result_t publish(Collectives& comm, Operation& operation, uint32_t root) {
  const HostBulk& hosts = comm.bulk().hosts();
  const uint64_t global = comm.bulk().first_chunk() + operation.chunk;
  MEP_TRY(hosts.give_mates(Area::kOut, global, 0, bytes_of(operation, operation.chunk)));
  return hosts.signal_all(Word::kPosted, global, root, hosts.mates());
}

Step take_chunks(Collectives& comm, Operation& operation, uint32_t root) {
  const HostBulk& hosts = comm.bulk().hosts();
  const uint32_t publisher = hosts.publisher(root);
  const bool publishes = publisher == comm.rank();
  for (;;) {
    const uint64_t chunk = operation.chunk;
    const uint64_t global = comm.bulk().first_chunk() + chunk;
    mep_result_t result = publishes ? pass_taken(comm, operation, root) : MEP_SUCCESS;
    if (result != MEP_SUCCESS) return fail_step(operation, result);
    // The root has posted all, so it has heard from here of all that it waited for.
    if (chunk == chunk_count(operation)) return Step::kDone;
    if (!hosts.arrived(Word::kPosted, global, root)) return Step::kPending;
    if (publishes) result = publish(comm, operation, root);
    std::memcpy(static_cast<std::byte*>(operation.args.receive) + chunk * HostBulk::kChunkBytes,
                hosts.read(Area::kOut, global, 0, publisher), bytes_of(operation, chunk));
    if (!publishes && is_awaited(operation, chunk)) {
      result = hosts.signal(Word::kTaken, global, comm.rank(), publisher);
    }
    if (result != MEP_SUCCESS) return fail_step(operation, result);
    ++operation.chunk;
  }
}

}  // namespace

Step broadcast_over_hosts(Collectives& comm, Operation& operation) {
  const auto root = static_cast<uint32_t>(operation.args.root);
  const PostingScope posting = comm.posting();
  if (!posting.allowed()) return Step::kPending;
  const Step moved =
      root == comm.rank() ? post_chunks(comm, operation) : take_chunks(comm, operation, root);
  if (moved == Step::kDone) comm.bulk().advance(chunk_count(operation));
  return moved;
}

}  // namespace mep
