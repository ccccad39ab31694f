// Parts of HighThroughput that its files share.
#pragma once

#include <numeric>

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include "high_throughput.hpp"

namespace mep_torch {

constexpr size_t kMostLanes = 2;  // of one shape of rows: dispatches that wait for their combine
constexpr int64_t kCountMask = 0xffffffff;  // of an entry of layout_range

inline at::ScalarType type_of(bool is_fp8) {
  return is_fp8 ? at::kFloat8_e4m3fn : at::kBFloat16;
}

inline std::string told(const at::Tensor& tensor) {
  return name_of(tensor.scalar_type()) + " " + shape_of(tensor.sizes());
}

// An EP object of one buffer, with the handles of the library that nobody uses.
struct HighThroughput::Lane {
  py::object ep;
  int64_t hidden;
  mep_ep_view_t view;
  std::vector<py::object> free;
  uint64_t began = 0;  // number of its last dispatch
  uint64_t holds = 0;  // the dispatch that can be combined; 0: none
  // Memory of the library. Expanded: of tokens, undefined otherwise; slots: the rows of each token and k.
  at::Tensor topk_idx, sources, slots;
  at::Tensor ranges;  // on a GPU
  // Pinned memory, in which dispatches on a GPU tell the host.
  at::Tensor host_ranges, host_counts;
};

// A routing in a lane: the rows that the lane has by it, or had.
struct HighThroughput::Spot {
  Spot(std::shared_ptr<Lane> lane_, int64_t sides_) : lane(std::move(lane_)), sides(sides_) {
    if (lane->free.empty()) {
      handle = lane->ep.attr("handle")();
    } else {
      handle = std::move(lane->free.back());
      lane->free.pop_back();
    }
  }
  ~Spot() { lane->free.push_back(std::move(handle)); }
  Spot(const Spot&) = delete;
  Spot& operator=(const Spot&) = delete;

  int64_t hidden() const { return lane->hidden; }
  bool is_held() const { return number != 0 && number == lane->holds; }

  std::shared_ptr<Lane> lane;
  int64_t sides;        // see RowShape
  py::object handle;    // a mep.ep.Handle
  uint64_t number = 0;  // of its last dispatch in the lane
};

// A dispatch brings rows into memory of the caller, or leaves them in the library's, and tells the host its counts.
struct HighThroughput::Received {
  bool awaited = true;  // on a GPU: counts are told at all
  bool early = false;   // counts alone; receive() brings the rows
  // Memory for rows and for what comes with them, or undefined.
  at::Tensor values, scales, weights, sources, topk_idx;
  std::vector<int64_t> ranges;  // of tokens, by source
  std::vector<int32_t> counts;
  int64_t total = 0;  // tokens that arrive

  void add_up() {
    total = 0;
    for (const int64_t range : ranges) total += range & kCountMask;
  }
  int64_t expanded() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }
};

// The stream of an operation on a GPU, which is the current one as long as this lives. Nothing on hosts.
class HighThroughput::OnStream {
 public:
  OnStream(const std::shared_ptr<BufferStreams>& streams, const Order& order)
      : streams_(streams),
        is_async_(order.is_async),
        is_own_(order.is_async || !order.behind_current) {
    if (streams_ == nullptr) return;
    current_ = streams_->current();
    device_.emplace(streams_->device());
    if (!is_own_ || order.behind_current) {
      streams_->begin(is_own_);
    } else {
      streams_->follow(streams_->own());
    }
    if (is_own_) stream_.emplace(streams_->own());
  }

  // made, given: tensors of the operation, whose memory is not used again before both streams have done with it.
  void end(std::initializer_list<at::Tensor> made, const std::vector<at::Tensor>& given) {
    if (streams_ == nullptr || !is_own_) return;
    stream_.reset();
    for (const at::Tensor& tensor : made) {
      if (tensor.defined()) tensor.record_stream(*current_);
    }
    if (is_async_) {
      streams_->use_on_own(given);
    } else {
      wait_for(streams_->own(), *current_);
    }
  }

 private:
  const std::shared_ptr<BufferStreams> streams_;
  const bool is_async_, is_own_;
  std::optional<c10::Stream> current_;
  std::optional<c10::DeviceGuard> device_;
  std::optional<c10::StreamGuard> stream_;
};

}  // namespace mep_torch
