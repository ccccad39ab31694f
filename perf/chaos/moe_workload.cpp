#include "moe_workload.hpp"

namespace mep::chaos {
namespace {

constexpr uint32_t kTokens = 16;
constexpr uint32_t kHidden = 256;
constexpr uint32_t kTopK = 2;
constexpr uint32_t kLocalExperts = 2;

// Small whole numbers, so that every product and sum is exact.
float value_of(uint64_t iteration, uint32_t source, uint32_t token, uint32_t column) {
  return static_cast<float>((iteration * 31 + source * 7 + token * 5 + column * 3) % 509);
}
float factor_of(uint32_t expert) {
  return static_cast<float>(expert % 5 + 1);
}

uint32_t expert_of(uint64_t iteration, uint32_t source, uint32_t token, uint32_t k,
                   uint32_t experts) {
  const uint64_t first = iteration + source * 3 + token;
  return static_cast<uint32_t>((first + k * (1 + iteration % (experts - 1))) % experts);
}

}  // namespace

MoeWorkload::MoeWorkload(mep_comm_t comm, uint32_t rank, uint32_t size, const std::string& name,
                         uint32_t mode, bool attaches)
    : rank_(rank), size_(size), high_throughput_(mode == MEP_EP_HIGH_THROUGHPUT) {
  mep_ep_config_t config;
  mep_moe_defaults(&config, kTokens, kHidden, kTopK, size * kLocalExperts);
  config.name = name.c_str();
  config.mode = mode;
  config.input_type = MEP_FLOAT32;
  config.num_buffers = 1;
  created_ = attaches ? mep_ep_attach(comm, &config, &ep_) : mep_ep_create(comm, &config, &ep_);
  if (created_ == MEP_SUCCESS) created_ = mep_ep_handle_create(ep_, 0, &handle_);
  if (created_ == MEP_SUCCESS) {
    mep_ep_view_defaults(&view_);
    created_ = mep_ep_buffer_view(ep_, 0, &view_);
  }
  x_.resize(size_t{kTokens} * kHidden);
  out_.resize(x_.size());
  experts_.resize(size_t{kTokens} * kTopK);
}

MoeWorkload::~MoeWorkload() {
  (void)mep_ep_handle_destroy(handle_);
  (void)mep_ep_destroy(ep_);
}

// After MEP_PARTIAL.
void MoeWorkload::ask_who(mep_result_t result, uint64_t* members) const {
  if (result != MEP_PARTIAL) return;
  mep_op_info_t info;
  mep_op_info_defaults(&info);
  info.contributors = members;
  info.contributors_words = 1;
  if (mep_ep_last_op(ep_, 0, &info) != MEP_SUCCESS) *members = 0;
}

mep_result_t MoeWorkload::layer(uint64_t iteration, uint64_t* members, std::string* wrong) {
  const uint32_t experts = size_ * kLocalExperts;
  for (uint32_t token = 0; token < kTokens; ++token) {
    for (uint32_t k = 0; k < kTopK; ++k) {
      experts_[token * kTopK + k] = expert_of(iteration, rank_, token, k, experts);
    }
    for (uint32_t i = 0; i < kHidden; ++i) {
      x_[size_t{token} * kHidden + i] = value_of(iteration, rank_, token, i);
    }
  }
  mep_dispatch_send_t dispatch;
  mep_dispatch_receive_t received;
  mep_dispatch_send_defaults(&dispatch);
  mep_dispatch_receive_defaults(&received);
  dispatch.num_tokens = kTokens;
  dispatch.x = x_.data();
  dispatch.topk_idx = experts_.data();
  received.recv_total = &received_;
  mep_result_t result = mep_dispatch(handle_, &dispatch, &received, nullptr);
  if (result < 0) return result;
  const uint64_t expected = *members;
  ask_who(result, members);
  check_received(iteration, *members, wrong);
  // Others may have failed here: nobody combines before all have looked who is there.
  if (*members != expected) return result;
  auto* y = static_cast<float*>(view_.combine_input);
  const size_t rows = size_t{size_} * kTokens;
  for (uint32_t group = 0; group < groups(); ++group) {
    const auto count = static_cast<size_t>(rows_in(group));
    for (size_t at = group * rows; at < group * rows + count; ++at) {
      const float factor = factor_of_row(group, at);
      const auto* in = static_cast<const float*>(view_.recv_x) + at * kHidden;
      for (uint32_t i = 0; i < kHidden; ++i) y[at * kHidden + i] = in[i] * factor;
    }
  }
  mep_combine_send_t terms;
  mep_combine_receive_t combine;
  mep_combine_send_defaults(&terms);
  mep_combine_receive_defaults(&combine);
  terms.y = view_.combine_input;
  combine.out = out_.data();
  result = mep_combine(handle_, &terms, &combine, nullptr);
  if (result < 0) return result;
  ask_who(result, members);
  if (wrong->empty()) check_out(*members, wrong);
  return result;
}

void MoeWorkload::check_received(uint64_t iteration, uint64_t members, std::string* wrong) const {
  const uint32_t experts = size_ * kLocalExperts;
  const size_t rows = size_t{size_} * kTokens;
  for (uint32_t group = 0; group < groups(); ++group) {
    size_t row = 0;
    for (uint32_t source = 0; source < size_; ++source) {
      if (((members >> source) & 1u) == 0) continue;
      for (uint32_t token = 0; token < kTokens; ++token) {
        bool sent = false;
        for (uint32_t k = 0; k < kTopK; ++k) {
          sent = sent || belongs(expert_of(iteration, source, token, k, experts), group);
        }
        if (!sent) continue;
        const size_t at = group * rows + row++;
        const auto* x = static_cast<const float*>(view_.recv_x) + at * kHidden;
        bool same = view_.src_info[at] == static_cast<int32_t>(token) &&
                    names(at, iteration, source, token);
        for (uint32_t i = 0; i < kHidden; ++i) {
          same = same && x[i] == value_of(iteration, source, token, i);
        }
        if (!same) {
          *wrong = "dispatch: group " + std::to_string(group) + " row " + std::to_string(row - 1) +
                   " is not token " + std::to_string(token) + " of rank " + std::to_string(source);
          return;
        }
      }
    }
    if (row != static_cast<size_t>(rows_in(group))) {
      *wrong = "dispatch: group " + std::to_string(group) + " got " +
               std::to_string(rows_in(group)) + " rows, not " + std::to_string(row);
      return;
    }
  }
  if (high_throughput_) check_counts(wrong);
}

uint32_t MoeWorkload::groups() const {
  return high_throughput_ ? 1 : kLocalExperts;
}

int64_t MoeWorkload::rows_in(uint32_t group) const {
  return high_throughput_ ? received_ : view_.recv_count[group];
}

bool MoeWorkload::belongs(uint32_t expert, uint32_t group) const {
  return high_throughput_ ? expert / kLocalExperts == rank_
                          : expert == rank_ * kLocalExperts + group;
}

float MoeWorkload::factor_of_row(uint32_t group, size_t at) const {
  const uint32_t first = rank_ * kLocalExperts;
  if (!high_throughput_) return factor_of(first + group);
  float factor = 0;
  for (uint32_t k = 0; k < kTopK; ++k) {
    const int32_t local = view_.recv_topk_idx[at * kTopK + k];
    if (local >= 0) factor += factor_of(first + static_cast<uint32_t>(local));
  }
  return factor;
}

bool MoeWorkload::names(size_t at, uint64_t iteration, uint32_t source, uint32_t token) const {
  for (uint32_t k = 0; high_throughput_ && k < kTopK; ++k) {
    const uint32_t expert = expert_of(iteration, source, token, k, size_ * kLocalExperts);
    const int32_t local = belongs(expert, 0) ? static_cast<int32_t>(expert % kLocalExperts) : -1;
    if (view_.recv_topk_idx[at * kTopK + k] != local) return false;
  }
  return true;
}

// The rows were found right.
void MoeWorkload::check_counts(std::string* wrong) const {
  std::vector<int32_t> counts(kLocalExperts, 0);
  for (size_t at = 0; at < static_cast<size_t>(received_) * kTopK; ++at) {
    if (view_.recv_topk_idx[at] >= 0) ++counts[static_cast<size_t>(view_.recv_topk_idx[at])];
  }
  for (uint32_t local = 0; local < kLocalExperts; ++local) {
    if (view_.recv_count[local] == counts[local]) continue;
    *wrong = "dispatch: expert " + std::to_string(local) + " got " +
             std::to_string(view_.recv_count[local]) + " rows, not " +
             std::to_string(counts[local]);
    return;
  }
}

void MoeWorkload::check_out(uint64_t members, std::string* wrong) const {
  for (uint32_t token = 0; token < kTokens; ++token) {
    float factor = 0;
    for (uint32_t k = 0; k < kTopK; ++k) {
      const auto expert = static_cast<uint32_t>(experts_[token * kTopK + k]);
      if (((members >> (expert / kLocalExperts)) & 1u) != 0) factor += factor_of(expert);
    }
    for (uint32_t i = 0; i < kHidden; ++i) {
      const size_t at = size_t{token} * kHidden + i;
      if (out_[at] == x_[at] * factor) continue;
      *wrong = "combine: token " + std::to_string(token) + " column " + std::to_string(i) + " is " +
               std::to_string(out_[at]) + ", not " + std::to_string(x_[at] * factor);
      return;
    }
  }
}

}  // namespace mep::chaos
