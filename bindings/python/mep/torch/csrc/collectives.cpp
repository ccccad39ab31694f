#include <algorithm>
#include <cstring>
#include <numeric>

#include <c10/util/Exception.h>

#include "calls.hpp"

namespace mep_torch {
namespace {

// Up to so many bytes of all blocks a list of tensors is copied into one buffer, which costs less than the
// exchange of their lengths. Every rank must take the same way, so it follows from the sizes alone.
constexpr size_t kPackBytes = 65'536;

using c10d::OpType;

size_t bytes_of(const std::vector<at::Tensor>& tensors) {
  return std::accumulate(
      tensors.begin(), tensors.end(), size_t{0},
      [](size_t sum, const at::Tensor& tensor) { return sum + tensor.nbytes(); });
}

bool are_even(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.nbytes() == tensors[0].nbytes();
  });
}

// A reduction reads the tensor, or its product with the factor. In place where that is possible.
at::Tensor reduction_input(const at::Tensor& input, const c10d::ReduceOp& op, Call* call) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return input;
  at::Tensor product = multiplied(op, input).contiguous();
  call->buffers.push_back(product);
  return product;
}

// A sum of complex numbers is that of pairs of real ones, and so is an average.
at::Tensor as_reals(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const bool is_linear = op.op_ == c10d::ReduceOp::SUM || op.op_ == c10d::ReduceOp::AVG;
  return tensor.is_complex() && is_linear ? at::view_as_real(tensor) : tensor;
}

void divide_after(const Reduction& reduction, const at::Tensor& result, int size, Call* call) {
  if (!reduction.divides) return;
  append_finish([result, size] { result.div_(size, "trunc"); }, call);
}

}  // namespace

bool is_packed(const std::vector<at::Tensor>& tensors) {
  return are_even(tensors) && (!tensors[0].is_cpu() || bytes_of(tensors) <= kPackBytes);
}

at::Tensor apart_from(const at::Tensor& input, const Span& output, const void* in_place,
                      Call* call) {
  at::Tensor dense = input.contiguous();
  if (span_of(dense).crosses(output) && dense.data_ptr() != in_place) dense = dense.clone();
  call->buffers.push_back(dense);
  return dense;
}

void ProcessGroupMep::check_list(const Tensors& tensors, const char* name, const char* what) const {
  TORCH_CHECK_VALUE(tensors.size() == static_cast<size_t>(size_), "mep: ", name, ": ",
                    tensors.size(), " ", what, " tensors for ", size_, " ranks");
  check_tensors(tensors, name);
}

void ProcessGroupMep::check_root(int64_t root, const char* name) const {
  TORCH_CHECK_VALUE(root >= 0 && root < size_, "mep: ", name, ": rank ", root, " of a group of ",
                    size_);
}

// --- Broadcast and reductions -----------------------------------------------------------------------

ProcessGroupMep::WorkPtr ProcessGroupMep::broadcast(Tensors& tensors,
                                                    const c10d::BroadcastOptions& opts) try {
  at::Tensor& tensor = only(tensors, "broadcast");
  check_root(opts.rootRank, "broadcast");
  Call call = call_of(OpType::BROADCAST, "broadcast", "broadcast", opts);
  call.inputs = tensors;
  call.outputs = tensors;
  const auto root = static_cast<int32_t>(opts.rootRank);
  const at::Tensor place =
      rank_ == root ? place_to_update(tensor, &call) : place_to_write(tensor, &call);
  call.steps.push_back([data = place.data_ptr(), elements = elements_of(place),
                        root](const Target& at) {
    return at.request == nullptr
               ? mep_broadcast(data, data, elements.count, elements.dtype, root, at.comm, at.stream)
               : mep_ibroadcast(data, data, elements.count, elements.dtype, root, at.comm, nullptr,
                                at.request);
  });
  return run(std::move(call));
} catch (const c10::ValueError&) {
  refuse(tensors);
  throw;
}

void ProcessGroupMep::add_allreduce(const at::Tensor& given, const c10d::ReduceOp& op,
                                    Call* call) const {
  const at::Tensor tensor = as_reals(given, op);
  const Reduction reduction = reduction_of(op, tensor.scalar_type());
  const at::Tensor place = place_to_update(tensor, call);
  const at::Tensor input = reduction_input(place, op, call);
  call->steps.push_back([from = input.data_ptr(), to = place.data_ptr(),
                         count = static_cast<size_t>(place.numel()), reduction](const Target& at) {
    return at.request == nullptr
               ? mep_allreduce(from, to, count, reduction.dtype, reduction.op, at.comm, at.stream)
               : mep_iallreduce(from, to, count, reduction.dtype, reduction.op, at.comm, nullptr,
                                at.request);
  });
  divide_after(reduction, tensor, size_, call);
}

ProcessGroupMep::WorkPtr ProcessGroupMep::allreduce(Tensors& tensors,
                                                    const c10d::AllreduceOptions& opts) try {
  if (tensors.size() == 1 && tensors[0].is_sparse()) return allreduce_sparse(tensors[0], opts);
  at::Tensor& tensor = only(tensors, "allreduce");
  Call call = call_of(OpType::ALLREDUCE, "allreduce", "all_reduce", opts);
  call.inputs = tensors;
  call.outputs = tensors;
  add_allreduce(tensor, opts.reduceOp, &call);
  return run(std::move(call));
} catch (const c10::ValueError&) {
  refuse(tensors);
  throw;
}

ProcessGroupMep::WorkPtr ProcessGroupMep::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) try {
  check_tensors(tensors, "allreduce");
  Call call = call_of(OpType::ALLREDUCE_COALESCED, "allreduce", "all_reduce", opts);
  call.inputs = tensors;
  call.outputs = tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto is_this = [&](const at::Tensor& other) {
      return other.data_ptr() == tensors[i].data_ptr() && other.sizes() == tensors[i].sizes() &&
             other.strides() == tensors[i].strides();
    };
    const auto earlier = tensors.begin() + static_cast<int64_t>(i);
    // A tensor that is there twice is summed once.
    if (std::any_of(tensors.begin(), earlier, is_this)) continue;
    add_allreduce(tensors[i], opts.reduceOp, &call);
  }
  return run(std::move(call));
} catch (const c10::ValueError&) {
  refuse(tensors);
  throw;
}

ProcessGroupMep::WorkPtr ProcessGroupMep::reduce(Tensors& tensors,
                                                 const c10d::ReduceOptions& opts) try {
  const at::Tensor tensor = as_reals(only(tensors, "reduce"), opts.reduceOp);
  check_root(opts.rootRank, "reduce");
  Call call = call_of(OpType::REDUCE, "reduce", "reduce", opts);
  call.inputs = tensors;
  call.outputs = tensors;
  const Reduction reduction = reduction_of(opts.reduceOp, tensor.scalar_type());
  const auto root = static_cast<int32_t>(opts.rootRank);
  const bool is_root = rank_ == root;
  const at::Tensor place = is_root ? place_to_update(tensor, &call) : tensor.contiguous();
  const at::Tensor input = reduction_input(place, opts.reduceOp, &call);
  call.buffers.push_back(place);
  call.steps.push_back([from = input.data_ptr(), to = is_root ? place.data_ptr() : nullptr,
                        count = static_cast<size_t>(place.numel()), reduction,
                        root](const Target& at) {
    return at.request == nullptr ? mep_reduce(from, to, count, reduction.dtype, reduction.op, root,
                                              at.comm, at.stream)
                                 : mep_ireduce(from, to, count, reduction.dtype, reduction.op, root,
                                               at.comm, nullptr, at.request);
  });
  if (is_root) divide_after(reduction, tensor, size_, &call);
  return run(std::move(call));
} catch (const c10::ValueError&) {
  refuse(tensors);
  throw;
}

// --- Allgather --------------------------------------------------------------------------------------

void ProcessGroupMep::add_allgather(at::Tensor& output, const at::Tensor& input, Call* call) const {
  TORCH_CHECK_VALUE(output.nbytes() == input.nbytes() * static_cast<size_t>(size_) &&
                        output.scalar_type() == input.scalar_type(),
                    "mep: allgather: the output needs ", size_, " times the ", input.numel(),
                    " elements of the input, of its type");
  const at::Tensor place = place_to_update(output, call);
  const void* own =
      static_cast<std::byte*>(place.data_ptr()) + static_cast<size_t>(rank_) * input.nbytes();
  const at::Tensor from = apart_from(input, span_of(place), own, call);
  call->steps.push_back([from = from.data_ptr(), to = place.data_ptr(),
                         elements = elements_of(from)](const Target& at) {
    return at.request == nullptr
               ? mep_allgather(from, to, elements.count, elements.dtype, at.comm, at.stream)
               : mep_iallgather(from, to, elements.count, elements.dtype, at.comm, nullptr,
                                at.request);
  });
}

void ProcessGroupMep::add_allgather_list(Tensors& outputs, const at::Tensor& input,
                                         Call* call) const {
  check_list(outputs, "allgather", "output");
  TORCH_CHECK_VALUE(outputs[static_cast<size_t>(rank_)].nbytes() == input.nbytes(),
                    "mep: allgather: output ", rank_, " must be as large as the input");
  const Elements elements = elements_of(input, outputs);
  if (is_packed(outputs)) {
    at::Tensor packed = packed_from(outputs);
    call->buffers.push_back(packed);
    // One element may have any stride and be called contiguous.
    const at::Tensor flat = input.resolve_neg().contiguous().as_strided({input.numel()}, {1});
    const auto type = elements.dtype == MEP_UINT8 ? at::kByte : input.scalar_type();
    at::Tensor typed = packed.view(type);
    add_allgather(typed, flat.view(type), call);
    append_finish([packed, outputs] { copy_out(packed, outputs); }, call);
    return;
  }
  const at::Tensor from = input.contiguous();
  const Blocks blocks = blocks_of(outputs, elements.dtype, span_of(from));
  call->buffers.push_back(from);
  call->steps.push_back([from = from.data_ptr(), blocks, dtype = elements.dtype](const Target& at) {
    const uint64_t* counts = blocks.counts.data();
    const uint64_t* displs = blocks.displs.data();
    return at.request == nullptr
               ? mep_allgatherv(from, blocks.base, counts, displs, dtype, at.comm, at.stream)
               : mep_iallgatherv(from, blocks.base, counts, displs, dtype, at.comm, nullptr,
                                 at.request);
  });
  if (blocks.packed.defined()) {
    append_finish([packed = blocks.packed, outputs] { copy_out(packed, outputs); }, call);
  }
}

ProcessGroupMep::WorkPtr ProcessGroupMep::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& opts) try {
  const at::Tensor& input = only(inputs, "allgather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "mep: allgather: takes one list of outputs");
  Call call = call_of(OpType::ALLGATHER, "allgather", "all_gather", opts);
  call.inputs = inputs;
  call.outputs = outputs[0];
  add_allgather_list(outputs[0], input, &call);
  return run(std::move(call));
} catch (const c10::ValueError&) {
  refuse(inputs);
  throw;
}

ProcessGroupMep::WorkPtr ProcessGroupMep::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                          const c10d::AllgatherOptions& opts) {
  Tensors inputs{input};
  Tensors outputs{output};
  return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

ProcessGroupMep::WorkPtr ProcessGroupMep::allgather_coalesced(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) try {
  check_tensors(inputs, "allgather");
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_),
                    "mep: allgather: ", outputs.size(), " lists of outputs for ", size_, " ranks");
  Call call = call_of(OpType::ALLGATHER_COALESCED, "allgather", "all_gather", opts);
  call.inputs = inputs;
  for (size_t index = 0; index < inputs.size(); ++index) {
    Tensors of_ranks;
    for (Tensors& of_rank : outputs) {
      TORCH_CHECK_VALUE(of_rank.size() == inputs.size(),
                        "mep: allgather: an output for each input and rank is needed");
      of_ranks.push_back(of_rank[index]);
      call.outputs.push_back(of_rank[index]);
    }
    add_allgather_list(of_ranks, inputs[index], &call);
  }
  return run(std::move(call));
} catch (const c10::ValueError&) {
  refuse(inputs);
  throw;
}

ProcessGroupMep::WorkPtr ProcessGroupMep::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) try {
  check_tensors(inputs, "allgather");
  check_tensors(outputs, "allgather");
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "mep: allgather: ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs");
  Call call = call_of(OpType::_ALLGATHER_BASE, "allgather", "_all_gather_base", opts);
  call.inputs = inputs;
  call.outputs = outputs;
  for (size_t index = 0; index < inputs.size(); ++index) {
    add_allgather(outputs[index], inputs[index], &call);
  }
  return run(std::move(call));
} catch (const c10::ValueError&) {
  refuse(inputs);
  throw;
}

// --- Gather and scatter -----------------------------------------------------------------------------

ProcessGroupMep::WorkPtr ProcessGroupMep::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::GatherOptions& opts) try {
  const at::Tensor from = only(inputs, "gather").contiguous();
  check_root(opts.rootRank, "gather");
  const auto root = static_cast<int32_t>(opts.rootRank);
  const bool is_root = rank_ == root;
  Call call = call_of(OpType::GATHER, "gather", "gather", opts);
  call.inputs = inputs;
  call.buffers = {from};
  Tensors places;
  if (is_root) {
    TORCH_CHECK_VALUE(outputs.size() == 1, "mep: gather: the root gives one list of outputs");
    places = outputs[0];
    check_list(places, "gather", "output");
    call.outputs = places;
  }
  const size_t bytes = from.nbytes();
  const Elements elements = elements_of(from, places);
  if (!from.is_cpu() || bytes * static_cast<size_t>(size_) <= kPackBytes) {
    at::Tensor packed;
    if (is_root) {
      packed = packed_from(places);
      TORCH_CHECK_VALUE(packed.nbytes() == bytes * static_cast<size_t>(size_),
                        "mep: gather: each output must be as large as the input");
      call.buffers.push_back(packed);
      append_finish([packed, places] { copy_out(packed, places); }, &call);
    }
    call.steps.push_back([from = from.data_ptr(), to = is_root ? packed.data_ptr() : nullptr,
                          elements, root](const Target& at) {
      return at.request == nullptr
                 ? mep_gather(from, to, elements.count, elements.dtype, root, at.comm, at.stream)
                 : mep_igather(from, to, elements.count, elements.dtype, root, at.comm, nullptr,
                               at.request);
    });
    return run(std::move(call));
  }
  Blocks blocks;
  if (is_root) blocks = blocks_of(places, elements.dtype, span_of(from));
  call.steps.push_back([from = from.data_ptr(), elements, blocks, root](const Target& at) {
    const uint64_t* counts = blocks.counts.data();
    const uint64_t* displs = blocks.displs.data();
    return at.request == nullptr ? mep_gatherv(from, blocks.base, elements.count, counts, displs,
                                               elements.dtype, root, at.comm, at.stream)
                                 : mep_igatherv(from, blocks.base, elements.count, counts, displs,
                                                elements.dtype, root, at.comm, nullptr, at.request);
  });
  if (blocks.packed.defined()) {
    append_finish([packed = blocks.packed, places] { copy_out(packed, places); }, &call);
  }
  return run(std::move(call));
} catch (const c10::ValueError&) {
  refuse(inputs);
  throw;
}

ProcessGroupMep::WorkPtr ProcessGroupMep::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const c10d::ScatterOptions& opts) try {
  at::Tensor& output = only(outputs, "scatter");
  check_root(opts.rootRank, "scatter");
  const auto root = static_cast<int32_t>(opts.rootRank);
  const bool is_root = rank_ == root;
  Call call = call_of(OpType::SCATTER, "scatter", "scatter", opts);
  call.outputs = outputs;
  const at::Tensor place = place_to_write(output, &call);
  call.buffers.push_back(place);
  if (is_root) {
    TORCH_CHECK_VALUE(inputs.size() == 1, "mep: scatter: the root gives one list of inputs");
    check_list(inputs[0], "scatter", "input");
    call.inputs = inputs[0];
  }
  const size_t bytes = place.nbytes();
  const Elements elements = elements_of(place, call.inputs);
  if (!place.is_cpu() || bytes * static_cast<size_t>(size_) <= kPackBytes) {
    at::Tensor packed;
    if (is_root) {
      packed = packed_from(inputs[0]);
      TORCH_CHECK_VALUE(packed.nbytes() == bytes * static_cast<size_t>(size_),
                        "mep: scatter: each input must be as large as the output");
      call.buffers.push_back(packed);
    }
    call.steps.push_back([from = is_root ? packed.data_ptr() : nullptr, to = place.data_ptr(),
                          elements, root](const Target& at) {
      return at.request == nullptr
                 ? mep_scatter(from, to, elements.count, elements.dtype, root, at.comm, at.stream)
                 : mep_iscatter(from, to, elements.count, elements.dtype, root, at.comm, nullptr,
                                at.request);
    });
    return run(std::move(call));
  }
  Blocks blocks;
  if (is_root) {
    blocks = blocks_of(inputs[0], elements.dtype, span_of(place));
    for (const at::Tensor& input : inputs[0]) call.buffers.push_back(input);
  }
  call.steps.push_back([to = place.data_ptr(), elements, blocks, root](const Target& at) {
    const uint64_t* counts = blocks.counts.data();
    const uint64_t* displs = blocks.displs.data();
    return at.request == nullptr
               ? mep_scatterv(blocks.base, to, elements.count, counts, displs, elements.dtype, root,
                              at.comm, at.stream)
               : mep_iscatterv(blocks.base, to, elements.count, counts, displs, elements.dtype,
                               root, at.comm, nullptr, at.request);
  });
  return run(std::move(call));
} catch (const c10::ValueError&) {
  refuse(outputs);
  throw;
}

// --- Reduce-scatter ---------------------------------------------------------------------------------

void ProcessGroupMep::add_reduce_scatter(const at::Tensor& whole_output,
                                         const at::Tensor& whole_input, const c10d::ReduceOp& op,
                                         Call* call) const {
  const at::Tensor output = as_reals(whole_output, op);
  const at::Tensor input = as_reals(whole_input.resolve_conj(), op);
  TORCH_CHECK_VALUE(
      input.numel() == output.numel() * size_ && output.scalar_type() == input.scalar_type(),
      "mep: reduce_scatter: the input needs ", size_, " times the ", output.numel(),
      " elements of the output, of its type");
  const Reduction reduction = reduction_of(op, output.scalar_type());
  const at::Tensor place = place_to_write(output, call);
  at::Tensor from = reduction_input(input.contiguous(), op, call);
  const auto own = static_cast<size_t>(rank_) * output.nbytes();
  const bool is_in_place =
      place.data_ptr() == static_cast<const std::byte*>(from.const_data_ptr()) + own;
  if (!is_in_place) from = apart_from(from, span_of(place), nullptr, call);
  call->buffers.push_back(from);
  call->steps.push_back([from = from.data_ptr(), to = place.data_ptr(),
                         count = static_cast<size_t>(place.numel()), reduction](const Target& at) {
    return at.request == nullptr ? mep_reduce_scatter(from, to, count, reduction.dtype,
                                                      reduction.op, at.comm, at.stream)
                                 : mep_ireduce_scatter(from, to, count, reduction.dtype,
                                                       reduction.op, at.comm, nullptr, at.request);
  });
  divide_after(reduction, output, size_, call);
}

ProcessGroupMep::WorkPtr ProcessGroupMep::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) try {
  at::Tensor& output = only(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1, "mep: reduce_scatter: takes one list of inputs");
  Tensors& blocks_in = inputs[0];
  check_list(blocks_in, "reduce_scatter", "input");
  TORCH_CHECK_VALUE(blocks_in[static_cast<size_t>(rank_)].nbytes() == output.nbytes(),
                    "mep: reduce_scatter: input ", rank_, " must be as large as the output");
  Call call = call_of(OpType::REDUCE_SCATTER, "reduce_scatter", "reduce_scatter", opts);
  call.inputs = blocks_in;
  call.outputs = outputs;
  if (is_packed(blocks_in)) {
    const at::Tensor packed = packed_from(blocks_in).view(output.scalar_type());
    add_reduce_scatter(output, packed, opts.reduceOp, &call);
    return run(std::move(call));
  }
  const at::Tensor reals = as_reals(output, opts.reduceOp);
  const Reduction reduction = reduction_of(opts.reduceOp, reals.scalar_type());
  const at::Tensor place = place_to_write(reals, &call);
  Tensors read;
  for (const at::Tensor& input : blocks_in) {
    read.push_back(
        reduction_input(as_reals(input.resolve_conj(), opts.reduceOp), opts.reduceOp, &call));
  }
  const Blocks blocks = blocks_of(read, reduction.dtype, span_of(place));
  call.buffers.insert(call.buffers.end(), read.begin(), read.end());
  call.buffers.push_back(place);
  call.steps.push_back([blocks, to = place.data_ptr(), reduction](const Target& at) {
    const uint64_t* counts = blocks.counts.data();
    const uint64_t* displs = blocks.displs.data();
    return at.request == nullptr
               ? mep_reduce_scatterv(blocks.base, to, counts, displs, reduction.dtype, reduction.op,
                                     at.comm, at.stream)
               : mep_ireduce_scatterv(blocks.base, to, counts, displs, reduction.dtype,
                                      reduction.op, at.comm, nullptr, at.request);
  });
  divide_after(reduction, output, size_, &call);
  return run(std::move(call));
} catch (const c10::ValueError&) {
  refuse(outputs);
  throw;
}

ProcessGroupMep::WorkPtr ProcessGroupMep::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  Tensors inputs{input};
  Tensors outputs{output};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

ProcessGroupMep::WorkPtr ProcessGroupMep::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) try {
  check_tensors(inputs, "reduce_scatter");
  check_tensors(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "mep: reduce_scatter: ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs");
  Call call = call_of(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter", "_reduce_scatter_base", opts);
  call.inputs = inputs;
  call.outputs = outputs;
  for (size_t index = 0; index < inputs.size(); ++index) {
    add_reduce_scatter(outputs[index], inputs[index], opts.reduceOp, &call);
  }
  return run(std::move(call));
} catch (const c10::ValueError&) {
  refuse(inputs);
  throw;
}

}  // namespace mep_torch
