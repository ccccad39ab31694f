#include "tensors.hpp"

#include <algorithm>

#include <c10/util/Exception.h>

namespace mep_torch {
namespace {

// 0: MEP has no name for it.
mep_dtype_t dtype_of(at::ScalarType type) {
  switch (type) {
#define MEP_TORCH_TYPE(torch, mep) \
  case at::torch:                  \
    return mep;
#include "types.inc"
#undef MEP_TORCH_TYPE
    default:  // PyTorch adds types with every version
      return 0;
  }
}

const char* name_of(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return "SUM";
    case c10d::ReduceOp::AVG:
      return "AVG";
    case c10d::ReduceOp::PRODUCT:
      return "PRODUCT";
    case c10d::ReduceOp::MIN:
      return "MIN";
    case c10d::ReduceOp::MAX:
      return "MAX";
    case c10d::ReduceOp::BAND:
      return "BAND";
    case c10d::ReduceOp::BOR:
      return "BOR";
    case c10d::ReduceOp::BXOR:
      return "BXOR";
    case c10d::ReduceOp::PREMUL_SUM:
      return "PREMUL_SUM";
    case c10d::ReduceOp::UNUSED:
      break;
  }
  return "UNUSED";
}

// A sum of bools is "any", a product "all".
mep_op_t op_on_bool(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::MAX:
    case c10d::ReduceOp::BOR:
      return MEP_OR;
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::MIN:
    case c10d::ReduceOp::BAND:
      return MEP_AND;
    case c10d::ReduceOp::BXOR:
      return MEP_XOR;
    case c10d::ReduceOp::AVG:
    case c10d::ReduceOp::PREMUL_SUM:
    case c10d::ReduceOp::UNUSED:
      break;
  }
  return 0;
}

mep_op_t op_on_number(c10d::ReduceOp::RedOpType op, bool is_float) {
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM:
      return MEP_SUM;
    case c10d::ReduceOp::AVG:
      return is_float ? MEP_AVG : MEP_SUM;
    case c10d::ReduceOp::PRODUCT:
      return MEP_PROD;
    case c10d::ReduceOp::MIN:
      return MEP_MIN;
    case c10d::ReduceOp::MAX:
      return MEP_MAX;
    case c10d::ReduceOp::BAND:
      return is_float ? 0 : MEP_AND;
    case c10d::ReduceOp::BOR:
      return is_float ? 0 : MEP_OR;
    case c10d::ReduceOp::BXOR:
      return is_float ? 0 : MEP_XOR;
    case c10d::ReduceOp::UNUSED:
      break;
  }
  return 0;
}

// False: displacements from the first cannot say where they lie, or bytes of `other` lie among them.
bool lie_apart(const std::vector<at::Tensor>& tensors, size_t item, const Span& other, Span* all) {
  *all = {UINTPTR_MAX, 0};
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    if (!tensor.is_contiguous()) return false;
    const Span span = span_of(tensor);
    all->first = std::min(all->first, span.first);
    all->end = std::max(all->end, span.end);
  }
  if (all->end == 0) *all = {};
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() != 0 && (span_of(tensor).first - all->first) % item != 0) return false;
  }
  return !all->crosses(other);
}

Blocks blocks_where_they_lie(const std::vector<at::Tensor>& tensors, mep_dtype_t type,
                             const Span& other, bool* apart) {
  Blocks blocks;
  const size_t item = mep_dtype_size(type);
  *apart = lie_apart(tensors, item, other, &blocks.span);
  uint64_t behind = 0;
  for (const at::Tensor& tensor : tensors) {
    const uint64_t count = tensor.nbytes() / item;
    blocks.counts.push_back(count);
    const bool is_placed = *apart && count != 0;
    blocks.displs.push_back(is_placed ? (span_of(tensor).first - blocks.span.first) / item
                            : *apart  ? 0
                                      : behind);
    behind += count;
  }
  blocks.base = reinterpret_cast<void*>(blocks.span.first);
  return blocks;
}

void use_copy(at::Tensor packed, Blocks* blocks) {
  blocks->packed = std::move(packed);
  blocks->base = blocks->packed.data_ptr();
  blocks->span = span_of(blocks->packed);
}

// The part of a packed buffer that is this tensor, and where the next begins.
at::Tensor part_of(const at::Tensor& packed, const at::Tensor& tensor, int64_t* at) {
  const auto length = static_cast<int64_t>(tensor.nbytes());
  const at::Tensor part = packed.narrow(0, *at, length);
  *at += length;
  return part.view(tensor.scalar_type()).view(tensor.sizes());
}

}  // namespace

Elements elements_of(const at::Tensor& tensor) {
  if (const mep_dtype_t dtype = dtype_of(tensor.scalar_type()); dtype != 0) {
    return {dtype, static_cast<size_t>(tensor.numel())};
  }
  return {MEP_UINT8, tensor.nbytes()};
}

Elements elements_of(const at::Tensor& tensor, const std::vector<at::Tensor>& list) {
  const bool are_alike = std::all_of(list.begin(), list.end(), [&](const at::Tensor& each) {
    return each.scalar_type() == tensor.scalar_type();
  });
  return are_alike ? elements_of(tensor) : Elements{MEP_UINT8, tensor.nbytes()};
}

Reduction reduction_of(const c10d::ReduceOp& op, at::ScalarType type) {
  Reduction reduction;
  const bool is_float = at::isFloatingType(type);
  reduction.dtype = dtype_of(type);
  reduction.op = type == at::kBool ? op_on_bool(op.op_) : op_on_number(op.op_, is_float);
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM && !is_float) reduction.op = 0;
  reduction.divides = op.op_ == c10d::ReduceOp::AVG && !is_float;
  TORCH_CHECK_NOT_IMPLEMENTED(reduction.op != 0 && reduction.dtype != 0, "mep: no reduction ",
                              name_of(op.op_), " on tensors of ", at::toString(type));
  return reduction;
}

at::Tensor multiplied(const c10d::ReduceOp& op, const at::Tensor& tensor) {
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement != nullptr, "mep: PREMUL_SUM without its factor");
  if (!supplement->tensor_factor.defined()) return tensor.mul(supplement->double_factor);
  return tensor.mul(supplement->tensor_factor.to(tensor.device(), tensor.scalar_type()));
}

void check_tensor(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device().is_cpu() || tensor.device().is_cuda(), "mep: ", name,
                              ": a tensor on ", tensor.device().str(),
                              "; the backend serves tensors of the CPU and of CUDA GPUs");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "mep: ", name,
                              ": a sparse tensor; give a dense one");
}

void check_tensors(const std::vector<at::Tensor>& tensors, const char* name) {
  for (const at::Tensor& tensor : tensors) check_tensor(tensor, name);
}

void check_host(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device().is_cpu(), "mep: ", name, ": a tensor on ",
                              tensor.device().str(),
                              "; tensors of a GPU have collectives only, copy it to the CPU");
}

at::Tensor& only(std::vector<at::Tensor>& tensors, const char* name) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "mep: ", name, ": takes one tensor, got ", tensors.size());
  check_tensor(tensors[0], name);
  return tensors[0];
}

Span span_of(const at::Tensor& tensor) {
  const auto first = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  return {first, first + tensor.nbytes()};
}

at::Tensor packed_from(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  const at::Device device = tensors.empty() ? at::Device(at::kCPU) : tensors[0].device();
  at::Tensor packed = at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
  int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() != 0) part_of(packed, tensor, &at).copy_(tensor);
  }
  return packed;
}

void copy_out(const at::Tensor& packed, const std::vector<at::Tensor>& tensors) {
  int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() != 0) tensor.copy_(part_of(packed, tensor, &at));
  }
}

Blocks blocks_of(const std::vector<at::Tensor>& tensors, mep_dtype_t type, const Span& other) {
  bool apart = false;
  Blocks blocks = blocks_where_they_lie(tensors, type, other, &apart);
  if (!apart) use_copy(packed_from(tensors), &blocks);
  return blocks;
}

}  // namespace mep_torch
