// Allgather of large messages over several hosts.
//
// Section by section: a rank writes its section into its own out area and puts it into those of its entry ranks,
// the publishers on the other hosts. It signals "posted" to its host and to the publishers, which forward it to
// their hosts. Everybody copies the sections of all ranks, each from its publisher on this host (or out of the own
// window, where the publisher has put it).
//
// A rank posts section k after it has copied k - 2 of all ranks. So the arrival of its k acknowledges k - 2, and
// no other acknowledgement is sent. Reuse of areas: k + 4 is posted after k + 2 of all ranks has been copied
// here, hence after every rank has copied k of all; so also no put of k is under way. For the
// last sections "finished" is the acknowledgement.
#include <algorithm>
#include <cstring>

#include "core/coll/over_hosts.hpp"
#include "core/coll/steps.hpp"

namespace mep {
namespace {

using Area = HostPipeline::Area;
using Word = HostPipeline::Word;

// How far a rank posts ahead of what it has copied.
constexpr uint64_t kAhead = HostPipeline::kRing / 2;

// The sections of a moment, and the places of all ranks in an area.
struct Sections {
  explicit Sections(const Pipeline& pipeline)
      : bytes(HostPipeline::kChunkBytes / pipeline.live().size() / HostPipeline::kLine *
              HostPipeline::kLine) {}
  uint64_t count(const Operation& operation) const { return (operation.bytes + bytes - 1) / bytes; }
  size_t bytes_of(const Operation& operation, uint64_t section) const {
    return std::min(bytes, operation.bytes - section * bytes);
  }
  size_t bytes;
};

mep_result_t post_section(Collectives& comm, Operation& operation, uint64_t section) {
  const HostPipeline& hosts = comm.pipeline().hosts();
  const Sections sections(comm.pipeline());
  const uint64_t global = comm.pipeline().first_chunk() + section;
  const size_t place = comm.pipeline().position() * sections.bytes;
  const size_t bytes = sections.bytes_of(operation, section);
  std::memcpy(hosts.own(Area::kOut, global, place),
              static_cast<const std::byte*>(operation.args.send) + section * sections.bytes, bytes);
  // The network first: it takes longest.
  MEP_TRY(hosts.put_to_entry_ranks(Area::kOut, global, place, bytes));
  MEP_TRY(hosts.signal_all(Word::kPosted, global, comm.rank(), hosts.entry_ranks()));
  MEP_TRY(hosts.put_to_host_peers(Area::kOut, global, place, bytes));
  return hosts.signal_all(Word::kPosted, global, comm.rank(), hosts.host_peers());
}

mep_result_t post_sections_ahead(Collectives& comm, Operation& operation) {
  const Pipeline& pipeline = comm.pipeline();
  const uint64_t count = Sections(pipeline).count(operation);
  while (operation.chunk_posted < count && operation.chunk_posted < operation.chunk + kAhead) {
    MEP_TRY(post_section(comm, operation, operation.chunk_posted));
    ++operation.chunk_posted;
  }
  return MEP_SUCCESS;
}

// Publishes on this host what has come from others, in the order of sections. operation.chunk_relayed
// counts sections of single ranks. None waits for a later section: whoever posts one has all before.
mep_result_t publish_arrived(Collectives& comm, Operation& operation) {
  const HostPipeline& hosts = comm.pipeline().hosts();
  const Sections sections(comm.pipeline());
  const std::vector<uint32_t>& sources = hosts.published_here();
  for (; operation.chunk_relayed < sections.count(operation) * sources.size();
       ++operation.chunk_relayed) {
    const uint64_t section = operation.chunk_relayed / sources.size();
    const uint32_t source = sources[operation.chunk_relayed % sources.size()];
    const uint64_t global = comm.pipeline().first_chunk() + section;
    if (!hosts.arrived(Word::kPosted, global, source)) break;
    MEP_TRY(hosts.put_to_host_peers(Area::kOut, global,
                                    comm.pipeline().position_of(source) * sections.bytes,
                                    sections.bytes_of(operation, section)));
    MEP_TRY(hosts.signal_all(Word::kPosted, global, source, hosts.host_peers()));
  }
  return MEP_SUCCESS;
}

void copy_section_of(Collectives& comm, Operation& operation, uint32_t source) {
  const Pipeline& pipeline = comm.pipeline();
  const Sections sections(pipeline);
  std::memcpy(static_cast<std::byte*>(operation.args.receive) + source * operation.bytes +
                  operation.chunk * sections.bytes,
              pipeline.hosts().read(Area::kOut, pipeline.first_chunk() + operation.chunk,
                                    pipeline.position_of(source) * sections.bytes,
                                    pipeline.hosts().publisher(source)),
              sections.bytes_of(operation, operation.chunk));
}

// Copies what has come of the present section. kDone: all of it.
Step copy_arrived(Collectives& comm, Operation& operation) {
  const Pipeline& pipeline = comm.pipeline();
  const uint64_t global = pipeline.first_chunk() + operation.chunk;
  for (; operation.cursor < pipeline.live().size(); ++operation.cursor) {
    const uint32_t source = pipeline.live()[operation.cursor];
    if (source == comm.rank()) continue;
    if (!pipeline.hosts().arrived(Word::kPosted, global, source)) return Step::kPending;
    copy_section_of(comm, operation, source);
  }
  operation.cursor = 0;
  ++operation.chunk;
  return Step::kDone;
}

}  // namespace

Step allgather_over_hosts(Collectives& comm, Operation& operation) {
  const uint64_t count = Sections(comm.pipeline()).count(operation);
  const PostingScope posting = comm.posting();
  if (!posting.allowed()) return Step::kPending;
  for (;;) {
    mep_result_t result = post_sections_ahead(comm, operation);
    if (result == MEP_SUCCESS) result = publish_arrived(comm, operation);
    if (result != MEP_SUCCESS) return fail_step(operation, result);
    if (operation.chunk == count) break;
    const Step copied = copy_arrived(comm, operation);
    if (copied != Step::kDone) return copied;
  }
  // All sections of others have come, so all that is published here is.
  comm.pipeline().advance(count);
  return Step::kDone;
}

}  // namespace mep
