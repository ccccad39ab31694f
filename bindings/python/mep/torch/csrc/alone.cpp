// Operations of a rank that has not joined its group yet: all others count as absent.
#include <c10/util/Exception.h>

#include "work.hpp"

namespace mep_torch {
namespace {

void copy_values(const at::Tensor& from, const at::Tensor& to) {
  to.copy_(from.reshape(to.sizes()));
}

// Part `rank` of a tensor that has one for each rank.
at::Tensor part(const at::Tensor& whole, int rank, int64_t elements) {
  return whole.view(-1).narrow(0, rank * elements, elements);
}

void do_own_part(const Call& call, int rank) {
  using c10d::OpType;
  const auto own = static_cast<size_t>(rank);
  switch (call.type) {
    case OpType::BARRIER:
    case OpType::BROADCAST:
    case OpType::REDUCE:
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED:
      return;
    case OpType::ALLGATHER:
    case OpType::GATHER:
      if (!call.outputs.empty()) copy_values(call.inputs[0], call.outputs[own]);
      return;
    case OpType::_ALLGATHER_BASE:
      for (size_t index = 0; index < call.inputs.size(); ++index) {
        const at::Tensor& input = call.inputs[index];
        copy_values(input, part(call.outputs[index], rank, input.numel()));
      }
      return;
    case OpType::REDUCE_SCATTER:
      return copy_values(call.inputs[own], call.outputs[0]);
    case OpType::_REDUCE_SCATTER_BASE:
      for (size_t index = 0; index < call.inputs.size(); ++index) {
        const at::Tensor& output = call.outputs[index];
        copy_values(part(call.inputs[index].contiguous(), rank, output.numel()), output);
      }
      return;
    case OpType::ALLTOALL:
      return copy_values(call.inputs[own], call.outputs[own]);
    default:
      C10_THROW_ERROR(DistBackendError,
                      std::string("mep: ") + call.name +
                          ": this rank has not joined the group; call join_group() first");
  }
}

}  // namespace

void MepWork::run_alone() {
  call_.finish = nullptr;
  try {
    do_own_part(call_, rank_);
  } catch (...) {
    failed_ = std::current_exception();
  }
}

}  // namespace mep_torch
