// How tensors lie in memory, and how MEP names their types.
#pragma once

#include <mep.h>

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace mep_torch {

// Elements that are moved and not computed with: types that MEP has no name for go as bytes.
struct Elements {
  mep_dtype_t dtype = MEP_UINT8;
  size_t count = 0;
};
Elements elements_of(const at::Tensor& tensor);
// The same with a list that travels as the tensor's type: bytes, if one of it has another.
Elements elements_of(const at::Tensor& tensor, const std::vector<at::Tensor>& list);

// How MEP reduces what c10d asks for.
struct Reduction {
  mep_op_t op = MEP_SUM;
  mep_dtype_t dtype = MEP_UINT8;
  bool divides = false;  // an average of integers: the sum, divided afterwards
};
// Throws a NotImplementedError that names the pair MEP has no reduction for.
Reduction reduction_of(const c10d::ReduceOp& op, at::ScalarType type);
// The factor of a PREMUL_SUM times the tensor, in new memory.
at::Tensor multiplied(const c10d::ReduceOp& op, const at::Tensor& tensor);

// Throws if it is not a tensor with strides, of the CPU or of a CUDA GPU.
void check_tensor(const at::Tensor& tensor, const char* name);
void check_tensors(const std::vector<at::Tensor>& tensors, const char* name);
// Throws if it is not of the CPU.
void check_host(const at::Tensor& tensor, const char* name);
// The only tensor of a list that c10d gives.
at::Tensor& only(std::vector<at::Tensor>& tensors, const char* name);

// Addresses, from the first byte to behind the last.
struct Span {
  uintptr_t first = 0;
  uintptr_t end = 0;
  bool crosses(const Span& other) const { return first < other.end && other.first < end; }
};
// The tensor is contiguous.
Span span_of(const at::Tensor& tensor);

// A list of tensors as one buffer with a block for each rank: where they lie, if displacements can say that and
// nothing of `other` lies among them, else a copy of them.
struct Blocks {
  std::vector<uint64_t> counts;
  std::vector<uint64_t> displs;
  void* base = nullptr;
  Span span;
  at::Tensor packed;  // defined: the copy
};
// `type`: of the elements that are counted. MEP_UINT8 counts bytes. Where the blocks are written, copy_out() brings a
// copy's content to the tensors.
Blocks blocks_of(const std::vector<at::Tensor>& tensors, mep_dtype_t type, const Span& other);
// One after the other in new memory, with their values: MEP leaves blocks of absent ranks as they were.
at::Tensor packed_from(const std::vector<at::Tensor>& tensors);
void copy_out(const at::Tensor& packed, const std::vector<at::Tensor>& tensors);

}  // namespace mep_torch
