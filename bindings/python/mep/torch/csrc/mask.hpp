// The mask of mep.deep_ep: the ranks of a communicator that have gone, in the order of its operations.
#pragma once

#include "buffer_calls.hpp"

namespace mep_torch {

class Mask : public BufferCalls {
 public:
  // comm: a mep.Comm. streams: null on hosts.
  Mask(py::object comm, std::shared_ptr<BufferStreams> streams)
      : BufferCalls(std::move(comm), std::move(streams), false) {}
  // out: int32 [ranks], 1 for a rank that has gone and was not forgotten, else 0. On the GPU of the communicator nothing waits;
  // a tensor elsewhere gets a copy.
  void query(const at::Tensor& out) const;
  // The losses that query() has shown show no more.
  void forget() const;

 private:
  void call(const std::function<mep_result_t(mep_comm_t comm, mep_stream_t stream)>& make) const;
};

void add_mask(py::module_& module);

}  // namespace mep_torch
