// Broadcast of large messages over several hosts.
//
// The root writes a chunk into its own out area and puts it into those of its entry ranks, the publishers on the
// other hosts. Root and publishers signal "posted" to the ranks of their hosts, which read the chunk in place (or
// get it by put). These acknowledge by "taken" to the rank that they have it from, two chunks at a time. When all
// ranks of its host have acknowledged, a publisher acknowledges to the root.
//
// Reuse of areas: chunk c + 4 is posted after "taken" of c has come from the root's host and from all
// publishers, which signal it when all of their hosts have copied c; so also no put of c is under way. For
// the last chunks "finished" is the acknowledgement.
#include "core/coll/over_hosts.hpp"

#include <algorithm>
#include <cstring>

#include "core/coll/steps.hpp"

namespace mep {
namespace {

using Area = HostPipeline::Area;
using Word = HostPipeline::Word;

// Two chunks are acknowledged at once, by "taken" of the second.
constexpr uint64_t kTogether = HostPipeline::kRing / 2;

uint64_t chunk_count_over_hosts(const Operation& operation) {
  return (operation.bytes + HostPipeline::kChunkBytes - 1) / HostPipeline::kChunkBytes;
}

size_t bytes_over_hosts(const Operation& operation, uint64_t chunk) {
  return std::min(HostPipeline::kChunkBytes, operation.bytes - chunk * HostPipeline::kChunkBytes);
}

// The last chunk whose "taken" the root awaits before it posts `chunk`.
uint64_t awaited_before(uint64_t chunk) {
  return chunk - HostPipeline::kRing + kTogether - 1;
}

// Whether the root will wait for "taken" of this chunk.
bool is_awaited(const Operation& operation, uint64_t chunk) {
  return chunk % kTogether == kTogether - 1 &&
         chunk + HostPipeline::kRing - kTogether + 1 < chunk_count_over_hosts(operation);
}

mep_result_t post_chunk_over_hosts(Collectives& comm, Operation& operation, uint64_t chunk) {
  const HostPipeline& hosts = comm.pipeline().hosts();
  const uint64_t global = comm.pipeline().first_chunk() + chunk;
  const size_t bytes = bytes_over_hosts(operation, chunk);
  std::memcpy(
      hosts.own(Area::kOut, global, 0),
      static_cast<const std::byte*>(operation.args.send) + chunk * HostPipeline::kChunkBytes,
      bytes);
  // The network first: it takes longest.
  MEP_TRY(hosts.put_to_entry_ranks(Area::kOut, global, 0, bytes));
  MEP_TRY(hosts.signal_all(Word::kPosted, global, comm.rank(), hosts.entry_ranks()));
  MEP_TRY(hosts.put_to_host_peers(Area::kOut, global, 0, bytes));
  return hosts.signal_all(Word::kPosted, global, comm.rank(), hosts.host_peers());
}

Step post_chunks(Collectives& comm, Operation& operation) {
  const Pipeline& pipeline = comm.pipeline();
  for (; operation.chunk < chunk_count_over_hosts(operation); ++operation.chunk) {
    const uint64_t chunk = operation.chunk;
    if (chunk >= HostPipeline::kRing && chunk % kTogether == 0 &&
        !pipeline.hosts().arrived_from(pipeline.hosts().receivers(), Word::kTaken,
                                       pipeline.first_chunk() + awaited_before(chunk))) {
      return Step::kPending;
    }
    const mep_result_t posted = post_chunk_over_hosts(comm, operation, chunk);
    if (posted != MEP_SUCCESS) return fail_step(operation, posted);
  }
  return Step::kDone;
}

// A publisher acknowledges to the root what all of its host have copied. operation.chunk_relayed counts that.
mep_result_t relay_taken(Collectives& comm, Operation& operation, uint32_t root) {
  const Pipeline& pipeline = comm.pipeline();
  for (;;) {
    const uint64_t chunk = operation.chunk_relayed + kTogether - 1;
    const uint64_t global = pipeline.first_chunk() + chunk;
    if (chunk >= operation.chunk || !is_awaited(operation, chunk) ||
        !pipeline.hosts().arrived_from(pipeline.hosts().host_peers(), Word::kTaken, global)) {
      return MEP_SUCCESS;
    }
    MEP_TRY(pipeline.hosts().signal(Word::kTaken, global, comm.rank(), root));
    operation.chunk_relayed += kTogether;
  }
}

mep_result_t publish(Collectives& comm, Operation& operation, uint32_t root) {
  const HostPipeline& hosts = comm.pipeline().hosts();
  const uint64_t global = comm.pipeline().first_chunk() + operation.chunk;
  MEP_TRY(
      hosts.put_to_host_peers(Area::kOut, global, 0, bytes_over_hosts(operation, operation.chunk)));
  return hosts.signal_all(Word::kPosted, global, root, hosts.host_peers());
}

Step take_relayed_chunks(Collectives& comm, Operation& operation, uint32_t root) {
  const HostPipeline& hosts = comm.pipeline().hosts();
  const uint32_t publisher = hosts.publisher(root);
  const bool publishes = publisher == comm.rank();
  for (;;) {
    const uint64_t chunk = operation.chunk;
    const uint64_t global = comm.pipeline().first_chunk() + chunk;
    mep_result_t result = publishes ? relay_taken(comm, operation, root) : MEP_SUCCESS;
    if (result != MEP_SUCCESS) return fail_step(operation, result);
    // The root has posted all, so all acknowledgements that it waited for have come from here.
    if (chunk == chunk_count_over_hosts(operation)) return Step::kDone;
    if (!hosts.arrived(Word::kPosted, global, root)) return Step::kPending;
    if (publishes) result = publish(comm, operation, root);
    std::memcpy(static_cast<std::byte*>(operation.args.receive) + chunk * HostPipeline::kChunkBytes,
                hosts.read(Area::kOut, global, 0, publisher), bytes_over_hosts(operation, chunk));
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
  const Step moved = root == comm.rank() ? post_chunks(comm, operation)
                                         : take_relayed_chunks(comm, operation, root);
  if (moved == Step::kDone) comm.pipeline().advance(chunk_count_over_hosts(operation));
  return moved;
}

}  // namespace mep
