// A rank that goes through rounds of dispatch, expert and combine of an EpCase and checks everything:
// every byte that must be there, every byte that must not be touched.
#pragma once

#include <memory>

#include "support/coll_ranks.hpp"
#include "support/ep_case.hpp"
#include "support/ep_halves.hpp"

namespace mep_test {

// Memory with a pattern and a guard behind it.
class Poisoned {
 public:
  explicit Poisoned(size_t bytes) : memory_(bytes + kGuard, kPoison), bytes_(bytes) {}
  uint8_t* data() { return memory_.data(); }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(memory_.data());
  }
  size_t bytes() const { return bytes_; }
  void reset() { std::fill(memory_.begin(), memory_.end(), kPoison); }
  bool untouched(size_t begin, size_t end) const {
    for (size_t i = begin; i < end; ++i) {
      if (memory_[i] != kPoison) return false;
    }
    return true;
  }
  bool guard_intact() const { return untouched(bytes_, memory_.size()); }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr uint8_t kPoison = 0xa7;
  std::vector<uint8_t> memory_;
  size_t bytes_;
};

// One rank's work on one buffer in one round. The order of the steps is the caller's.
class EpRound {
 public:
  EpRound(const EpCase& c, int rank, mep_ep_t ep, uint32_t buffer, Report& report)
      : c_(c),
        rank_(rank),
        report_(report),
        recv_x_(rows() * c.wire_bytes()),
        recv_scales_(rows() * scale_stride()),
        recv_count_(c.local_experts * 4),
        recv_count_host_(c.local_experts * 4),
        src_info_(rows() * 4),
        layout_range_(size_t{c.local_experts} * static_cast<size_t>(c.ranks) * 8),
        status_(mep_op_status_size(c.ranks)),
        statistics_(c.local_experts, 0),
        expected_statistics_(c.local_experts, 0) {
    COLL_OK(report_, mep_ep_handle_create(ep, buffer, &handle_));
    mep_ep_view_defaults(&view_);
    COLL_OK(report_, mep_ep_buffer_view(ep, buffer, &view_));
  }
  ~EpRound() { COLL_OK(report_, mep_ep_handle_destroy(handle_)); }
  EpRound(const EpRound&) = delete;
  EpRound& operator=(const EpRound&) = delete;

  mep_ep_handle_t handle() const { return handle_; }

  void begin(uint64_t round) {
    round_ = round;
    tokens_ = c_.tokens(rank_, round);
    make_inputs();
  }

  mep_result_t dispatch(Halves halves) {
    DispatchTokens send;
    DispatchRows receive;
    if (sends(halves)) set_inputs(&send);
    if (receives(halves)) set_outputs(&receive);
    const mep_result_t result =
        dispatch_halves(handle_, if_sends(halves, send), if_receives(halves, receive), nullptr);
    // The memory that was sent is the caller's again.
    if (!receives(halves)) scribble();
    return result;
  }

  // gone: sources whose rows are missing.
  void check_received(const std::vector<uint8_t>& gone = {}) {
    int64_t total = 0;
    for (uint32_t local = 0; local < c_.local_experts; ++local) {
      total += check_expert(local, c_.arrivals(place(local), round_, gone), gone);
    }
    COLL_CHECK(report_, recv_total_ == total);
    COLL_CHECK(report_, statistics_ == expected_statistics_);
    for (const Poisoned* memory : {&recv_x_, &recv_scales_, &recv_count_, &recv_count_host_,
                                   &src_info_, &layout_range_, &status_}) {
      COLL_CHECK(report_, memory->guard_intact());
    }
    check_status(gone);
  }

  // Writes y for every row that arrived, where combine will read it.
  void run_experts(const std::vector<uint8_t>& gone = {}) {
    y_ = std::make_unique<Poisoned>(c_.own_memory ? rows() * c_.combine_bytes() : 0);
    uint8_t* y = c_.own_memory ? y_->data() : static_cast<uint8_t*>(view_.combine_input);
    for (uint32_t local = 0; local < c_.local_experts; ++local) {
      std::vector<uint32_t> next(static_cast<size_t>(c_.ranks), 0);
      for (const ArrivedRow& row : c_.arrivals(place(local), round_, gone)) {
        const size_t index = first_row(local, row.source) + next[static_cast<size_t>(row.source)]++;
        const Bytes made = c_.y_row(place(local), row.source, round_, row.token);
        std::memcpy(y + (local * c_.rows_per_expert() + index) * c_.combine_bytes(), made.data(),
                    made.size());
      }
    }
  }

  mep_result_t combine(Halves halves, uint32_t flags = 0) {
    CombineTerms send;
    CombineSums receive;
    combine_weights_ = c_.weights(rank_, round_, true);
    bias_ = c_.bias_row(round_);
    const size_t stride = c_.combine_bytes() + (c_.strided ? 48 : 0);
    if (sends(halves)) send.y = c_.own_memory ? y_->data() : view_.combine_input;
    if (receives(halves)) {
      out_ = std::make_unique<Poisoned>(tokens_ * stride);
      receive.flags = flags;
      receive.out = out_->data();
      receive.out_stride_bytes = c_.strided ? stride : 0;
      receive.weights = c_.combine_weights ? combine_weights_.data() : nullptr;
      receive.bias = c_.bias ? bias_.data() : nullptr;
      receive.op_status = status_.as<mep_op_status_t>();
      receive.op_status_bytes = status_.bytes();
    }
    const mep_result_t result =
        combine_halves(handle_, if_sends(halves, send), if_receives(halves, receive), nullptr);
    if (!receives(halves) && c_.own_memory) y_->reset();
    return result;
  }

  void check_combined(const std::vector<uint8_t>& gone = {}, bool renormalize = false) {
    const size_t stride = c_.combine_bytes() + (c_.strided ? 48 : 0);
    for (uint32_t token = 0; token < tokens_; ++token) {
      const Bytes expected = c_.combined_row(rank_, round_, token, renormalize, gone);
      const uint8_t* actual = out_->data() + token * stride;
      if (std::memcmp(expected.data(), actual, expected.size()) != 0) {
        size_t at = 0;
        while (expected[at] == actual[at]) ++at;
        report_.add("%s: round %llu rank %d token %u: combined byte %zu is 0x%02x, not 0x%02x",
                    c_.describe().c_str(), static_cast<unsigned long long>(round_), rank_, token,
                    at, actual[at], expected[at]);
        return;
      }
      if (c_.strided) {
        COLL_CHECK(report_,
                   out_->untouched(token * stride + c_.combine_bytes(), (token + 1) * stride));
      }
    }
    COLL_CHECK(report_, out_->guard_intact());
  }

  size_t rows() const { return c_.local_experts * c_.rows_per_expert(); }

 private:
  uint32_t place(uint32_t local) const {
    return static_cast<uint32_t>(rank_) * c_.local_experts + local;
  }
  size_t scale_stride() const { return c_.scale_bytes() + (c_.strided ? 8 : 0); }
  size_t first_row(uint32_t local, int source) const {
    const size_t index = local * static_cast<size_t>(c_.ranks) + static_cast<size_t>(source);
    return static_cast<size_t>(view_.layout_range[index].begin);
  }

  // `gone`: whose part is not in the result. The bitmap of an error has the ranks that went instead.
  void check_status(const std::vector<uint8_t>& gone) {
    const auto* status = status_.as<mep_op_status_t>();
    const uint64_t* failed = mep_op_status_failed(status);
    COLL_CHECK(report_, status->version == MEP_OP_STATUS_VERSION && status->reserved == 0);
    COLL_CHECK(report_, status->failed_words == (static_cast<uint32_t>(c_.ranks) + 63) / 64);
    if (gone.empty()) COLL_CHECK(report_, status->result == MEP_SUCCESS);
    uint32_t count = 0;
    for (size_t source = 0; source < gone.size(); ++source) {
      const bool told = ((failed[source / 64] >> (source % 64)) & 1) != 0;
      COLL_CHECK(report_, status->result < 0 || told == (gone[source] != 0));
      count += told ? 1 : 0;
    }
    COLL_CHECK(report_, status->failed_count == count);
  }

  void make_inputs() {
    x_stride_ = c_.input_bytes() + (c_.strided ? 32 : 0);
    x_scales_stride_ = c_.scale_bytes() + (c_.strided ? 4 : 0);
    x_.assign(tokens_ * x_stride_ + 1, 0x5a);
    x_scales_.assign(tokens_ * x_scales_stride_ + 1, 0x5a);
    for (uint32_t token = 0; token < tokens_; ++token) {
      const Bytes row = c_.x_row(rank_, round_, token);
      std::memcpy(x_.data() + token * x_stride_, row.data(), row.size());
      if (!mep_reference::has_scales(c_.input)) continue;
      const Bytes scales = c_.x_scales_row(rank_, round_, token);
      std::memcpy(x_scales_.data() + token * x_scales_stride_, scales.data(), scales.size());
    }
    wide_ = c_.routing(rank_, round_);
    narrow_.assign(wide_.begin(), wide_.end());
    weights_ = c_.weights(rank_, round_, false);
  }

  void set_inputs(DispatchTokens* args) {
    args->num_tokens = tokens_;
    args->x = x_.data();
    args->x_stride_bytes = c_.strided ? x_stride_ : 0;
    args->x_scales = mep_reference::has_scales(c_.input) ? x_scales_.data() : nullptr;
    args->x_scales_stride_bytes = c_.strided ? x_scales_stride_ : 0;
    args->topk_idx = c_.wide_indices ? static_cast<const void*>(wide_.data()) : narrow_.data();
    args->topk_idx_type = c_.wide_indices ? mep_dtype_t{0} : mep_dtype_t{MEP_INT32};
    args->topk_weights = c_.dispatch_weights ? weights_.data() : nullptr;
  }

  void set_outputs(DispatchRows* args) {
    for (Poisoned* memory : {&recv_x_, &recv_scales_, &recv_count_, &recv_count_host_, &src_info_,
                             &layout_range_, &status_}) {
      memory->reset();
    }
    recv_total_ = -1;
    args->recv_total = &recv_total_;
    args->statistics = statistics_.data();
    args->op_status = status_.as<mep_op_status_t>();
    args->op_status_bytes = status_.bytes();
    if (!c_.own_memory) return;
    args->recv_x = recv_x_.data();
    args->recv_capacity = recv_x_.bytes();
    if (c_.has_scales()) {
      args->recv_scales = recv_scales_.data();
      args->recv_scales_token_stride_bytes = c_.strided ? scale_stride() : 0;
      args->recv_scales_group_stride_bytes = 0;
    }
    args->recv_count = recv_count_.as<int32_t>();
    args->recv_count_host = recv_count_host_.as<int32_t>();
    args->src_info = src_info_.as<int32_t>();
    args->layout_range = layout_range_.as<mep_range_t>();
  }

  void scribble() {
    std::fill(x_.begin(), x_.end(), 0xee);
    std::fill(x_scales_.begin(), x_scales_.end(), 0xee);
    std::fill(wide_.begin(), wide_.end(), int64_t{12345678});
    std::fill(narrow_.begin(), narrow_.end(), 12345678);
    std::fill(weights_.begin(), weights_.end(), 1e30f);
  }

  int64_t check_expert(uint32_t local, const std::vector<ArrivedRow>& rows,
                       const std::vector<uint8_t>& gone) {
    const int32_t* counts = c_.own_memory ? recv_count_.as<int32_t>() : view_.recv_count;
    const mep_range_t* ranges =
        c_.own_memory ? layout_range_.as<mep_range_t>() : view_.layout_range;
    const auto want = static_cast<int32_t>(rows.size());
    if (counts[local] != want) {
      report_.add("%s: round %llu rank %d expert %u has %d rows, not %d", c_.describe().c_str(),
                  static_cast<unsigned long long>(round_), rank_, local, counts[local], want);
      return want;
    }
    if (c_.own_memory) COLL_CHECK(report_, recv_count_host_.as<int32_t>()[local] == want);
    expected_statistics_[local] += want;
    std::vector<uint8_t> used(c_.rows_per_expert(), 0);
    size_t next = 0;
    size_t begin = 0;
    for (int source = 0; source < c_.ranks; ++source) {
      if (c_.slotted) begin = static_cast<size_t>(source) * c_.max_tokens;
      size_t count = 0;
      while (next + count < rows.size() && rows[next + count].source == source) ++count;
      const size_t index = local * static_cast<size_t>(c_.ranks) + static_cast<size_t>(source);
      const bool is_gone = !gone.empty() && gone[static_cast<size_t>(source)] != 0;
      const auto [said_count, said_begin] = ranges[index];
      if (is_gone) COLL_CHECK(report_, said_count == 0);
      if (!is_gone) {
        COLL_CHECK(report_, said_begin == static_cast<int32_t>(begin) &&
                                said_count == static_cast<int32_t>(count));
      }
      for (size_t i = 0; i < count; ++i) {
        used[begin + i] = 1;
        check_row(local, begin + i, rows[next + i]);
      }
      begin += count;
      next += count;
    }
    if (!c_.own_memory) return want;
    for (size_t i = 0; i < used.size(); ++i) {
      if (used[i] != 0) continue;
      const size_t row = local * c_.rows_per_expert() + i;
      COLL_CHECK(report_, recv_x_.untouched(row * c_.wire_bytes(), (row + 1) * c_.wire_bytes()));
      COLL_CHECK(report_, src_info_.untouched(row * 4, row * 4 + 4));
      COLL_CHECK(report_, recv_scales_.untouched(row * scale_stride(), (row + 1) * scale_stride()));
    }
    return want;
  }

  void check_row(uint32_t local, size_t index, const ArrivedRow& expected) {
    const size_t row = local * c_.rows_per_expert() + index;
    const WireRow wire = c_.wire_row(expected.source, round_, expected.token);
    const uint8_t* x = c_.own_memory ? recv_x_.data() : static_cast<const uint8_t*>(view_.recv_x);
    if (std::memcmp(x + row * c_.wire_bytes(), wire.values.data(), wire.values.size()) != 0) {
      report_.add("%s: round %llu rank %d expert %u row %zu is not token %u of rank %d",
                  c_.describe().c_str(), static_cast<unsigned long long>(round_), rank_, local,
                  index, expected.token, expected.source);
    }
    const int32_t* info = c_.own_memory ? src_info_.as<int32_t>() : view_.src_info;
    COLL_CHECK(report_, info[row] == static_cast<int32_t>(expected.token));
    if (!c_.has_scales()) return;
    const uint8_t* scales =
        c_.own_memory ? recv_scales_.data() : static_cast<const uint8_t*>(view_.recv_scales);
    const size_t stride = c_.own_memory ? scale_stride() : c_.scale_bytes();
    if (std::memcmp(scales + row * stride, wire.scales.data(), wire.scales.size()) != 0) {
      report_.add("%s: round %llu rank %d expert %u row %zu has wrong scales",
                  c_.describe().c_str(), static_cast<unsigned long long>(round_), rank_, local,
                  index);
    }
  }

  const EpCase& c_;
  const int rank_;
  Report& report_;
  mep_ep_handle_t handle_ = nullptr;
  mep_ep_view_t view_{};
  uint64_t round_ = 0;
  uint32_t tokens_ = 0;
  size_t x_stride_ = 0, x_scales_stride_ = 0;
  Bytes x_, x_scales_, bias_;
  std::vector<int64_t> wide_;
  std::vector<int32_t> narrow_;
  std::vector<float> weights_, combine_weights_;
  Poisoned recv_x_, recv_scales_, recv_count_, recv_count_host_, src_info_, layout_range_, status_;
  int64_t recv_total_ = 0;
  std::vector<int64_t> statistics_, expected_statistics_;
  std::unique_ptr<Poisoned> y_, out_;
};

// Rounds of one case on one rank. `delays`: random pauses before every phase.
inline void run_ep_rounds(const EpCase& c, int rank, mep_ep_t ep, uint64_t rounds, bool delays,
                          Report& report) {
  RandomStream own(mix(c.seed, 1000 + static_cast<uint64_t>(rank)));
  const auto pause = [&] {
    if (delays && own.one_in(3)) pause_us(static_cast<unsigned>(own.below(2000)));
  };
  std::vector<std::unique_ptr<EpRound>> buffers;
  for (uint32_t i = 0; i < c.buffers; ++i) {
    buffers.push_back(std::make_unique<EpRound>(c, rank, ep, i, report));
  }
  for (uint64_t group = 0; group * c.buffers < rounds && !report.bad(); ++group) {
    RandomStream plan = c.stream(20, group);  // the same on all ranks
    const bool apart = plan.one_in(2);
    const bool combines = !plan.one_in(5);
    for (uint32_t i = 0; i < c.buffers; ++i) {
      buffers[i]->begin(group * c.buffers + i);
      pause();
      COLL_OK(report, buffers[i]->dispatch(apart ? Halves::kSend : Halves::kBoth));
    }
    for (uint32_t i = 0; i < c.buffers; ++i) {
      pause();
      if (apart) COLL_OK(report, buffers[i]->dispatch(Halves::kReceive));
      buffers[i]->check_received();
      if (report.bad()) return;
      if (!combines) continue;
      buffers[i]->run_experts();
      pause();
      COLL_OK(report, buffers[i]->combine(apart ? Halves::kSend : Halves::kBoth));
    }
    for (uint32_t i = 0; combines && i < c.buffers && !report.bad(); ++i) {
      pause();
      if (apart) COLL_OK(report, buffers[i]->combine(Halves::kReceive));
      buffers[i]->check_combined();
    }
  }
}

inline void run_ep_case(const EpCase& c, int rank, mep_comm_t comm, uint64_t rounds, bool delays,
                        Report& report) {
  const mep_ep_config_t config = c.config();
  mep_ep_t ep = nullptr;
  COLL_OK(report, mep_ep_create(comm, &config, &ep));
  if (ep == nullptr) return;
  if (c.mapped_experts) {
    const std::vector<int32_t> map = c.expert_map();
    COLL_OK(report, mep_ep_set_expert_map(ep, map.data()));
  }
  run_ep_rounds(c, rank, ep, rounds, delays, report);
  COLL_OK(report, mep_ep_destroy(ep));
}

// run(seed, ranks, rank, comm, findings) for random cases on worlds of threads of several sizes.
template <typename Run>
void on_random_cases(uint32_t flags, size_t cases, uint64_t first_seed, Run&& run) {
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    Report report;
    with_rank_threads(ranks, patient_config(flags), report,
                      [&](int rank, mep_comm_t comm, Report& findings) {
                        for (size_t i = 0; i < cases && !findings.bad(); ++i) {
                          const uint64_t seed =
                              mix(test_seed() + first_seed, i * 100 + static_cast<uint64_t>(ranks));
                          run(seed, ranks, rank, comm, findings);
                        }
                      });
    report.require_clean();
  }
}

}  // namespace mep_test
