#include <algorithm>
#include <numeric>

#include <c10/util/Exception.h>

#include "calls.hpp"

namespace mep_torch {
namespace {

using c10d::OpType;

// Rows of dimension 0 for each rank, as elements.
std::vector<uint64_t> counts_of(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                int size, const char* what) {
  const int64_t rows = tensor.dim() == 0 ? tensor.numel() : tensor.size(0);
  const int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  std::vector<uint64_t> counts(static_cast<size_t>(size));
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % size == 0, "mep: alltoall: the ", what, " has ", rows, " rows, which ",
                      size, " ranks cannot share evenly; give split sizes");
    std::fill(counts.begin(), counts.end(), static_cast<uint64_t>(rows / size * row));
    return counts;
  }
  TORCH_CHECK_VALUE(splits.size() == counts.size(), "mep: alltoall: ", splits.size(), " ", what,
                    " split sizes for ", size, " ranks");
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  const bool is_negative =
      std::any_of(splits.begin(), splits.end(), [](int64_t n) { return n < 0; });
  TORCH_CHECK_VALUE(sum == rows && !is_negative, "mep: alltoall: the ", what,
                    " split sizes must be 0 or more and add up to its ", rows, " rows");
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    counts[rank] = static_cast<uint64_t>(splits[rank] * row);
  }
  return counts;
}

std::vector<uint64_t> counts_of_each(const std::vector<at::Tensor>& tensors, mep_dtype_t type) {
  std::vector<uint64_t> counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(tensor.nbytes() / mep_dtype_size(type));
  return counts;
}

// The type that two lists go as.
mep_dtype_t type_of(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> all = inputs;
  all.insert(all.end(), outputs.begin(), outputs.end());
  return elements_of(inputs[0], all).dtype;
}

// Tensors of a GPU. A rank whose own tensors are all of one size does not know whether those of others are; so all
// call the form with counts.
void add_packed_alltoall(const std::vector<at::Tensor>& inputs,
                         const std::vector<at::Tensor>& outputs, Call* call) {
  const at::Tensor from = packed_from(inputs);
  const at::Tensor place = packed_from(outputs);
  call->buffers = {from, place};
  const mep_dtype_t type = type_of(inputs, outputs);
  const std::vector<uint64_t> sent = counts_of_each(inputs, type);
  const std::vector<uint64_t> received = counts_of_each(outputs, type);
  call->steps.push_back([=](const Target& at) {
    return mep_alltoallv(from.const_data_ptr(), place.data_ptr(), sent.data(), nullptr,
                         received.data(), nullptr, type, at.comm, at.stream);
  });
  append_finish([place, outputs] { copy_out(place, outputs); }, call);
}

}  // namespace

ProcessGroupMep::WorkPtr ProcessGroupMep::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                        std::vector<int64_t>& output_splits,
                                                        std::vector<int64_t>& input_splits,
                                                        const c10d::AllToAllOptions& opts) try {
  check_tensor(output, "alltoall");
  check_tensor(input, "alltoall");
  TORCH_CHECK_VALUE(output.scalar_type() == input.scalar_type(),
                    "mep: alltoall: input and output have different types");
  Call call = call_of(OpType::ALLTOALL_BASE, "alltoall", "all_to_all", opts);
  call.inputs = {input};
  call.outputs = {output};
  const std::vector<uint64_t> sent = counts_of(input, input_splits, size_, "input");
  const std::vector<uint64_t> received = counts_of(output, output_splits, size_, "output");
  const at::Tensor place = place_to_update(output, &call);
  const at::Tensor from = apart_from(input, span_of(place), nullptr, &call);
  call.buffers.push_back(place);
  const Elements elements = elements_of(from);
  // Where MEP has no name for the type: its bytes.
  const size_t scale = from.element_size() / mep_dtype_size(elements.dtype);
  if (output_splits.empty() && input_splits.empty()) {
    call.steps.push_back([from = from.data_ptr(), to = place.data_ptr(), count = sent[0] * scale,
                          dtype = elements.dtype](const Target& at) {
      return at.request == nullptr
                 ? mep_alltoall(from, to, count, dtype, at.comm, at.stream)
                 : mep_ialltoall(from, to, count, dtype, at.comm, nullptr, at.request);
    });
    return run(std::move(call));
  }
  std::vector<uint64_t> send_counts = sent;
  std::vector<uint64_t> receive_counts = received;
  for (uint64_t& count : send_counts) count *= scale;
  for (uint64_t& count : receive_counts) count *= scale;
  call.steps.push_back([from = from.data_ptr(), to = place.data_ptr(), send_counts, receive_counts,
                        dtype = elements.dtype](const Target& at) {
    return at.request == nullptr
               ? mep_alltoallv(from, to, send_counts.data(), nullptr, receive_counts.data(),
                               nullptr, dtype, at.comm, at.stream)
               : mep_ialltoallv(from, to, send_counts.data(), nullptr, receive_counts.data(),
                                nullptr, dtype, at.comm, nullptr, at.request);
  });
  return run(std::move(call));
} catch (const c10::ValueError&) {
  refuse({input});
  throw;
}

ProcessGroupMep::WorkPtr ProcessGroupMep::alltoall(Tensors& outputs, Tensors& inputs,
                                                   const c10d::AllToAllOptions& opts) try {
  check_list(outputs, "alltoall", "output");
  check_list(inputs, "alltoall", "input");
  Call call = call_of(OpType::ALLTOALL, "alltoall", "all_to_all", opts);
  call.inputs = inputs;
  call.outputs = outputs;
  if (!inputs[0].is_cpu()) {
    add_packed_alltoall(inputs, outputs, &call);
    return run(std::move(call));
  }
  const mep_dtype_t type = type_of(inputs, outputs);
  Blocks sent = blocks_of(inputs, type, {});
  const Blocks received = blocks_of(outputs, type, sent.span);
  // New memory may lie among the inputs.
  if (received.packed.defined()) sent = blocks_of(inputs, type, received.span);
  call.buffers = inputs;
  call.buffers.insert(call.buffers.end(), outputs.begin(), outputs.end());
  call.steps.push_back([sent, received, type](const Target& at) {
    const uint64_t* send_counts = sent.counts.data();
    const uint64_t* receive_counts = received.counts.data();
    return at.request == nullptr
               ? mep_alltoallv(sent.base, received.base, send_counts, sent.displs.data(),
                               receive_counts, received.displs.data(), type, at.comm, at.stream)
               : mep_ialltoallv(sent.base, received.base, send_counts, sent.displs.data(),
                                receive_counts, received.displs.data(), type, at.comm, nullptr,
                                at.request);
  });
  if (received.packed.defined()) {
    append_finish([packed = received.packed, outputs] { copy_out(packed, outputs); }, &call);
  }
  return run(std::move(call));
} catch (const c10::ValueError&) {
  refuse(inputs);
  throw;
}

}  // namespace mep_torch
