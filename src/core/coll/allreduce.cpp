// Allreduce.
//   Small  flat: every rank gives its whole input to all and reduces all inputs itself, in rank order.
//   Large  sliced: chunk by chunk, each live rank owns a slice, gets all inputs of it, reduces them in
//          rank order and publishes the result. The next chunk is posted before the present one is
//          reduced. The inputs of the first two chunks are put before the cell that says what is
//          called, which stands for their "posted" words: a call that turns out not to match has
//          signalled nothing that a later one could take for its own. Through leaders the
//          cell comes another way, so there they are posted after it, like the rest. Reuse of areas:
//          `in` of chunk c at owner t is free for c + 2 because t's "reduced" of c has come; `out`
//          of chunk c is free for c + 2 because everybody posts c + 2 only after it has copied c out.
//          Over several hosts, where these are alike: allreduce_over_hosts.cpp.
#include <algorithm>
#include <cstring>

#include "core/coll/check.hpp"
#include "core/coll/over_hosts.hpp"
#include "core/coll/steps.hpp"
#include "kernels/host/kernels.hpp"

namespace mep {
namespace {

mep_result_t check(const Collectives&, const CollectiveArgs& args) {
  MEP_TRY(check_buffers(args, true, true));
  MEP_TRY(check_operator(args));
  const size_t bytes = args.count * mep_dtype_size(args.dtype);
  return check_overlap(args, bytes, bytes, 0);
}

void reduce_contributions(Collectives& comm, Operation& operation) {
  const std::vector<uint32_t>& sources = *operation.contributors;
  std::vector<const void*>& inputs = comm.scratch_pointers();
  inputs.clear();
  for (const uint32_t source : sources) inputs.push_back(comm.contribution(operation, source));
  reduce_rows(operation.args.dtype, operation.args.op, operation.args.receive, inputs.data(),
              inputs.size(), operation.args.count, static_cast<uint32_t>(sources.size()));
}

Step step_small(Collectives& comm, Operation& operation) {
  return exchange_small(comm, operation, [&] {
    operation.input_intact = operation.args.send != operation.args.receive;
    reduce_contributions(comm, operation);
  });
}

// How the elements of a chunk are divided among the live ranks. All slices but the last are full.
struct Slices {
  size_t element;
  size_t per_slice;    // elements
  size_t chunk_first;  // first element of the chunk
  size_t chunk_count;  // elements of the chunk
  size_t first(uint32_t position) const {
    return chunk_first + std::min(chunk_count, position * per_slice);
  }
  size_t count(uint32_t position) const { return first(position + 1) - first(position); }
};

size_t elements_per_chunk(const Bulk& bulk, size_t element) {
  return bulk.section_bytes() / element * bulk.live().size();
}

Slices slices_of(const Bulk& bulk, const Operation& operation, uint64_t chunk) {
  Slices slices{};
  slices.element = operation.bytes / operation.args.count;
  const size_t full = elements_per_chunk(bulk, slices.element);
  slices.chunk_first = chunk * full;
  slices.chunk_count = std::min(full, operation.args.count - slices.chunk_first);
  // Slices start at cache lines, so that no line has two writers and vector code runs aligned.
  const size_t unit = std::max<size_t>(1, Bulk::kLine / slices.element);
  const size_t even = (slices.chunk_count + bulk.live().size() - 1) / bulk.live().size();
  slices.per_slice = (even + unit - 1) / unit * unit;
  return slices;
}

uint64_t chunk_count(const Bulk& bulk, const Operation& operation) {
  const size_t full = elements_per_chunk(bulk, operation.bytes / operation.args.count);
  return (operation.args.count + full - 1) / full;
}

// Chunks whose inputs come with the entry cells. Where these come through leaders they do not.
uint64_t entered_chunks(Collectives& comm) {
  return comm.cells().through_leaders() ? 0 : Bulk::kRing;
}

mep_result_t post_chunk(Collectives& comm, Operation& operation, uint64_t chunk) {
  const Bulk& bulk = comm.bulk();
  const Slices slices = slices_of(bulk, operation, chunk);
  const auto* input = static_cast<const std::byte*>(operation.args.send);
  for (uint32_t position = 0; position < bulk.live().size(); ++position) {
    const uint32_t target = bulk.live()[position];
    const size_t bytes = slices.count(position) * slices.element;
    if (target == comm.rank()) continue;
    if (bytes != 0) {
      MEP_TRY(bulk.put_in(bulk.first_chunk() + chunk, target,
                          input + slices.first(position) * slices.element, bytes));
    }
    if (chunk < entered_chunks(comm)) continue;
    MEP_TRY(bulk.signal_one(Bulk::Word::kPosted, bulk.first_chunk() + chunk, target));
  }
  return MEP_SUCCESS;
}

mep_result_t reduce_chunk(Collectives& comm, Operation& operation, uint64_t chunk) {
  const Bulk& bulk = comm.bulk();
  const uint64_t global = bulk.first_chunk() + chunk;
  const Slices slices = slices_of(bulk, operation, chunk);
  const size_t count = slices.count(bulk.position());
  std::vector<const void*>& inputs = comm.scratch_pointers();
  inputs.clear();
  for (const uint32_t source : bulk.live()) {
    const std::byte* own = static_cast<const std::byte*>(operation.args.send) +
                           slices.first(bulk.position()) * slices.element;
    inputs.push_back(source == comm.rank() ? own : bulk.in_section(global, source));
  }
  MEP_TEST_DELAY_POINT("bulk reduce");
  reduce_rows(operation.args.dtype, operation.args.op, bulk.own_out(global), inputs.data(),
              inputs.size(), count, static_cast<uint32_t>(inputs.size()));
  MEP_TRY(bulk.publish_out(global, count * slices.element));
  return bulk.signal_all(Bulk::Word::kReduced, global);
}

void copy_chunk(Collectives& comm, Operation& operation, uint64_t chunk) {
  const Bulk& bulk = comm.bulk();
  const Slices slices = slices_of(bulk, operation, chunk);
  auto* output = static_cast<std::byte*>(operation.args.receive);
  for (uint32_t position = 0; position < bulk.live().size(); ++position) {
    const size_t bytes = slices.count(position) * slices.element;
    if (bytes == 0) continue;
    std::memcpy(output + slices.first(position) * slices.element,
                bulk.out_section(bulk.first_chunk() + chunk, bulk.live()[position]), bytes);
  }
}

// Posts the present chunk and the next one.
mep_result_t post_ahead(Collectives& comm, Operation& operation) {
  const uint64_t chunks = chunk_count(comm.bulk(), operation);
  while (operation.chunk_posted < chunks && operation.chunk_posted <= operation.chunk / 2 + 1) {
    MEP_TRY(post_chunk(comm, operation, operation.chunk_posted));
    ++operation.chunk_posted;
  }
  return MEP_SUCCESS;
}

// operation.chunk counts half steps: even 2c waits for the inputs of chunk c, odd for its results.
Step step_chunks(Collectives& comm, Operation& operation) {
  const Bulk& bulk = comm.bulk();
  const uint64_t chunks = chunk_count(bulk, operation);
  const PostingScope posting = comm.posting();
  if (!posting.allowed()) return Step::kPending;
  for (;;) {
    const uint64_t chunk = operation.chunk / 2;
    if (chunk == chunks) break;
    const mep_result_t posted = post_ahead(comm, operation);
    if (posted != MEP_SUCCESS) return fail_step(operation, posted);
    const bool reducing = operation.chunk % 2 == 0;
    if (!(reducing && chunk < entered_chunks(comm)) &&
        !bulk.arrived_from_all(reducing ? Bulk::Word::kPosted : Bulk::Word::kReduced,
                               bulk.first_chunk() + chunk, &operation.cursor)) {
      return Step::kPending;
    }
    if (reducing) {
      const mep_result_t reduced = reduce_chunk(comm, operation, chunk);
      if (reduced != MEP_SUCCESS) return fail_step(operation, reduced);
    } else {
      operation.input_intact =
          operation.input_intact && operation.args.send != operation.args.receive;
      copy_chunk(comm, operation, chunk);
    }
    ++operation.chunk;
  }
  comm.bulk().advance(chunks);
  return Step::kDone;
}

// What fits into a cell in every epoch writes its result only when nothing can fail any more.
mep_result_t prepare(const Collectives& comm, Operation& operation) {
  if (operation.bytes <= Cells::kMappedPayloadBytes ||
      operation.args.send != operation.args.receive ||
      operation.bytes > comm.world().config().in_place_restore_bytes) {
    return MEP_SUCCESS;
  }
  const auto* input = static_cast<const std::byte*>(operation.args.send);
  operation.saved_input.assign(input, input + operation.bytes);
  return MEP_SUCCESS;
}

Step begin_large(Collectives& comm, Operation& operation) {
  const PostingScope posting = comm.posting();
  if (!posting.allowed()) return Step::kPending;
  if (entered_chunks(comm) == 0) return Step::kDone;
  const mep_result_t posted = post_ahead(comm, operation);
  return posted == MEP_SUCCESS ? Step::kDone : fail_step(operation, posted);
}

Step step_large(Collectives& comm, Operation& operation) {
  return step_large_phases(
      comm, operation, [&] { return begin_large(comm, operation); },
      [&] {
        const bool over_hosts = comm.bulk().hosts().in_blocks();
        return over_hosts ? allreduce_over_hosts(comm, operation) : step_chunks(comm, operation);
      });
}

Step step(Collectives& comm, Operation& operation) {
  if (comm.adopted().live.size() == 1) {
    if (operation.bytes != 0) {
      const void* input = operation.args.send;
      reduce_rows(operation.args.dtype, operation.args.op, operation.args.receive, &input, 1,
                  operation.args.count, 1);
    }
    comm.cells().note_all_entered(operation.seq);
    return Step::kDone;
  }
  return operation.is_small ? step_small(comm, operation) : step_large(comm, operation);
}

Step settle(Collectives& comm, Operation& operation) {
  if (!operation.is_small) return settle_large(operation);
  reduce_contributions(comm, operation);
  return Step::kDone;
}

}  // namespace

const CollectiveType CollectiveTypes::allreduce = {facts_of(Collective::k_allreduce), check, step,
                                                   settle, prepare};

}  // namespace mep
