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

// The tensor itself if it is contiguous, else new memory that is copied to it when the call has succeeded.
inline at::Tensor place_to_write(const at::Tensor& tensor, Call* call) {
  if (tensor.is_contiguous()) return tensor;
  at::Tensor place = at::empty(tensor.sizes(), tensor.options(), at::MemoryFormat::Contiguous);
  call->buffers.push_back(place);
  call->finish = [previous = std::move(call->finish), tensor, place] {
    if (previous) previous();
    tensor.copy_(place);
  };
  return place;
}

// The same with the values of the tensor in it.
inline at::Tensor place_to_update(const at::Tensor& tensor, Call* call) {
  at::Tensor place = place_to_write(tensor, call);
  if (!place.is_same(tensor)) place.copy_(tensor);
  return place;
}

}  // namespace mep_torch
