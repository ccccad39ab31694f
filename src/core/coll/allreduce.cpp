// Allreduce.
//   Small  flat: every rank gives its whole input to all and reduces all inputs itself, in rank order.
//   Large  sliced: chunk by chunk, each live rank owns a slice, gets all inputs of it, reduces them in
//          rank order and publishes the result. The next chunk is posted before the present one is
//          reduced. The inputs of the first two chunks are put before the empty contribution, and
//          its word stands for their "posted" words. So a call that turns out not to match has signalled
//          nothing that a later one could take for its own. Where entries go through host
//          leaders, they take another way than the inputs. There these chunks are posted after the
//          exchange of entries, like the rest. Reuse of areas: `in` of chunk c at owner t is
//          free for c + 2 because t's "reduced" of c has come; `out` of chunk c is free for c + 2 because
//          everybody posts c + 2 only after it has copied c out.
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

size_t elements_per_chunk(const Pipeline& pipeline, size_t element) {
  return pipeline.section_bytes() / element * pipeline.live().size();
}

Slices slices_of(const Pipeline& pipeline, const Operation& operation, uint64_t chunk) {
  Slices slices{};
  slices.element = operation.bytes / operation.args.count;
  const size_t full = elements_per_chunk(pipeline, slices.element);
  slices.chunk_first = chunk * full;
  slices.chunk_count = std::min(full, operation.args.count - slices.chunk_first);
  // Slices start at cache lines, so that no line has two writers and vector code runs aligned.
  const size_t unit = std::max<size_t>(1, Pipeline::kLine / slices.element);
  const size_t even = (slices.chunk_count + pipeline.live().size() - 1) / pipeline.live().size();
  slices.per_slice = (even + unit - 1) / unit * unit;
  return slices;
}

uint64_t chunk_count(const Pipeline& pipeline, const Operation& operation) {
  const size_t full = elements_per_chunk(pipeline, operation.bytes / operation.args.count);
  return (operation.args.count + full - 1) / full;
}

mep_result_t post_chunk(Collectives& comm, Operation& operation, uint64_t chunk) {
  const Pipeline& pipeline = comm.pipeline();
  const Slices slices = slices_of(pipeline, operation, chunk);
  const auto* input = static_cast<const std::byte*>(operation.args.send);
  for (uint32_t position = 0; position < pipeline.live().size(); ++position) {
    const uint32_t target = pipeline.live()[position];
    const size_t bytes = slices.count(position) * slices.element;
    if (target == comm.rank()) continue;
    if (bytes != 0) {
      MEP_TRY(pipeline.put_in(pipeline.first_chunk() + chunk, target,
                              input + slices.first(position) * slices.element, bytes));
    }
    if (chunk < operation.chunk_entered) continue;
    MEP_TRY(pipeline.signal_one(Pipeline::Word::kPosted, pipeline.first_chunk() + chunk, target));
  }
  return MEP_SUCCESS;
}

mep_result_t reduce_chunk(Collectives& comm, Operation& operation, uint64_t chunk) {
  const Pipeline& pipeline = comm.pipeline();
  const uint64_t global = pipeline.first_chunk() + chunk;
  const Slices slices = slices_of(pipeline, operation, chunk);
  const size_t count = slices.count(pipeline.position());
  std::vector<const void*>& inputs = comm.scratch_pointers();
  inputs.clear();
  for (const uint32_t source : pipeline.live()) {
    const std::byte* own = static_cast<const std::byte*>(operation.args.send) +
                           slices.first(pipeline.position()) * slices.element;
    inputs.push_back(source == comm.rank() ? own : pipeline.in_section(global, source));
  }
  MEP_TEST_DELAY_POINT("large reduce");
  reduce_rows(operation.args.dtype, operation.args.op, pipeline.own_out(global), inputs.data(),
              inputs.size(), count, static_cast<uint32_t>(inputs.size()));
  MEP_TRY(pipeline.publish_out(global, count * slices.element));
  return pipeline.signal_all(Pipeline::Word::kReduced, global);
}

void copy_chunk(Collectives& comm, Operation& operation, uint64_t chunk) {
  const Pipeline& pipeline = comm.pipeline();
  const Slices slices = slices_of(pipeline, operation, chunk);
  auto* output = static_cast<std::byte*>(operation.args.receive);
  for (uint32_t position = 0; position < pipeline.live().size(); ++position) {
    const size_t bytes = slices.count(position) * slices.element;
    if (bytes == 0) continue;
    std::memcpy(output + slices.first(position) * slices.element,
                pipeline.out_section(pipeline.first_chunk() + chunk, pipeline.live()[position]),
                bytes);
  }
}

// Posts the present chunk and the next one.
mep_result_t post_ahead(Collectives& comm, Operation& operation) {
  const uint64_t chunks = chunk_count(comm.pipeline(), operation);
  while (operation.chunk_posted < chunks && operation.chunk_posted <= operation.chunk / 2 + 1) {
    MEP_TRY(post_chunk(comm, operation, operation.chunk_posted));
    ++operation.chunk_posted;
  }
  return MEP_SUCCESS;
}

// operation.chunk counts half steps: even 2c waits for the inputs of chunk c, odd for its results.
Step step_chunks(Collectives& comm, Operation& operation) {
  const Pipeline& pipeline = comm.pipeline();
  const uint64_t chunks = chunk_count(pipeline, operation);
  const PostingScope posting = comm.posting();
  if (!posting.allowed()) return Step::kPending;
  for (;;) {
    const uint64_t chunk = operation.chunk / 2;
    if (chunk == chunks) break;
    const mep_result_t posted = post_ahead(comm, operation);
    if (posted != MEP_SUCCESS) return fail_step(operation, posted);
    const bool reducing = operation.chunk % 2 == 0;
    if (!(reducing && chunk < operation.chunk_entered) &&
        !pipeline.arrived_from_all(reducing ? Pipeline::Word::kPosted : Pipeline::Word::kReduced,
                                   pipeline.first_chunk() + chunk, &operation.cursor)) {
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
  comm.pipeline().advance(chunks);
  return Step::kDone;
}

// An operation that fits into an eager slot in every epoch writes its result only when nothing can fail any more.
mep_result_t prepare(const Collectives&, Operation& operation) {
  if (operation.bytes <= EagerRing::kMappedPayloadBytes ||
      operation.args.send != operation.args.receive || operation.bytes > kMostRestoredBytes) {
    return MEP_SUCCESS;
  }
  const auto* input = static_cast<const std::byte*>(operation.args.send);
  operation.saved_input.assign(input, input + operation.bytes);
  return MEP_SUCCESS;
}

Step step_large(Collectives& comm, Operation& operation) {
  return step_large_phases(
      comm, operation,
      [&] {
        return post_before_entry(comm, operation, [&] { return post_ahead(comm, operation); });
      },
      [&] {
        const bool over_hosts = comm.pipeline().hosts().in_blocks();
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
    comm.eager().note_all_entered(operation.seq);
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
