// Shared by the operations of a process group.
#pragma once

#include "process_group.hpp"

namespace mep_torch {

// Whether the caller goes on before the operation has ended. Not all versions of PyTorch say so of all operations.
template <class Opts>
bool is_async(const Opts& opts) {
  if constexpr (requires { opts.asyncOp; }) {
    return opts.asyncOp;
  } else {
    return true;
  }
}

template <class Opts>
Call ProcessGroupMep::call_of(c10d::OpType type, const char* name, const char* title,
                              const Opts& opts) const {
  Call call;
  call.type = type;
  call.name = name;
  call.title = title;
  call.is_async = is_async(opts);
  call.timeout = timeout_or_default(opts.timeout);
  return call;
}

// Runs after success, behind what runs then already.
inline void append_finish(std::function<void()> next, Call* call) {
  call->finish = [first = std::move(call->finish), next = std::move(next)] {
    if (first) first();
    next();
  };
}

// The tensor itself if it is contiguous, else new memory that is copied to it when the call has succeeded. The call
// writes all of it then.
inline at::Tensor place_to_write(const at::Tensor& tensor, Call* call) {
  if (tensor.is_contiguous()) return tensor;
  at::Tensor place = at::empty(tensor.sizes(), tensor.options(), at::MemoryFormat::Contiguous);
  call->buffers.push_back(place);
  append_finish([tensor, place] { tensor.copy_(place); }, call);
  return place;
}

// The same with the values of the tensor in it.
inline at::Tensor place_to_update(const at::Tensor& tensor, Call* call) {
  at::Tensor place = place_to_write(tensor, call);
  if (!place.is_same(tensor)) place.copy_(tensor);
  return place;
}

// Whether a list of tensors, of the same sizes on all ranks, travels as one packed buffer: small ones, and on GPUs all of
// one size.
bool is_packed(const std::vector<at::Tensor>& tensors);

// The input, or a copy of it where it shares memory with an output otherwise than MEP allows.
at::Tensor apart_from(const at::Tensor& input, const Span& output, const void* in_place,
                      Call* call);

}  // namespace mep_torch
