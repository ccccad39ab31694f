// The routing of a dispatch: layouts, checks, and the room that the ranks agree on.
#include <algorithm>
#include <bit>

#include "high_throughput_parts.hpp"

namespace mep_torch {
namespace {

constexpr int64_t kFewestTokens = 64;  // that an EP object is made for
constexpr int64_t kMostTopK = 64;

// 16 bits that tell shapes apart.
uint64_t fingerprint(const RowShape& shape) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const int64_t value :
       {shape.hidden, shape.top_k, shape.experts, shape.sides, shape.alignment}) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3;
  }
  return (hash ^ hash >> 32 ^ hash >> 48) & 0xffff;
}

// A power of two.
int64_t room_for(int64_t tokens) {
  return static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::max(tokens, kFewestTokens))));
}

void check_dealt(const at::Tensor& topk_idx, int64_t experts, int64_t ranks) {
  if (topk_idx.dim() != 2 || topk_idx.scalar_type() != at::kLong) {
    throw py::value_error("topk_idx is " + told(topk_idx) + "; it must be int64 [tokens, top-k]");
  }
  if (experts < 1 || experts % ranks != 0) {
    throw py::value_error(std::to_string(experts) + " experts cannot be dealt to " +
                          std::to_string(ranks) + " ranks");
  }
}

}  // namespace

// --- Checks ---------------------------------------------------------------------------------------------------

void HighThroughput::expect(const char* name, const at::Tensor& tensor, at::ScalarType type,
                            at::IntArrayRef sizes) const {
  if (tensor.scalar_type() == type && tensor.sizes() == sizes) return;
  throw py::value_error(std::string(name) + ": " + told(tensor) + "; it must be " + name_of(type) +
                        " " + shape_of(sizes));
}

void HighThroughput::check_rows(const Rows& x) const {
  check_place("x", x.values);
  if (x.scales.has_value()) check_place("scales", *x.scales);
  if (x.values.dim() != 2) {
    throw py::value_error("x has shape " + shape_of(x.values.sizes()) +
                          "; it must be [tokens, hidden]");
  }
  expect("x", x.values, type_of(x.is_fp8()), x.values.sizes());
  if (!x.scales.has_value()) return;
  const at::Tensor& scales = *x.scales;
  const bool is_word = scales.scalar_type() == at::kFloat || scales.scalar_type() == at::kInt;
  if (is_word && scales.dim() == 2 && scales.size(0) == x.tokens() && scales.size(1) > 0) return;
  throw py::value_error("the scales of x: " + told(scales) + "; they must be float32 or int32 [" +
                        std::to_string(x.tokens()) + ", any number]");
}

void HighThroughput::check_routing(int64_t tokens, const at::Tensor& in_rank,
                                   const at::Tensor& per_expert) const {
  if (in_rank.scalar_type() != at::kBool || in_rank.sizes() != at::IntArrayRef({tokens, ranks_})) {
    throw py::value_error("is_token_in_rank is " + told(in_rank) + "; it must be bool [" +
                          std::to_string(tokens) + ", " + std::to_string(ranks_) + "]");
  }
  if (per_expert.dim() != 1 || per_expert.scalar_type() != at::kInt ||
      per_expert.size(0) % ranks_ != 0) {
    throw py::value_error("num_tokens_per_expert is " + told(per_expert) +
                          "; it must be int32 [experts], a multiple of " + std::to_string(ranks_) +
                          " of them");
  }
}

// topk_idx of a problem in which each rank has one expert, itself.
at::Tensor HighThroughput::experts_of(const at::Tensor& in_rank) const {
  const auto options = at::TensorOptions(at::kLong).device(device());
  if (ranks_ <= kMostTopK) {
    return at::where(in_rank, at::arange(ranks_, options), at::full({}, -1, options));
  }
  if (in_rank.size(0) != 0 && in_rank.sum(1).max().item<int64_t>() > kMostTopK) {
    throw py::value_error("without topk_idx a token goes to " + std::to_string(kMostTopK) +
                          " ranks at most");
  }
  const auto [found, ranks] = at::sort(in_rank.to(at::kChar), true, 1, true);
  return at::where(found.narrow(1, 0, kMostTopK).to(at::kBool), ranks.narrow(1, 0, kMostTopK),
                   at::full({}, -1, options));
}

// --- The layout ------------------------------------------------------------------------------------------------

py::tuple HighThroughput::count_layout(const at::Tensor& topk_idx, int64_t experts) const {
  const at::Tensor index = topk_idx.contiguous();
  const int64_t tokens = index.size(0);
  const auto options = at::TensorOptions(device());
  const at::Tensor per_rank = at::empty({ranks_}, options.dtype(at::kInt));
  const at::Tensor per_expert = at::empty({experts}, options.dtype(at::kInt));
  const at::Tensor in_rank = at::empty({tokens, ranks_}, options.dtype(at::kBool));
  const auto comm = address_of<mep_comm_t>(comm_);
  const auto call = [&](mep_stream_t stream) {
    return mep_dispatch_layout(comm, index.data_ptr(), MEP_INT64, static_cast<uint32_t>(tokens),
                               static_cast<uint32_t>(index.size(1)), static_cast<uint32_t>(experts),
                               per_rank.data_ptr<int32_t>(), per_expert.data_ptr<int32_t>(),
                               static_cast<uint8_t*>(in_rank.data_ptr()), stream);
  };
  raise_if_failed(is_on_gpu() ? call_on(streams_->current(), call)
                              : call_here([&] { return call(nullptr); }));
  return py::make_tuple(per_rank, per_expert, in_rank);
}

py::tuple HighThroughput::layout(const at::Tensor& topk_idx, int64_t experts, const Order& order) {
  const at::NoGradGuard without_grad;
  check_place("topk_idx", topk_idx);
  check_dealt(topk_idx, experts, ranks_);
  OnStream running(streams_, order);
  py::tuple found = count_layout(topk_idx, experts);
  running.end(
      {found[0].cast<at::Tensor>(), found[1].cast<at::Tensor>(), found[2].cast<at::Tensor>()},
      {topk_idx});
  return found;
}

// --- The room -------------------------------------------------------------------------------------------------

// The most tokens that a rank's EP object has room for: a power of two, the same on all ranks. ValueError on all of
// them if their shapes differ.
int64_t HighThroughput::agree(const RowShape& shape, int64_t tokens) {
  const uint64_t print = fingerprint(shape);
  const uint64_t room = 0xffffffff ^ static_cast<uint64_t>(room_for(tokens));
  const uint64_t flag = (print ^ 0xffff) << 48 | print << 32 | room;
  const auto address = address_of<mep_comm_t>(comm_);
  const auto agreed = std::make_shared<uint64_t>();
  const auto call = [=] { return mep_comm_agree(address, flag, agreed.get()); };
  const CallEnd end = is_on_gpu() ? call_here(call) : call_blocking(call);
  raise_if_failed(end);
  if (((*agreed >> 32 & 0xffff) | *agreed >> 48) != 0xffff) {
    throw py::value_error(
        "the ranks' dispatches differ in their shape: that of this rank has rows of " +
        std::to_string(shape.hidden) +
        (shape.sides == 0
             ? " bfloat16"
             : " float8_e4m3 with " + std::to_string(shape.sides) + " words of scales") +
        ", top-k " + std::to_string(shape.top_k) + ", " + std::to_string(shape.experts) +
        " experts" +
        (shape.alignment == 0 ? "" : ", expanded in groups of " + std::to_string(shape.alignment)));
  }
  const uint64_t rooms = ~*agreed & kCountMask;
  int64_t& most = most_[shape];
  most = std::max(most, static_cast<int64_t>(std::bit_floor(rooms)));
  return most;
}

// Tokens of a rank that `worst` rows allow: all ranks give the same, and need not agree on it.
int64_t HighThroughput::most_by(int64_t worst, int64_t tokens) const {
  const auto most =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>((worst + ranks_ - 1) / ranks_)));
  if (tokens > most) {
    throw py::value_error("x has " + std::to_string(tokens) + " rows; num_worst_tokens " +
                          std::to_string(worst) + " is enough for " + std::to_string(most) +
                          " on each of " + std::to_string(ranks_) + " ranks");
  }
  return most;
}

// --- The routing ----------------------------------------------------------------------------------------------

HighThroughput::SharedUse HighThroughput::route(const py::object& owner, const Rows& x,
                                                const std::optional<at::Tensor>& in_rank,
                                                const std::optional<at::Tensor>& per_expert,
                                                const std::optional<at::Tensor>& topk_idx,
                                                const std::optional<at::Tensor>& weights,
                                                int64_t alignment, int64_t worst, int64_t room,
                                                int64_t expansion) {
  const at::NoGradGuard without_grad;
  check_rows(x);
  const int64_t tokens = x.tokens();
  if (alignment < 1 || worst < 0) {
    throw py::value_error("expert_alignment is " + std::to_string(alignment) +
                          " and num_worst_tokens " + std::to_string(worst) +
                          "; they must be 1 at least and 0 at least");
  }
  if (worst != 0 && !topk_idx.has_value()) {
    throw py::value_error("num_worst_tokens needs topk_idx");
  }
  if (!in_rank.has_value() || !per_expert.has_value()) {
    throw py::value_error(
        "a dispatch without a handle needs num_tokens_per_rank, is_token_in_rank and "
        "num_tokens_per_expert; get_dispatch_layout() gives them");
  }
  check_place("is_token_in_rank", *in_rank);
  check_place("num_tokens_per_expert", *per_expert);
  if (topk_idx.has_value()) check_place("topk_idx", *topk_idx);
  if (weights.has_value()) check_place("topk_weights", *weights);
  check_routing(tokens, *in_rank, *per_expert);
  auto use = std::make_shared<Use>();
  use->owner = shared_from_this();
  use->alignment = expansion;
  use->has_topk = topk_idx.has_value();
  if (use->has_topk) {
    use->experts = per_expert->size(0);
    check_dealt(*topk_idx, use->experts, ranks_);
    if (topk_idx->size(0) != tokens) {
      throw py::value_error("topk_idx has " + std::to_string(topk_idx->size(0)) + " rows, x has " +
                            std::to_string(tokens));
    }
    // An error of one rank alone would leave the others waiting. On GPUs values are not looked at.
    if (!is_on_gpu() &&
        !count_layout(*topk_idx, use->experts)[2].cast<at::Tensor>().equal(*in_rank)) {
      throw py::value_error(
          "is_token_in_rank is not what topk_idx says; get_dispatch_layout() gives it");
    }
    use->topk_idx = topk_idx->clone(at::MemoryFormat::Contiguous);
  } else {
    if (weights.has_value()) throw py::value_error("topk_weights need topk_idx");
    use->experts = ranks_;
    use->topk_idx = experts_of(*in_rank);
  }
  if (weights.has_value()) expect("topk_weights", *weights, at::kFloat, use->topk_idx.sizes());
  const RowShape shape{x.hidden(), use->topk_idx.size(1), use->experts, x.sides(), expansion};
  if (is_on_gpu() && worst != 0) {
    use->most = most_by(worst, tokens);
  } else if (is_on_gpu() && room != 0) {
    use->most = room_for(std::max(room, tokens));
  } else {
    use->most = agree(shape, tokens);
  }
  return use;
}

}  // namespace mep_torch
