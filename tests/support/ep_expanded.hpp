// A rank that goes through rounds of an EpCase in the expanded layout of high throughput and checks every row, its place, its
// padding and its sum, with all ranks or without those that are gone.
#pragma once

#include <memory>
#include <numeric>

#include "support/ep_halves.hpp"
#include "support/ep_rounds.hpp"

namespace mep_test {

// A row that pads has source -1.
struct ExpandedRow {
  int source = -1;
  uint32_t token = 0;
  uint32_t expert = 0;
  float weight = 0;
};

struct ExpandedRows {
  std::vector<ExpandedRow> rows;
  std::vector<int32_t> counts;
  std::vector<mep_range_t> ranges;
  std::vector<int64_t> trues;
};

struct ExpandedCase : EpCase {
  uint32_t alignment = 1;
  enum Routes : uint8_t { kRandom, kNobody, kOneExpert } routes = kRandom;
  bool rows_later =
      false;  // the library has no memory for rows, and rows come with a call of their own

  mep_ep_config_t config() const {
    mep_ep_config_t config = EpCase::config();
    config.layout = MEP_EP_EXPANDED;
    config.expert_alignment = alignment;
    config.flags = rows_later ? MEP_EP_NO_ROW_MEMORY : 0;
    return config;
  }
  uint32_t tokens(int rank, uint64_t round) const {
    return routes == kNobody ? 0 : EpCase::tokens(rank, round);
  }
  std::vector<int64_t> routing(int rank, uint64_t round) const {
    if (routes == kRandom) return EpCase::routing(rank, round);
    std::vector<int64_t> route(size_t{tokens(rank, round)} * top_k, -1);
    for (size_t at = 0; at < route.size(); at += top_k) route[at] = experts - 1;
    return route;
  }
  size_t most_rows() const {
    const size_t rows = rows_per_expert() * std::min(top_k, local_experts) +
                        size_t{local_experts} * (alignment - 1);
    return (rows + alignment - 1) / alignment * alignment;
  }
  std::string describe() const {
    return EpCase::describe() + " alignment " + std::to_string(alignment) + " routes " +
           std::to_string(routes);
  }

  ExpandedRows received(int rank, uint64_t round, const std::vector<uint8_t>& gone) const {
    ExpandedRows found;
    for (uint32_t expert = 0; expert < local_experts; ++expert) {
      const size_t begin = found.rows.size();
      const int64_t place = int64_t{rank} * local_experts + expert;
      for (int source = 0; source < ranks; ++source) {
        const size_t first = found.rows.size();
        if (!is_gone(gone, source)) add_rows(source, round, place, &found.rows);
        found.ranges.push_back(
            {static_cast<int32_t>(found.rows.size() - first), static_cast<int32_t>(first)});
      }
      found.trues.push_back(static_cast<int64_t>(found.rows.size() - begin));
      while ((found.rows.size() - begin) % alignment != 0) found.rows.emplace_back();
      found.counts.push_back(static_cast<int32_t>(found.rows.size() - begin));
    }
    return found;
  }

  // Sums of each rank's experts, rounded, then of the ranks. The outputs are those of round `made`.
  Bytes sum(int rank, uint64_t round, uint64_t made, uint32_t token,
            const std::vector<uint8_t>& gone) const {
    const std::vector<int64_t> route = routing(rank, round);
    RowSum all(combine, hidden);
    for (int owner = 0; owner < ranks; ++owner) {
      if (is_gone(gone, owner)) continue;
      RowSum there(combine, hidden);
      bool any = false;
      for (uint32_t k = 0; k < top_k; ++k) {
        const int64_t place = route[size_t{token} * top_k + k];
        if (place < 0 || static_cast<int>(place / local_experts) != owner) continue;
        there.add(y_row(static_cast<uint32_t>(place), rank, made, token).data());
        any = true;
      }
      if (any) all.add(there.row().data());
    }
    if (bias) all.add(bias_row(made).data());
    return all.row();
  }

  static bool is_gone(const std::vector<uint8_t>& gone, int64_t rank) {
    return !gone.empty() && gone[static_cast<size_t>(rank)] != 0;
  }

 private:
  void add_rows(int source, uint64_t round, int64_t place, std::vector<ExpandedRow>* rows) const {
    const std::vector<int64_t> route = routing(source, round);
    const std::vector<float> weight = weights(source, round, false);
    for (uint32_t at = 0; at < route.size(); ++at) {
      if (route[at] != place) continue;
      rows->push_back({source, at / top_k, static_cast<uint32_t>(place) % local_experts,
                       dispatch_weights ? weight[at] : 1.0f});
    }
  }
};

// A random case of failing_case's kind.
inline ExpandedCase expanded_failing_case(uint64_t seed, int ranks) {
  ExpandedCase c;
  static_cast<EpCase&>(c) = random_ep_case(seed, ranks);
  c.slotted = c.mapped_experts = c.bias = false;
  c.replicas = 1;
  constexpr uint32_t kAlignments[] = {1, 4, 128};
  c.alignment = kAlignments[RandomStream(mix(seed, 78)).below(3)];
  return c;
}

class ExpandedRound {
 public:
  ExpandedRound(const ExpandedCase& c, int rank, mep_ep_t ep, uint32_t buffer, Report& report)
      : c_(c), rank_(rank), report_(report), statistics_(c.local_experts, 0) {
    COLL_OK(report_, mep_ep_handle_create(ep, buffer, &handle_));
    mep_ep_view_defaults(&view_);
    COLL_OK(report_, mep_ep_buffer_view(ep, buffer, &view_));
    COLL_CHECK(report_, view_.recv_topk_idx == nullptr);
  }
  ~ExpandedRound() { COLL_OK(report_, mep_ep_handle_destroy(handle_)); }
  ExpandedRound(const ExpandedRound&) = delete;
  ExpandedRound& operator=(const ExpandedRound&) = delete;

  void begin(uint64_t round, bool own_memory) {
    routed_ = round;
    begin_replay(round, own_memory);
  }
  void begin(uint64_t round) { begin(round, c_.own_memory); }
  // The rows of another round by the routing of the last.
  void begin_replay(uint64_t round, bool own_memory) {
    round_ = round;
    own_memory_ = own_memory;
    tokens_ = c_.tokens(rank_, routed_);
    x_.assign(tokens_ * c_.input_bytes() + 1, 0);
    x_scales_.assign(tokens_ * c_.scale_bytes() + 1, 0);
    for (uint32_t token = 0; token < tokens_; ++token) {
      const Bytes row = c_.x_row(rank_, round_, token);
      std::memcpy(x_.data() + token * row.size(), row.data(), row.size());
      if (!mep_reference::has_scales(c_.input)) continue;
      const Bytes scales = c_.x_scales_row(rank_, round_, token);
      std::memcpy(x_scales_.data() + token * scales.size(), scales.data(), scales.size());
    }
    route_ = c_.routing(rank_, routed_);
    weights_ = c_.weights(rank_, routed_, false);
  }

  // The routing of the last dispatch, and no rows: what is combined next is of `round`.
  mep_result_t dispatch_again(uint64_t round) {
    round_ = round;
    mep_dispatch_options_t options;
    mep_dispatch_options_defaults(&options);
    options.flags = MEP_DISPATCH_REPLAY | MEP_DISPATCH_NO_ROWS;
    return mep_dispatch(handle_, nullptr, nullptr, nullptr, tokens_, nullptr, &options, nullptr);
  }

  // capacity: bytes of recv_x in memory of the caller; 0: for all rows that can come.
  mep_result_t dispatch(Halves halves, uint64_t capacity = 0) {
    DispatchTokens send;
    DispatchRows receive;
    if (sends(halves)) set_inputs(&send);
    if (receives(halves)) set_outputs(capacity, &receive);
    return dispatch_halves(handle_, if_sends(halves, send), if_receives(halves, receive), nullptr);
  }

  // Sends, and checks what is told before the rows are received.
  mep_result_t dispatch_early() {
    std::vector<int32_t> counts(c_.local_experts, -1);
    std::vector<mep_range_t> tokens(static_cast<size_t>(c_.ranks), mep_range_t{-1, -1});
    DispatchTokens send;
    DispatchRows receive;
    set_inputs(&send);
    int64_t total = -1;
    receive.later = true;
    receive.recv_count = counts.data();
    receive.recv_total = &total;
    receive.token_range = tokens.data();
    const mep_result_t result = dispatch_halves(handle_, &send, &receive, nullptr);
    COLL_CHECK(report_, counts == c_.received(rank_, routed_, {}).counts);
    COLL_CHECK(report_, total == std::accumulate(counts.begin(), counts.end(), int64_t{0}));
    COLL_CHECK(report_, std::equal(tokens.begin(), tokens.end(), view_.token_range,
                                   [](const mep_range_t& one, const mep_range_t& other) {
                                     return one.begin == other.begin && one.count == other.count;
                                   }));
    return result;
  }

  // gone: sources whose rows are missing.
  void check_received(const std::vector<uint8_t>& gone = {}) {
    const ExpandedRows expected = c_.received(rank_, routed_, gone);
    const size_t total = expected.rows.size();
    if (total_ != static_cast<int64_t>(total)) {
      return report_.add("%s: round %llu rank %d: %lld rows, not %zu", c_.describe().c_str(),
                         static_cast<unsigned long long>(round_), rank_,
                         static_cast<long long>(total_), total);
    }
    COLL_CHECK(report_, statistics_ == expected.trues);
    COLL_CHECK(report_,
               std::equal(expected.counts.begin(), expected.counts.end(), view_.recv_count));
    for (size_t i = 0; i < expected.ranges.size(); ++i) {
      const bool is_gone = c_.is_gone(gone, static_cast<int64_t>(i) % c_.ranks);
      COLL_CHECK(report_, view_.layout_range[i].count == expected.ranges[i].count);
      COLL_CHECK(report_, is_gone || view_.layout_range[i].begin == expected.ranges[i].begin);
    }
    for (size_t i = 0; i < total && !report_.bad(); ++i) check_row(i, expected.rows[i]);
    check_tokens(expected, gone);
    if (!own_memory_) return;
    COLL_CHECK(report_, recv_x_->untouched(total * c_.wire_bytes(), recv_x_->bytes()));
    COLL_CHECK(report_, recv_x_->guard_intact() && recv_scales_->guard_intact());
    COLL_CHECK(report_, recv_weights_->guard_intact() && src_info_->guard_intact());
  }

  // Outputs for the rows that came, and NaN for those that pad.
  void run_experts(const std::vector<uint8_t>& gone = {}) {
    const ExpandedRows received = c_.received(rank_, routed_, gone);
    own_y_.assign(received.rows.size() * c_.combine_bytes() + 1, 0xff);
    values_.assign(received.rows.size() + 1, 1e9f);
    uint8_t* y = own_memory_ ? own_y_.data() : static_cast<uint8_t*>(view_.combine_input);
    for (size_t i = 0; i < received.rows.size(); ++i, y += c_.combine_bytes()) {
      const ExpandedRow& row = received.rows[i];
      std::memset(y, 0xff, c_.combine_bytes());
      if (row.source < 0) continue;
      const auto place = static_cast<uint32_t>(rank_) * c_.local_experts + row.expert;
      const Bytes made = c_.y_row(place, row.source, round_, row.token);
      std::memcpy(y, made.data(), made.size());
      values_[i] = row.weight + static_cast<float>(round_);
    }
  }

  // Rows that come back have no weights, so flags change nothing.
  mep_result_t combine(Halves halves, uint32_t /*flags*/ = 0) {
    CombineTerms results;
    CombineSums sums;
    if (sends(halves)) {
      results.y = own_memory_ ? own_y_.data() : view_.combine_input;
      results.topk_weights = values_.data();
    }
    if (receives(halves)) {
      out_ = std::make_unique<Poisoned>(tokens_ * c_.combine_bytes());
      back_ = std::make_unique<Poisoned>(size_t{tokens_} * c_.top_k * sizeof(float));
      bias_ = c_.bias_row(round_);
      sums.out = out_->data();
      sums.bias = c_.bias ? bias_.data() : nullptr;
      sums.recv_topk_weights = back_->as<float>();
    }
    const mep_result_t result =
        combine_halves(handle_, if_sends(halves, results), if_receives(halves, sums), nullptr);
    if (!receives(halves)) {
      std::fill(own_y_.begin(), own_y_.end(), uint8_t{0xee});  // the caller's again
      std::fill(values_.begin(), values_.end(), -1.0f);
    }
    return result;
  }

  // gone: ranks whose experts' terms are missing.
  void check_combined(const std::vector<uint8_t>& gone = {}, bool /*renormalize*/ = false) {
    for (uint32_t token = 0; token < tokens_; ++token) {
      const Bytes sum = c_.sum(rank_, routed_, round_, token, gone);
      if (std::memcmp(out_->data() + token * sum.size(), sum.data(), sum.size()) != 0) {
        return report_.add("%s: round %llu rank %d token %u: wrong sum", c_.describe().c_str(),
                           static_cast<unsigned long long>(round_), rank_, token);
      }
    }
    for (size_t at = 0; at < route_.size(); ++at) {
      const bool came = route_[at] >= 0 && !c_.is_gone(gone, route_[at] / c_.local_experts);
      const float weight = c_.dispatch_weights ? weights_[at] : 1.0f;
      const float expected = came ? weight + static_cast<float>(round_) : 0.0f;
      COLL_CHECK(report_, back_->as<float>()[at] == expected);
    }
    COLL_CHECK(report_, out_->guard_intact() && back_->guard_intact());
  }

 private:
  void set_inputs(DispatchTokens* send) {
    send->num_tokens = tokens_;
    send->x = x_.data();
    send->x_scales = mep_reference::has_scales(c_.input) ? x_scales_.data() : nullptr;
    send->flags = routed_ != round_ ? MEP_DISPATCH_REPLAY : 0;
    send->topk_idx = route_.data();
    send->topk_weights = c_.dispatch_weights ? weights_.data() : nullptr;
  }

  void set_outputs(uint64_t capacity, DispatchRows* receive) {
    total_ = -1;
    std::fill(statistics_.begin(), statistics_.end(), 0);
    receive->recv_total = &total_;
    receive->statistics = statistics_.data();
    if (!own_memory_) return;
    const size_t rows = c_.most_rows();
    recv_x_ = std::make_unique<Poisoned>(rows * c_.wire_bytes());
    recv_scales_ = std::make_unique<Poisoned>(rows * c_.scale_bytes());
    recv_weights_ = std::make_unique<Poisoned>(rows * sizeof(float));
    src_info_ = std::make_unique<Poisoned>(rows * sizeof(int32_t));
    receive->recv_x = recv_x_->data();
    receive->recv_capacity = capacity != 0 ? capacity : recv_x_->bytes();
    receive->recv_scales = c_.has_scales() ? recv_scales_->data() : nullptr;
    receive->recv_topk_weights = recv_weights_->as<float>();
    receive->src_info = src_info_->as<int32_t>();
  }

  void check_row(size_t i, const ExpandedRow& row) {
    const bool pads = row.source < 0;
    WireRow wire{Bytes(c_.wire_bytes(), 0), Bytes(c_.scale_bytes(), 0)};
    if (!pads) wire = c_.wire_row(row.source, round_, row.token);
    const auto* x = own_memory_ ? recv_x_->data() : static_cast<const uint8_t*>(view_.recv_x);
    const auto* scales =
        own_memory_ ? recv_scales_->data() : static_cast<const uint8_t*>(view_.recv_scales);
    const float* weights = own_memory_ ? recv_weights_->as<float>() : view_.recv_topk_weights;
    const int32_t* info = own_memory_ ? src_info_->as<int32_t>() : view_.src_info;
    const bool same =
        std::memcmp(x + i * c_.wire_bytes(), wire.values.data(), c_.wire_bytes()) == 0 &&
        (!c_.has_scales() ||
         std::memcmp(scales + i * c_.scale_bytes(), wire.scales.data(), c_.scale_bytes()) == 0);
    if (!same) {
      report_.add("%s: round %llu rank %d row %zu is not token %u of rank %d",
                  c_.describe().c_str(), static_cast<unsigned long long>(round_), rank_, i,
                  row.token, row.source);
    }
    COLL_CHECK(report_, info[i] == (pads ? -1 : static_cast<int32_t>(row.token)));
    COLL_CHECK(report_, weights[i] == row.weight);
  }

  // The rows before they were expanded: each source's tokens that have experts here, in order.
  void check_tokens(const ExpandedRows& expected, const std::vector<uint8_t>& gone) {
    int64_t row = 0;
    for (int source = 0; source < c_.ranks; ++source) {
      const int64_t begin = row;
      const std::vector<int64_t> route = c_.routing(source, routed_);
      const int64_t own = int64_t{rank_} * c_.local_experts;
      for (const uint32_t token : tokens_for(route, c_.top_k, own, own + c_.local_experts)) {
        if (c_.is_gone(gone, source)) break;
        COLL_CHECK(report_, view_.token_src_info[row] == static_cast<int32_t>(token));
        for (uint32_t k = 0; k < c_.top_k; ++k) {
          const int64_t place = route[size_t{token} * c_.top_k + k];
          const int32_t at = view_.token_rows[row * c_.top_k + k];
          const int32_t expert = view_.token_topk_idx[row * c_.top_k + k];
          if (place < 0 || place / c_.local_experts != rank_) {
            COLL_CHECK(report_, at == -1 && expert == -1);
            continue;
          }
          const bool is_row = at >= 0 && static_cast<size_t>(at) < expected.rows.size();
          COLL_CHECK(report_, is_row && expert == static_cast<int32_t>(place % c_.local_experts));
          if (!is_row) continue;
          const ExpandedRow& named = expected.rows[static_cast<size_t>(at)];
          COLL_CHECK(report_, named.source == source && named.token == token &&
                                  static_cast<int32_t>(named.expert) == expert);
        }
        ++row;
      }
      const mep_range_t& range = view_.token_range[source];
      COLL_CHECK(report_, range.count == row - begin);
      if (!c_.is_gone(gone, source)) COLL_CHECK(report_, range.begin == begin);
    }
  }

  const ExpandedCase& c_;
  const int rank_;
  Report& report_;
  mep_ep_handle_t handle_ = nullptr;
  mep_ep_view_t view_{};
  uint64_t routed_ = 0, round_ = 0;
  bool own_memory_ = false;
  uint32_t tokens_ = 0;
  Bytes x_, x_scales_, own_y_, bias_;
  std::vector<int64_t> route_;
  std::vector<float> weights_, values_;
  int64_t total_ = -1;
  std::vector<int64_t> statistics_;
  std::unique_ptr<Poisoned> recv_x_, recv_scales_, recv_weights_, src_info_, out_, back_;
};

}  // namespace mep_test
