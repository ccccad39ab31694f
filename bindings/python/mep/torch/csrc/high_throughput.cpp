#include "high_throughput.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include <c10/core/Event.h>

#include "high_throughput_parts.hpp"

namespace mep_torch {
namespace {

py::object or_none(const at::Tensor& tensor) {
  return tensor.defined() ? py::cast(tensor) : py::none();
}

at::Tensor or_undefined(const std::optional<at::Tensor>& tensor) {
  return tensor.value_or(at::Tensor());
}

// That `tokens` received ones become at most.
int64_t expanded_rows(int64_t tokens, int64_t top_k, int64_t experts, int64_t alignment) {
  const int64_t rows = tokens * std::min(top_k, experts) + experts * (alignment - 1);
  return (rows + alignment - 1) / alignment * alignment;
}

[[noreturn]] void raise_too_many(int64_t total, int64_t worst, int64_t ranks) {
  throw py::value_error(std::to_string(total) + " rows came, num_worst_tokens is " +
                        std::to_string(worst) + "; most are " + std::to_string(ranks) +
                        " times the most tokens of a rank");
}

}  // namespace

HighThroughput::HighThroughput(py::object comm, std::shared_ptr<BufferStreams> streams,
                               bool tells_failures)
    : BufferCalls(std::move(comm), std::move(streams), tells_failures),
      rank_(number_of(comm_, "rank")) {}

HighThroughput::Rows HighThroughput::Rows::contiguous() const {
  return {values.contiguous(),
          scales.has_value() ? std::optional(scales->contiguous()) : std::nullopt};
}

// --- EP objects ------------------------------------------------------------------------------------------------

at::Tensor HighThroughput::lane_memory(const void* address, at::IntArrayRef sizes,
                                       at::ScalarType type) const {
  if (address == nullptr) return {};
  return at::for_blob(const_cast<void*>(address), sizes)
      .options(at::TensorOptions(type).device(device()))
      .target_device(device())
      .make_tensor();
}

std::shared_ptr<HighThroughput::Lane> HighThroughput::make_lane(const py::object& ep, int64_t most,
                                                                const RowShape& shape) const {
  auto lane = std::make_shared<Lane>();
  lane->ep = ep;
  lane->view = view_of(ep, 0);
  const int64_t local = shape.experts / ranks_;
  const int64_t rows = ranks_ * most;
  const mep_ep_view_t& view = lane->view;
  lane->hidden = shape.hidden;
  const bool expands = shape.alignment != 0;
  lane->topk_idx = lane_memory(view.token_topk_idx, {rows, shape.top_k}, at::kInt);
  lane->sources = lane_memory(view.token_src_info, {rows, 1}, at::kInt);
  lane->slots = lane_memory(view.token_rows, {rows, shape.top_k}, at::kInt);
  if (!is_on_gpu()) return lane;
  lane->ranges = lane_memory(expands ? view.token_range : view.layout_range, {ranks_}, at::kLong);
  const auto pinned = at::TensorOptions(at::kCPU).pinned_memory(true);
  lane->host_ranges = at::empty({ranks_}, pinned.dtype(at::kLong));
  lane->host_counts = at::empty({local}, pinned.dtype(at::kInt));
  // None can be made while a graph is captured.
  for (int made = 0; made < 2; ++made) lane->free.push_back(ep.attr("handle")());
  return lane;
}

std::shared_ptr<HighThroughput::Lane> HighThroughput::lane_for(const py::object& owner,
                                                               int64_t most,
                                                               const RowShape& shape) {
  std::vector<std::shared_ptr<Lane>>& lanes = lanes_[{most, shape}];
  const auto is_idle = [](const auto& lane) { return lane->holds == 0; };
  const auto idle = std::find_if(lanes.begin(), lanes.end(), is_idle);
  if (idle != lanes.end()) return *idle;
  if (lanes.size() == kMostLanes) {
    return *std::min_element(lanes.begin(), lanes.end(), [](const auto& one, const auto& other) {
      return one->began < other->began;
    });
  }
  const py::object ep = owner.attr("make")(most, shape.hidden, shape.top_k, shape.experts,
                                           shape.sides, shape.alignment, lanes.size());
  lanes.push_back(make_lane(ep, most, shape));
  return lanes.back();
}

// --- Sending ---------------------------------------------------------------------------------------------------

CallEnd HighThroughput::call_once(const StreamCall& call) const {
  return is_on_gpu() ? call_on(streams_->current(), call)
                     : call_blocking([call] { return call(nullptr); });
}

std::shared_ptr<HighThroughput::Spot> HighThroughput::send(
    const py::object& owner, Use* use, const Rows& x, const std::optional<at::Tensor>& weights,
    const std::shared_ptr<Received>& received) {
  const auto known = std::find_if(use->spots.begin(), use->spots.end(), [&](const auto& each) {
    return each->hidden() == x.hidden() && each->sides == x.sides();
  });
  const bool is_new = known == use->spots.end();
  // The allocator knows the memory as that of the first dispatch's stream.
  if (is_new && is_on_gpu() && !use->spots.empty()) {
    use->topk_idx.record_stream(streams_->current());
  }
  const auto spot =
      is_new ? std::make_shared<Spot>(lane_for(owner, use->most,
                                               {x.hidden(), use->topk_idx.size(1), use->experts,
                                                x.sides(), use->alignment}),
                                      x.sides())
             : *known;
  const std::shared_ptr<Lane> lane = spot->lane;
  const auto handle = address_of<mep_ep_handle_t>(spot->handle);
  if (use->alignment != 0 && !received->early && !received->values.defined()) {
    make_rows(use->rows, false, x, received.get());
  }
  mep_dispatch_options_t options;
  mep_dispatch_options_defaults(&options);
  if (!is_on_gpu()) {
    received->ranges.resize(static_cast<size_t>(ranks_));
    received->counts.resize(static_cast<size_t>(use->experts / ranks_));
  } else if (received->awaited) {
    options.token_range = reinterpret_cast<mep_range_t*>(lane->host_ranges.data_ptr<int64_t>());
    options.recv_count_host = lane->host_counts.data_ptr<int32_t>();
    std::fill_n(options.token_range, ranks_, mep_range_t{-1, -1});
    std::fill_n(options.recv_count_host, lane->host_counts.numel(), -1);
  }
  fill(*received, &options);
  if (x.scales.has_value()) options.x_scales = x.scales->data_ptr();
  if (!is_new) options.flags = MEP_DISPATCH_REPLAY;
  const bool early = received->early;
  const auto call = [=, topk_idx = use->topk_idx](mep_stream_t stream) {
    const void* const rows = x.values.data_ptr();
    const auto tokens = static_cast<uint32_t>(x.values.size(0));
    const void* const routing = is_new ? topk_idx.data_ptr() : nullptr;
    const float* const shares =
        is_new && weights.has_value() ? weights->data_ptr<float>() : nullptr;
    if (early) {
      return mep_dispatch_counts(handle, rows, routing, shares, tokens, &options, stream);
    }
    return mep_dispatch(handle, rows, routing, shares, tokens, nullptr, &options, stream);
  };
  hold(spot.get(), run(owner, lane->ep, 0, [&] { return call_once(call); }));
  if (is_new) use->spots.push_back(spot);
  if (!is_on_gpu()) received->add_up();
  return spot;
}

// After a dispatch to the spot's lane, which ended as `failure` says.
void HighThroughput::hold(Spot* spot, const Failure& failure) {
  Lane& lane = *spot->lane;
  if (!failure.exception.is_none()) {
    if (failure.has_begun) {
      lane.holds = 0;
      lane.began = ++dispatches_;
    }
    failure.raise_if_any();
  }
  lane.holds = spot->number = lane.began = ++dispatches_;
}

// The routing alone, so that the spot can be combined again.
void HighThroughput::send_routing(const py::object& owner, const Use& use, Spot* spot) {
  const auto handle = address_of<mep_ep_handle_t>(spot->handle);
  const auto tokens = static_cast<uint32_t>(use.topk_idx.size(0));
  const auto call = [=](mep_stream_t stream) {
    mep_dispatch_options_t options;
    mep_dispatch_options_defaults(&options);
    options.flags = MEP_DISPATCH_REPLAY | MEP_DISPATCH_NO_ROWS;
    return mep_dispatch(handle, nullptr, nullptr, nullptr, tokens, nullptr, &options, stream);
  };
  hold(spot, run(owner, spot->lane->ep, 0, [&] { return call_once(call); }));
}

at::Tensor HighThroughput::make(at::IntArrayRef sizes, at::ScalarType type, bool zeros) const {
  const auto options = at::TensorOptions(type).device(device());
  return zeros ? at::zeros(sizes, options) : at::empty(sizes, options);
}

void HighThroughput::make_rows(int64_t rows, bool zeros, const Rows& x, Received* received) const {
  // The library wants an address of no rows, too.
  const int64_t most = std::max(rows, int64_t{1});
  received->values = make({most, x.hidden()}, x.values.scalar_type(), zeros);
  if (x.is_fp8()) received->scales = make({most, x.sides()}, x.scales->scalar_type(), zeros);
}

// For as many tokens as can come.
void HighThroughput::make_most(Use* use, int64_t worst, const Rows& x, bool is_weighted,
                               Received* received) const {
  const bool expands = use->alignment != 0;
  use->tokens = use->rows = worst;
  if (expands) {
    use->rows = expanded_rows(worst, use->topk_idx.size(1), use->experts / ranks_, use->alignment);
  }
  make_rows(use->rows, expands || !is_on_gpu(), x, received);
  make_beside(*use, false, is_weighted, received);
}

// is_exact: all of it is written. The local experts of expanded rows lie in the view alone.
void HighThroughput::make_beside(const Use& use, bool is_exact, bool is_weighted,
                                 Received* received) const {
  const bool expands = use.alignment != 0;
  const int64_t top_k = use.topk_idx.size(1);
  if (is_weighted && expands) received->weights = make({use.rows}, at::kFloat, !is_exact);
  if (is_weighted && !expands) {
    received->weights = make({use.tokens, top_k}, at::kFloat, !is_exact);
  }
  if (expands) return;
  const auto ints = at::TensorOptions(at::kInt).device(device());
  const auto numbers = [&](at::IntArrayRef sizes) {
    return is_exact ? at::empty(sizes, ints) : at::full(sizes, -1, ints);
  };
  received->sources = numbers({use.tokens});
  if (use.has_topk) received->topk_idx = numbers({use.tokens, top_k});
}

void HighThroughput::fill(const Received& received, mep_dispatch_options_t* receive) const {
  if (!is_on_gpu()) {
    receive->token_range =
        reinterpret_cast<mep_range_t*>(const_cast<int64_t*>(received.ranges.data()));
    receive->recv_count = const_cast<int32_t*>(received.counts.data());
  }
  if (!received.values.defined()) return;
  receive->recv_x = received.values.data_ptr();
  receive->recv_capacity = received.values.nbytes();
  if (received.scales.defined()) receive->recv_scales = received.scales.data_ptr();
  if (received.weights.defined()) {
    receive->recv_topk_weights = received.weights.data_ptr<float>();
  }
  if (received.sources.defined()) receive->src_info = received.sources.data_ptr<int32_t>();
  if (received.topk_idx.defined()) receive->recv_topk_idx = received.topk_idx.data_ptr<int32_t>();
}

void HighThroughput::receive(const py::object& owner, const Spot& spot,
                             const std::shared_ptr<Received>& received) const {
  const auto handle = address_of<mep_ep_handle_t>(spot.handle);
  mep_dispatch_options_t options;
  mep_dispatch_options_defaults(&options);
  fill(*received, &options);
  const auto call = [=](mep_stream_t stream) {
    (void)received;
    return mep_dispatch_receive(handle, nullptr, &options, stream);
  };
  const Failure failure = run(owner, spot.lane->ep, 0, [&] { return call_once(call); });
  if (!failure.exception.is_none()) spot.lane->holds = 0;
  failure.raise_if_any();
  if (!is_on_gpu()) received->add_up();
}

// Until the GPU has told how many rows arrive. A dispatch that fails tells of none.
void HighThroughput::await(const Lane& lane, Received* received) const {
  const volatile int64_t* ranges = lane.host_ranges.data_ptr<int64_t>();
  const volatile int32_t* counts = lane.host_counts.data_ptr<int32_t>();
  const auto experts = static_cast<size_t>(lane.host_counts.numel());
  const auto ranks = static_cast<size_t>(ranks_);
  const c10::Stream stream = streams_->current();
  c10::Event done(stream.device_type());
  done.record(stream);
  const auto is_told = [&] {
    return std::all_of(ranges, ranges + ranks, [](int64_t range) { return range >= 0; }) &&
           std::all_of(counts, counts + experts, [](int32_t count) { return count >= 0; });
  };
  constexpr int kLooksUntilQuery = 64;
  constexpr auto kUntilSignals = std::chrono::milliseconds(100);
  bool is_over = false;
  {
    const py::gil_scoped_release without_gil;
    auto asked = std::chrono::steady_clock::now();
    for (int look = 1; !is_over && !is_told(); ++look) {
      std::this_thread::yield();
      if (look % kLooksUntilQuery != 0) continue;
      is_over = done.query();
      const auto now = std::chrono::steady_clock::now();
      if (now - asked < kUntilSignals) continue;
      asked = now;
      const py::gil_scoped_acquire with_gil;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  received->ranges.assign(ranges, ranges + ranks);
  received->counts.assign(counts, counts + experts);
  for (int64_t& range : received->ranges) range = std::max(range, int64_t{0});
  received->add_up();
  for (int32_t& count : received->counts) count = std::max(count, 0);
  if (received->total == 0 && (is_over || done.query())) check_failures();
}

// --- Results ---------------------------------------------------------------------------------------------------

// The first rows of the library's memory, -1 beyond those that came.
at::Tensor HighThroughput::copy(const at::Tensor& memory, const Use& use, bool knows,
                                const Lane& lane) const {
  at::Tensor copied = memory.narrow(0, 0, use.tokens).clone();
  if (!knows) {
    const at::Tensor rows = at::arange(use.tokens, copied.options().dtype(at::kLong));
    const at::Tensor total = lane.ranges.bitwise_and(at::Scalar(kCountMask)).sum();
    copied.masked_fill_(rows.ge(total).unsqueeze(1), -1);
  } else if (use.total < use.tokens) {
    copied.narrow(0, use.total, use.tokens - use.total).fill_(-1);
  }
  return copied;
}

// Where the rows of each source end, in this rank's column.
at::Tensor HighThroughput::prefixes_of(const std::vector<int64_t>& ranges) const {
  auto options = at::TensorOptions(at::kInt).device(at::kCPU);
  if (is_on_gpu()) options = options.pinned_memory(true);
  const at::Tensor prefixes = at::empty({ranks_, ranks_}, options);
  auto* ends = prefixes.data_ptr<int32_t>();
  std::fill_n(ends, ranks_ * ranks_, -1);
  int64_t end = 0;
  for (int64_t source = 0; source < ranks_; ++source) {
    end += ranges[static_cast<size_t>(source)] & kCountMask;
    ends[source * ranks_ + rank_] = static_cast<int32_t>(end);
  }
  return is_on_gpu() ? prefixes.to(at::TensorOptions(device()), true) : prefixes;
}

// The same, where the host does not know how many rows come.
at::Tensor HighThroughput::prefixes_of(const Lane& lane) const {
  const at::Tensor prefixes =
      at::full({ranks_, ranks_}, -1, at::TensorOptions(at::kInt).device(device()));
  prefixes.select(1, rank_).copy_(lane.ranges.bitwise_and(at::Scalar(kCountMask)).cumsum(0));
  return prefixes;
}

py::tuple HighThroughput::dispatch(const py::object& owner, const Rows& x,
                                   const std::optional<at::Tensor>& in_rank,
                                   const std::optional<at::Tensor>& per_expert,
                                   const std::optional<at::Tensor>& topk_idx,
                                   const std::optional<at::Tensor>& weights, int64_t alignment,
                                   int64_t worst, int64_t room, bool expands, const Order& order) {
  const at::NoGradGuard without_grad;
  const bool waits = worst == 0;
  const bool knows = waits || !is_on_gpu();  // how many tokens come, before their rows
  if (is_on_gpu() && waits && capture_of(streams_->current()) != 0) {
    throw py::value_error(
        "a dispatch that waits for its counts cannot be captured; give num_worst_tokens");
  }
  check_failures();
  OnStream running(streams_, order);
  const SharedUse use = route(owner, x, in_rank, per_expert, topk_idx, weights, alignment, worst,
                              room, expands ? alignment : 0);
  const bool is_weighted = weights.has_value();
  const auto received = std::make_shared<Received>();
  received->awaited = waits;
  received->early = knows;
  if (!knows) make_most(use.get(), worst, x, is_weighted, received.get());
  const auto dense_weights = is_weighted ? std::optional(weights->contiguous()) : std::nullopt;
  const Rows dense = x.contiguous();  // until its rows are sent
  const auto spot = send(owner, use.get(), dense, dense_weights, received);
  const Lane& lane = *spot->lane;
  if (knows) {
    if (is_on_gpu()) await(lane, received.get());
    // More than num_worst_tokens are received all the same, so that the ranks go on together.
    if (waits || received->total > worst) {
      use->tokens = received->total;
      use->rows = expands ? received->expanded() : use->tokens;
      make_rows(use->rows, false, x, received.get());
      make_beside(*use, true, is_weighted, received.get());
    } else {
      make_most(use.get(), worst, x, is_weighted, received.get());
    }
    receive(owner, *spot, received);
    if (!waits && received->total > worst) raise_too_many(received->total, worst, ranks_);
    if (waits && !is_on_gpu()) {  // a rank may have gone since
      use->tokens = received->total;
      use->rows = expands ? received->expanded() : use->tokens;
    }
  }
  use->is_exact = waits;
  use->total = knows ? received->total : worst;
  std::vector<int64_t> told;
  if (!use->has_topk) {
    told = owner.attr("add_up")(*per_expert).cast<std::vector<int64_t>>();
  } else if (waits) {
    told.assign(received->counts.begin(), received->counts.end());
  }
  for (int64_t& count : told) count = (count + alignment - 1) / alignment * alignment;
  const auto rows_of = [&](const at::Tensor& tensor, int64_t rows) {
    return tensor.defined() ? tensor.narrow(0, 0, rows) : tensor;
  };
  const at::Tensor values = rows_of(received->values, use->rows);
  const at::Tensor scales = rows_of(received->scales, use->rows);
  const at::Tensor weights_there = rows_of(received->weights, expands ? use->rows : use->tokens);
  at::Tensor sources = rows_of(received->sources, use->tokens), local_experts, slots;
  if (expands) {
    sources = copy(lane.sources, *use, knows, lane).squeeze(1);
    local_experts = copy(lane.topk_idx, *use, knows, lane).to(at::kLong);
    slots = copy(lane.slots, *use, knows, lane);
  } else if (use->has_topk) {
    local_experts = rows_of(received->topk_idx, use->tokens).to(at::kLong);
  }
  const at::Tensor prefixes = knows ? prefixes_of(received->ranges) : prefixes_of(lane);
  running.end({values, scales, local_experts, weights_there, sources, prefixes, slots},
              {x.values, or_undefined(x.scales), or_undefined(topk_idx), or_undefined(weights),
               *in_rank, *per_expert});
  return py::make_tuple(values, or_none(scales), or_none(local_experts), or_none(weights_there),
                        told, prefixes, sources, or_none(slots), use);
}

py::tuple HighThroughput::replay(const py::object& owner, const SharedUse& use, const Rows& x,
                                 const Order& order) {
  const at::NoGradGuard without_grad;
  check_failures();
  OnStream running(streams_, order);
  check_rows(x);
  const Rows rows = x.contiguous();
  if (rows.tokens() != use->topk_idx.size(0)) {
    throw py::value_error("x has " + std::to_string(rows.tokens()) +
                          " rows, the handle's dispatch had " +
                          std::to_string(use->topk_idx.size(0)) + " tokens");
  }
  const auto received = std::make_shared<Received>();
  received->awaited = false;
  // Rows that do not come, of a rank that was lost or beyond those that came, are zeros on hosts and where they are expanded.
  const bool zeros = !is_on_gpu() || (use->alignment != 0 && !use->is_exact);
  make_rows(use->rows, zeros, x, received.get());
  (void)send(owner, use.get(), rows, std::nullopt, received);
  const at::Tensor values = received->values.narrow(0, 0, use->rows);
  const at::Tensor scales = x.is_fp8() ? received->scales.narrow(0, 0, use->rows) : at::Tensor();
  running.end({values, scales}, {x.values, or_undefined(x.scales)});
  return py::make_tuple(values, or_none(scales));
}

// --- Combine ---------------------------------------------------------------------------------------------------

// A lane that the rows of the handle can be combined from. Where later dispatches have used it, or the handle was
// combined, its routing is sent again; rows of another width than before are sent, as zeros.
std::shared_ptr<HighThroughput::Spot> HighThroughput::ready(const py::object& owner, Use* use,
                                                            int64_t hidden) {
  std::shared_ptr<Spot> first;
  for (const auto& spot : use->spots) {
    if (spot->hidden() != hidden) continue;
    if (spot->is_held()) return spot;
    if (first == nullptr) first = spot;
  }
  if (first != nullptr) {
    send_routing(owner, *use, first.get());
    return first;
  }
  const auto options = at::TensorOptions(device()).dtype(at::kBFloat16);
  const Rows zeros{at::zeros({use->topk_idx.size(0), hidden}, options), {}};
  const auto received = std::make_shared<Received>();
  received->awaited = false;
  return send(owner, use, zeros, std::nullopt, received);
}

py::tuple HighThroughput::combine(const py::object& owner, const SharedUse& use,
                                  const at::Tensor& x, const std::optional<at::Tensor>& weights,
                                  const std::vector<at::Tensor>& biases, const Order& order) {
  const at::NoGradGuard without_grad;
  check_place("x", x);
  if (weights.has_value()) check_place("topk_weights", *weights);
  if (x.dim() != 2 || x.scalar_type() != at::kBFloat16 || x.size(0) != use->rows) {
    throw py::value_error("x is " + told(x) + "; it must be bfloat16 [" +
                          std::to_string(use->rows) + ", hidden], a row for each of the dispatch");
  }
  const int64_t tokens = use->topk_idx.size(0), top_k = use->topk_idx.size(1), hidden = x.size(1);
  if (weights.has_value()) {
    if (!use->has_topk) {
      throw py::value_error("topk_weights go back only by the handle of a dispatch with topk_idx");
    }
    std::vector<int64_t> sizes{use->rows};
    if (use->alignment == 0) sizes.push_back(top_k);
    expect("topk_weights", *weights, at::kFloat, sizes);
  }
  if (biases.size() > 2) {
    throw py::value_error("bias has " + std::to_string(biases.size()) +
                          " tensors; one or two are added");
  }
  for (const at::Tensor& bias : biases) {
    check_place("bias", bias);
    expect("bias", bias, at::kBFloat16, {tokens, hidden});
  }
  check_failures();
  OnStream running(streams_, order);
  const at::Tensor y = x.contiguous();
  const at::Tensor given = weights.has_value() ? weights->contiguous() : at::Tensor();
  std::vector<at::Tensor> added;
  for (const at::Tensor& bias : biases) added.push_back(bias.contiguous());
  const auto spot = ready(owner, use.get(), hidden);
  const auto options = at::TensorOptions(device());
  const at::Tensor out =
      at::empty({std::max(tokens, int64_t{1}), hidden}, options.dtype(at::kBFloat16));
  const at::Tensor sums = out.narrow(0, 0, tokens);
  const at::Tensor back =
      weights.has_value() ? at::empty({tokens, top_k}, options.dtype(at::kFloat)) : at::Tensor();
  const std::shared_ptr<Lane> lane = spot->lane;
  lane->holds = 0;
  const auto handle = address_of<mep_ep_handle_t>(spot->handle);
  const auto call = [=](mep_stream_t stream) {
    mep_combine_options_t sum;
    mep_combine_options_defaults(&sum);
    sum.num_tokens = static_cast<uint32_t>(tokens);
    if (given.defined()) sum.topk_weights = given.data_ptr<float>();
    if (back.defined()) sum.recv_topk_weights = back.data_ptr<float>();
    if (!added.empty()) sum.token_bias = added[0].data_ptr();
    if (added.size() > 1) sum.token_bias2 = added[1].data_ptr();
    const void* const rows = y.numel() != 0 ? y.data_ptr() : out.data_ptr();  // of no rows
    return mep_combine(handle, rows, tokens != 0 ? out.data_ptr() : nullptr, &sum, stream);
  };
  run(owner, lane->ep, 0, [&] { return call_once(call); }).raise_if_any();
  std::vector<at::Tensor> all_given = biases;
  all_given.insert(all_given.end(), {x, or_undefined(weights)});
  running.end({sums, back}, all_given);
  return py::make_tuple(sums, or_none(back));
}

void add_high_throughput(py::module_& module) {
  using Normal = HighThroughput;
  py::class_<Normal, std::shared_ptr<Normal>> normal(module, "HighThroughput");
  py::class_<Normal::Use, Normal::SharedUse>(normal, "Use")
      .def_readonly("topk_idx", &Normal::Use::topk_idx)
      .def_readonly("num_experts", &Normal::Use::experts)
      .def_readonly("most", &Normal::Use::most)
      .def_readonly("rows", &Normal::Use::rows)
      .def_property_readonly("owner", [](const Normal::Use& use) { return use.owner; });
  py::class_<Normal::Rows>(normal, "Rows")
      .def(py::init<at::Tensor, std::optional<at::Tensor>>(), py::arg("values"),
           py::arg("scales") = py::none());
  py::class_<Normal::Order>(normal, "Order")
      .def(py::init<bool, bool>(), py::arg("behind_current"), py::arg("is_async"));
  normal
      .def(py::init<py::object, std::shared_ptr<BufferStreams>, bool>(), py::arg("comm"),
           py::arg("streams"), py::arg("tells_failures"))
      .def("layout", &Normal::layout)
      .def("dispatch", &Normal::dispatch)
      .def("replay", &Normal::replay)
      .def("combine", &Normal::combine);
}

}  // namespace mep_torch
