// Allreduce of large messages over several hosts, where each has P ranks and rank order goes from host
// to host.
//
// A chunk has P slices. On each host the rank of index l owns slice l: its host's ranks put their
// inputs of it into its in area. The owner on the first host reduces them in rank order and puts the
// partial sums into the sums area of its like on the second host, which goes on with the inputs of its
// host, and so on: ((r0 + r1) + r2) + ... as on one host. The owner on the last host has the result and
// puts it into the out area of its like on the host before, which hands it down in turn. Each owner
// publishes it on its host. So neighbouring hosts exchange each byte once in each direction (partial
// sums of floats of 8 and 16 bits as float32), and no host sends or gets more than that twice.
//
// "Posted" of the host's ranks: inputs; of the like on the host before: partial sums. "Reduced" of the
// like on the host after: the result has come; of the host's ranks: theirs can be read.
//
// Reuse of areas: a rank posts its inputs of chunk c + 4 after it has copied all results of c. Data
// written into in, sums and out for c + 4 follows from the inputs of c + 4 of all ranks of the hosts
// before (in: of this host, sums: and the ones before, out: all). They have all copied c, so its
// inputs were reduced, its sums passed through the hosts after, its result was read, and no put of c is
// under way.
#include <algorithm>
#include <cstring>

#include "core/coll/over_hosts.hpp"
#include "core/coll/partial_sums.hpp"
#include "core/coll/steps.hpp"

namespace mep {
namespace {

using Area = HostPipeline::Area;
using Word = HostPipeline::Word;

// How the elements of an operation are divided into chunks, and a chunk into slices.
class HostSlices {
 public:
  HostSlices(const HostPipeline& hosts, const Operation& operation)
      : total_(operation.args.count),
        element_(operation.bytes / operation.args.count),
        ranks_(hosts.host_ranks().size()) {
    // A slice has as many elements as have room as inputs of all ranks, and as partial sums. Slices start at cache
    // lines.
    const size_t unit = std::max<size_t>(1, HostPipeline::kLine / element_);
    const size_t as_inputs = HostPipeline::kChunkBytes / ranks_ / element_;
    const size_t as_sums = HostPipeline::kChunkBytes / partial_sum_bytes(operation.args.dtype);
    full_slice_ = std::min(as_inputs, as_sums) / unit * unit;
    unit_ = unit;
  }
  uint64_t chunks() const { return (total_ + full_chunk() - 1) / full_chunk(); }
  size_t element() const { return element_; }
  // Distance of two ranks' slices in an area.
  size_t stride() const { return full_slice_ * element_; }
  // Elements.
  size_t first(uint64_t chunk, uint32_t slice) const {
    const size_t left = std::min(full_chunk(), total_ - chunk * full_chunk());
    const size_t even = ((left + ranks_ - 1) / ranks_ + unit_ - 1) / unit_ * unit_;
    return chunk * full_chunk() + std::min(left, slice * even);
  }
  size_t count(uint64_t chunk, uint32_t slice) const {
    return first(chunk, slice + 1) - first(chunk, slice);
  }

 private:
  size_t full_chunk() const { return full_slice_ * ranks_; }
  size_t total_;
  size_t element_;
  size_t ranks_;
  size_t full_slice_ = 0;
  size_t unit_ = 1;
};

mep_result_t post_inputs(Collectives& comm, Operation& operation, const HostSlices& slices,
                         uint64_t chunk) {
  const HostPipeline& hosts = comm.pipeline().hosts();
  const uint64_t global = comm.pipeline().first_chunk() + chunk;
  for (uint32_t slice = 0; slice < hosts.host_ranks().size(); ++slice) {
    const uint32_t owner = hosts.host_ranks()[slice];
    const size_t bytes = slices.count(chunk, slice) * slices.element();
    if (owner == comm.rank()) continue;
    if (bytes != 0) {
      const auto* input = static_cast<const std::byte*>(operation.args.send);
      MEP_TRY(hosts.put(Area::kIn, global, hosts.index() * slices.stride(),
                        input + slices.first(chunk, slice) * slices.element(), bytes, owner));
    }
    MEP_TRY(hosts.signal(Word::kPosted, global, comm.rank(), owner));
  }
  return MEP_SUCCESS;
}

bool inputs_arrived(const HostPipeline& hosts, uint64_t global) {
  return (hosts.on_first_host() || hosts.arrived(Word::kPosted, global, hosts.like_before())) &&
         hosts.arrived_from(hosts.host_peers(), Word::kPosted, global);
}

// The result of a chunk's slice is in this rank's out area: hands it down and publishes it here.
mep_result_t pass_result(Collectives& comm, const HostSlices& slices, uint64_t chunk) {
  const HostPipeline& hosts = comm.pipeline().hosts();
  const uint64_t global = comm.pipeline().first_chunk() + chunk;
  const size_t bytes = slices.count(chunk, hosts.index()) * slices.element();
  const size_t place = hosts.index() * slices.stride();
  MEP_TEST_DELAY_POINT("hosts pass");
  if (!hosts.on_first_host()) {
    if (bytes != 0) {
      MEP_TRY(hosts.put(Area::kOut, global, place, hosts.own(Area::kOut, global, place), bytes,
                        hosts.like_before()));
    }
    MEP_TRY(hosts.signal(Word::kReduced, global, comm.rank(), hosts.like_before()));
  }
  MEP_TRY(hosts.put_to_host_peers(Area::kOut, global, place, bytes));
  return hosts.signal_all(Word::kReduced, global, comm.rank(), hosts.host_peers());
}

mep_result_t reduce_slice(Collectives& comm, Operation& operation, const HostSlices& slices,
                          uint64_t chunk) {
  const HostPipeline& hosts = comm.pipeline().hosts();
  const CollectiveArgs& args = operation.args;
  const uint64_t global = comm.pipeline().first_chunk() + chunk;
  const size_t count = slices.count(chunk, hosts.index());
  std::vector<const void*>& inputs = comm.scratch_pointers();
  inputs.clear();
  for (uint32_t i = 0; i < hosts.host_ranks().size(); ++i) {
    const auto* own = static_cast<const std::byte*>(args.send) +
                      slices.first(chunk, hosts.index()) * slices.element();
    inputs.push_back(i == hosts.index() ? own : hosts.own(Area::kIn, global, i * slices.stride()));
  }
  MEP_TEST_DELAY_POINT("hosts reduce");
  std::byte* sums = hosts.own(Area::kSums, global, 0);
  if (hosts.on_last_host()) {
    reduce_finally(args.dtype, args.op, sums, inputs.data(), inputs.size(), count,
                   static_cast<uint32_t>(comm.pipeline().live().size()),
                   hosts.own(Area::kOut, global, hosts.index() * slices.stride()));
    return MEP_SUCCESS;
  }
  const void* before = hosts.on_first_host() ? nullptr : sums;
  reduce_partly(args.dtype, args.op, before, inputs.data(), inputs.size(), count, sums);
  if (count != 0) {
    MEP_TRY(hosts.put(Area::kSums, global, 0, sums, count * partial_sum_bytes(args.dtype),
                      hosts.like_after()));
  }
  return hosts.signal(Word::kPosted, global, comm.rank(), hosts.like_after());
}

void copy_results(Collectives& comm, Operation& operation, const HostSlices& slices,
                  uint64_t chunk) {
  const HostPipeline& hosts = comm.pipeline().hosts();
  const uint64_t global = comm.pipeline().first_chunk() + chunk;
  auto* output = static_cast<std::byte*>(operation.args.receive);
  operation.input_intact = operation.input_intact && operation.args.send != operation.args.receive;
  for (uint32_t slice = 0; slice < hosts.host_ranks().size(); ++slice) {
    const size_t bytes = slices.count(chunk, slice) * slices.element();
    if (bytes == 0) continue;
    std::memcpy(output + slices.first(chunk, slice) * slices.element(),
                hosts.read(Area::kOut, global, slice * slices.stride(), hosts.host_ranks()[slice]),
                bytes);
  }
}

// One of the four things that can be done, each in the order of chunks, none waiting for another kind
// to catch up: inputs are posted at most kRing chunks ahead of what is copied. *active: something was.
mep_result_t advance_once(Collectives& comm, Operation& operation, const HostSlices& slices,
                          bool* active) {
  const HostPipeline& hosts = comm.pipeline().hosts();
  const uint64_t begin = comm.pipeline().first_chunk();
  const uint64_t chunks = slices.chunks();
  *active = true;
  if (operation.chunk_posted < chunks &&
      operation.chunk_posted < operation.chunk + HostPipeline::kRing) {
    MEP_TRY(post_inputs(comm, operation, slices, operation.chunk_posted));
    ++operation.chunk_posted;
    return MEP_SUCCESS;
  }
  if (operation.chunk_reduced < operation.chunk_posted &&
      inputs_arrived(hosts, begin + operation.chunk_reduced)) {
    MEP_TRY(reduce_slice(comm, operation, slices, operation.chunk_reduced));
    ++operation.chunk_reduced;
    return MEP_SUCCESS;
  }
  if (operation.chunk_relayed < operation.chunk_reduced &&
      (hosts.on_last_host() ||
       hosts.arrived(Word::kReduced, begin + operation.chunk_relayed, hosts.like_after()))) {
    MEP_TRY(pass_result(comm, slices, operation.chunk_relayed));
    ++operation.chunk_relayed;
    return MEP_SUCCESS;
  }
  if (operation.chunk < operation.chunk_relayed &&
      hosts.arrived_from(hosts.host_peers(), Word::kReduced, begin + operation.chunk)) {
    copy_results(comm, operation, slices, operation.chunk);
    ++operation.chunk;
    return MEP_SUCCESS;
  }
  *active = false;
  return MEP_SUCCESS;
}

}  // namespace

Step allreduce_over_hosts(Collectives& comm, Operation& operation) {
  const HostSlices slices(comm.pipeline().hosts(), operation);
  const PostingScope posting = comm.posting();
  if (!posting.allowed()) return Step::kPending;
  while (operation.chunk < slices.chunks()) {
    bool active = false;
    const mep_result_t result = advance_once(comm, operation, slices, &active);
    if (result != MEP_SUCCESS) return fail_step(operation, result);
    if (!active) return Step::kPending;
  }
  comm.pipeline().advance(slices.chunks());
  return Step::kDone;
}

}  // namespace mep
