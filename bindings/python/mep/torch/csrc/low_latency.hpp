// Low-latency dispatches and combines of mep.deep_ep on an EP object, whose buffers are used in turn.
//
// An operation runs on the current stream of a GPU, or on the Buffer's own one behind it.
#pragma once

#include <mep.h>

#include <optional>
#include <vector>

#include "buffer_calls.hpp"

namespace mep_torch {

// A call of the library, which keeps the memory that it uses.
using LibraryCall = std::function<mep_result_t(mep_ep_handle_t handle, mep_stream_t stream)>;

class LowLatencyLanes : public BufferCalls, public std::enable_shared_from_this<LowLatencyLanes> {
 public:
  // A dispatch, for its combine.
  struct Use {
    std::shared_ptr<LowLatencyLanes> lanes;
    size_t lane;
    uint64_t number;      // of the dispatches in the lane
    int64_t tokens;       // of this rank
    at::Tensor topk_idx;  // a copy, on hosts
  };

  // ep: a mep.Ep. handles: its handles, one of each buffer. streams: null on hosts. has_power_scales: scales are
  // exponents of two. tells_failures: calls raise what an operation before has met on the GPU.
  LowLatencyLanes(py::object ep, std::vector<py::object> handles,
                  std::shared_ptr<BufferStreams> streams, bool has_power_scales,
                  bool tells_failures);

  const py::object& ep() const { return ep_; }
  // owner: kept by tensors over the library's memory; owner.failed() says what follows from an error. packed_scales: four
  // exponents in a word. is_hooked: the hook receives. is_async: the current stream of a GPU does not wait. Returns
  // (rows, scales or None, counts, src_info, layout_range, use, hook or None).
  py::tuple dispatch(const py::object& owner, const at::Tensor& x, const at::Tensor& topk_idx,
                     const std::optional<at::Tensor>& statistics,
                     const std::optional<at::Tensor>& waits, bool packed_scales, bool is_hooked,
                     bool is_async);
  // Without x the rows are in combine_buffer(). A dispatch that was combined is done again before. Returns (sums, hook or
  // None).
  py::tuple combine(const py::object& owner, const Use& use, const std::optional<at::Tensor>& x,
                    const at::Tensor& topk_idx, const std::optional<at::Tensor>& weights,
                    const std::optional<at::Tensor>& out, const std::optional<at::Tensor>& waits,
                    bool is_hooked, bool is_async);
  // Memory for the experts' rows of the dispatch.
  at::Tensor combine_buffer(const py::object& owner, const Use& use);

 private:
  struct Lane {
    py::object handle;  // a mep.ep.Handle
    mep_ep_view_t view;
    uint64_t number = 0;  // of its last dispatch
    bool is_combined = false;
    at::Tensor again;  // combine_buffer() of one that was combined
  };
  struct Dispatch;

  int64_t rows() const { return ranks_ * max_tokens_; }

  void check_dense(const char* name, const at::Tensor& tensor, at::ScalarType type,
                   int64_t items) const;
  void check_rows(const char* name, const at::Tensor& tensor) const;
  void check_counters(const char* name, const std::optional<at::Tensor>& counters,
                      std::initializer_list<at::ScalarType> types) const;
  void check_waits(const char* name, const std::optional<at::Tensor>& waits) const;
  void check_use(const Use& use) const;

  std::shared_ptr<Dispatch> prepare(const py::object& owner, const at::Tensor& x,
                                    const at::Tensor& topk_idx,
                                    const std::optional<at::Tensor>& statistics,
                                    const std::optional<at::Tensor>& waits, bool packed_scales);
  void prepare_scales(const py::object& owner, bool packed, Dispatch* dispatch) const;
  void dispatch_again(const py::object& owner, const Use& use, const at::Tensor& topk_idx,
                      bool is_async);
  Failure run(const py::object& owner, size_t lane, const LibraryCall& call, bool on_own);
  CallEnd call_once(size_t lane, const LibraryCall& call, bool on_own) const;

  const py::object ep_;
  const py::object
      memory_;  // a mep._buffers.Memory: on hosts it outlives the object as long as a tensor over it
  const bool has_power_scales_;
  const int64_t experts_, max_tokens_, hidden_, top_k_;
  std::vector<Lane> lanes_;
  size_t next_ = 0;
};

// Adds the classes to the binding.
void add_low_latency(py::module_& module);

}  // namespace mep_torch
