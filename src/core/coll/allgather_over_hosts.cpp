// Allgather of large messages over several hosts.
//
// Section by section: a rank puts its section into its own out area and into that of one rank on each
// other host, the publisher there, and says "posted" to its host and to the publishers, who say it to
// theirs. Everybody copies the sections of all ranks, each from its publisher on this host (or it got
// them by put).
//
// A rank posts section k after it has copied k - 2 of all ranks, so the arrival of its k says that, and
// nothing else is acknowledged. Reuse of areas: k + 4 is posted after k + 2 of all ranks has been copied
// here, hence after every rank has copied k of all; so also no put of k is under way. Of the last
// sections "finished" says it.
#include <algorithm>
#include <cstring>

#include "core/coll/over_hosts.hpp"
#include "core/coll/steps.hpp"

namespace mep {
namespace {

using Area = HostBulk::Area;
using Word = HostBulk::Word;

// How far a rank posts ahead of what it has copied.
constexpr uint64_t kAhead = HostBulk::kRing / 2;

// The sections of a moment, and the places of all ranks in an area.
struct Sections {
  explicit Sections(const Bulk& bulk)
      : bytes(HostBulk::kChunkBytes / bulk.live().size() / HostBulk::kLine * HostBulk::kLine) {}
  uint64_t count(const Operation& operation) const { return (operation.bytes + bytes - 1) / bytes; }
  size_t bytes_of(const Operation& operation, uint64_t section) const {
    return std::min(bytes, operation.bytes - section * bytes);
  }
  size_t bytes;
};

mep_result_t post(Collectives& comm, Operation& operation, uint64_t section) {
  const HostBulk& hosts = comm.bulk().hosts();
  const Sections sections(comm.bulk());
  const uint64_t global = comm.bulk().first_chunk() + section;
  const size_t place = comm.bulk().position() * sections.bytes;
  const size_t bytes = sections.bytes_of(operation, section);
  std::memcpy(hosts.own(Area::kOut, global, place),
              static_cast<const std::byte*>(operation.args.send) + section * sections.bytes, bytes);
  // The network first: it takes longest.
  MEP_TRY(hosts.give_entries(Area::kOut, global, place, bytes));
  MEP_TRY(hosts.signal_all(Word::kPosted, global, comm.rank(), hosts.entries()));
  MEP_TRY(hosts.give_mates(Area::kOut, global, place, bytes));
  return hosts.signal_all(Word::kPosted, global, comm.rank(), hosts.mates());
}

mep_result_t post_ahead(Collectives& comm, Operation& operation) {
  const Bulk& bulk = comm.bulk();
  const uint64_t count = Sections(bulk).count(operation);
  while (operation.chunk_posted < count && operation.chunk_posted < operation.chunk + kAhead) {
    MEP_TRY(post(comm, operation, operation.chunk_posted));
    ++operation.chunk_posted;
  }
  return MEP_SUCCESS;
}

// Publishes on this host what has come from others, in the order of sections. operation.chunk_passed
// counts sections of single ranks. None waits for a later section: whoever posts one has all before.
mep_result_t publish_arrived(Collectives& comm, Operation& operation) {
  const HostBulk& hosts = comm.bulk().hosts();
  const Sections sections(comm.bulk());
  const std::vector<uint32_t>& sources = hosts.published_here();
  for (; operation.chunk_passed < sections.count(operation) * sources.size();
       ++operation.chunk_passed) {
    const uint64_t section = operation.chunk_passed / sources.size();
    const uint32_t source = sources[operation.chunk_passed % sources.size()];
    const uint64_t global = comm.bulk().first_chunk() + section;
    if (!hosts.arrived(Word::kPosted, global, source)) break;
    MEP_TRY(hosts.give_mates(Area::kOut, global, comm.bulk().position_of(source) * sections.bytes,
                             sections.bytes_of(operation, section)));
    MEP_TRY(hosts.signal_all(Word::kPosted, global, source, hosts.mates()));
  }
  return MEP_SUCCESS;
}

void copy_section(Collectives& comm, Operation& operation, uint32_t source) {
  const Bulk& bulk = comm.bulk();
  const Sections sections(bulk);
  std::memcpy(
      static_cast<std::byte*>(operation.args.receive) + source * operation.bytes +
          operation.chunk * sections.bytes,
      bulk.hosts().read(Area::kOut, bulk.first_chunk() + operation.chunk,
                        bulk.position_of(source) * sections.bytes, bulk.hosts().publisher(source)),
      sections.bytes_of(operation, operation.chunk));
}

// Copies what has come of the present section. kDone: all of it.
Step copy_arrived(Collectives& comm, Operation& operation) {
  const Bulk& bulk = comm.bulk();
  const uint64_t global = bulk.first_chunk() + operation.chunk;
  for (; operation.cursor < bulk.live().size(); ++operation.cursor) {
    const uint32_t source = bulk.live()[operation.cursor];
    if (source == comm.rank()) continue;
    if (!bulk.hosts().arrived(Word::kPosted, global, source)) return Step::kPending;
    copy_section(comm, operation, source);
  }
  operation.cursor = 0;
  ++operation.chunk;
  return Step::kDone;
}

}  // namespace

Step allgather_over_hosts(Collectives& comm, Operation& operation) {
  const uint64_t count = Sections(comm.bulk()).count(operation);
  const PostingScope posting = comm.posting();
  if (!posting.allowed()) return Step::kPending;
  for (;;) {
    mep_result_t given = post_ahead(comm, operation);
    if (given == MEP_SUCCESS) given = publish_arrived(comm, operation);
    if (given != MEP_SUCCESS) return fail_step(operation, given);
    if (operation.chunk == count) break;
    const Step copied = copy_arrived(comm, operation);
    if (copied != Step::kDone) return copied;
  }
  // All sections of others have come, so all that is published here is.
  comm.bulk().advance(count);
  return Step::kDone;
}

}  // namespace mep
