// Dispatches and combines of mep.deep_ep's normal mode, and the memory that they need.
//
// Memory for more tokens, or for other rows, is made together with the other ranks.
#pragma once

#include <mep.h>

#include <compare>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "buffer_calls.hpp"

namespace mep_torch {

// The ranks of a dispatch have it in common.
struct RowShape {
  int64_t hidden, top_k, experts;
  int64_t sides;  // words of 4 bytes beside a row of fp8: its scales, taken as they are; 0: bf16
  int64_t alignment;  // of the experts' groups in the expanded layout; 0: plain rows

  auto operator<=>(const RowShape&) const = default;
};

class HighThroughput : public BufferCalls, public std::enable_shared_from_this<HighThroughput> {
 public:
  // Rows that a dispatch sends. scales: of fp8, float32 or int32 [tokens, any number].
  struct Rows {
    at::Tensor values;
    std::optional<at::Tensor> scales;

    bool is_fp8() const { return scales.has_value(); }
    Rows contiguous() const;
    int64_t tokens() const { return values.size(0); }
    int64_t hidden() const { return values.size(1); }
    int64_t sides() const { return is_fp8() ? scales->size(1) : 0; }
  };
  // How an operation is ordered on a GPU. behind_current: it waits for what the current stream has. is_async: the
  // current stream does not wait for it. An operation with both ties runs on the current stream, others on the own one.
  struct Order {
    bool behind_current, is_async;
  };
  struct Lane;
  struct Spot;
  // The routing of a dispatch, for all that is done with its handle.
  struct Use {
    std::shared_ptr<HighThroughput> owner;
    at::Tensor topk_idx;  // a copy
    int64_t experts, most, alignment;
    bool has_topk;
    bool is_exact = true;  // the tensors have as many rows as came
    int64_t total = 0;     // tokens that arrive here
    int64_t tokens = 0;    // of the tensors: total, or what num_worst_tokens asks for
    int64_t rows = 0;      // likewise, expanded with their padding; else tokens
    std::vector<std::shared_ptr<Spot>>
        spots;  // one of each kind of rows, in the order in which they came
  };
  using SharedUse = std::shared_ptr<Use>;

  // comm: a mep.Comm. streams: null on hosts.
  HighThroughput(py::object comm, std::shared_ptr<BufferStreams> streams, bool tells_failures);

  // An owner, below, has make(most, hidden, top_k, experts, sides, alignment, number), which makes an EP object; failed() as
  // of BufferCalls::run; and add_up(counts), the sums over the ranks for the experts of this one.

  // (tokens per rank, tokens per expert, is_token_in_rank) of this rank's tokens.
  py::tuple layout(const at::Tensor& topk_idx, int64_t experts, const Order& order);
  // room: tokens of a rank at most, the same on all ranks; 0: unknown. expansion: the alignment of the expanded layout, or
  // 0. Checks what it is given, and agrees on the room.
  SharedUse route(const py::object& owner, const Rows& x, const std::optional<at::Tensor>& in_rank,
                  const std::optional<at::Tensor>& per_expert,
                  const std::optional<at::Tensor>& topk_idx,
                  const std::optional<at::Tensor>& weights, int64_t alignment, int64_t worst,
                  int64_t room, int64_t expansion);
  // Returns (values, scales or None, local experts, weights, counts, prefixes, sources, slots or None, use). expands: a row
  // for each local expert, in groups of `alignment`; slots [tokens, K] are the rows of each, -1 for none.
  py::tuple dispatch(const py::object& owner, const Rows& x,
                     const std::optional<at::Tensor>& in_rank,
                     const std::optional<at::Tensor>& per_expert,
                     const std::optional<at::Tensor>& topk_idx,
                     const std::optional<at::Tensor>& weights, int64_t alignment, int64_t worst,
                     int64_t room, bool expands, const Order& order);
  // Returns (values, scales or None).
  py::tuple replay(const py::object& owner, const SharedUse& use, const Rows& x,
                   const Order& order);
  // Returns (sums, sums of the weights or None).
  py::tuple combine(const py::object& owner, const SharedUse& use, const at::Tensor& x,
                    const std::optional<at::Tensor>& weights, const std::vector<at::Tensor>& biases,
                    const Order& order);

 private:
  struct Received;
  class OnStream;

  void expect(const char* name, const at::Tensor& tensor, at::ScalarType type,
              at::IntArrayRef sizes) const;
  void check_rows(const Rows& x) const;
  void check_routing(int64_t tokens, const at::Tensor& in_rank, const at::Tensor& per_expert) const;
  at::Tensor experts_of(const at::Tensor& in_rank) const;
  py::tuple count_layout(const at::Tensor& topk_idx, int64_t experts) const;

  int64_t agree(const RowShape& shape, int64_t tokens);
  int64_t most_by(int64_t worst, int64_t tokens) const;
  // For a new dispatch, the same one on all ranks: they dispatch and combine in the same order.
  std::shared_ptr<Lane> lane_for(const py::object& owner, int64_t most, const RowShape& shape);
  std::shared_ptr<Lane> make_lane(const py::object& ep, int64_t most, const RowShape& shape) const;
  at::Tensor lane_memory(const void* address, at::IntArrayRef sizes, at::ScalarType type) const;

  CallEnd call_once(const StreamCall& call) const;
  // Another dispatch of the routing, from the lane that it had for such rows, or else from the next one.
  std::shared_ptr<Spot> send(const py::object& owner, Use* use, const Rows& x,
                             const std::optional<at::Tensor>& weights,
                             const std::shared_ptr<Received>& received);
  void send_routing(const py::object& owner, const Use& use, Spot* spot);
  void hold(Spot* spot, const Failure& failure);
  void await(const Lane& lane, Received* received) const;
  // The rows of an early dispatch.
  void receive(const py::object& owner, const Spot& spot,
               const std::shared_ptr<Received>& received) const;
  void fill(const Received& received, mep_dispatch_options_t* receive) const;
  at::Tensor make(at::IntArrayRef sizes, at::ScalarType type, bool zeros) const;
  // Memory for rows. zeros: those that do not come are.
  void make_rows(int64_t rows, bool zeros, const Rows& x, Received* received) const;
  void make_most(Use* use, int64_t worst, const Rows& x, bool is_weighted,
                 Received* received) const;
  // Memory for what lies beside the rows of `use`.
  void make_beside(const Use& use, bool is_exact, bool is_weighted, Received* received) const;
  at::Tensor copy(const at::Tensor& memory, const Use& use, bool knows, const Lane& lane) const;
  at::Tensor prefixes_of(const std::vector<int64_t>& ranges) const;
  at::Tensor prefixes_of(const Lane& lane) const;
  std::shared_ptr<Spot> ready(const py::object& owner, Use* use, int64_t hidden);

  const int64_t rank_;
  std::map<std::pair<int64_t, RowShape>, std::vector<std::shared_ptr<Lane>>> lanes_;
  uint64_t dispatches_ = 0;  // begun
  std::map<RowShape, int64_t>
      most_;  // tokens of a rank that the last EP object of a shape has room for
};

// Adds the class to the binding.
void add_high_throughput(py::module_& module);

}  // namespace mep_torch
