// Dispatch and combine in high throughput on ranks as threads, mapped and by put alone, against a plain reference:
// each token once to each rank, replays, other layouts of experts, and a rank that goes.
// It alone finds what differs from low latency. 6 s.
// labels: gate threads tsan asan
#include "support/ep_halves.hpp"
#include "support/ep_rounds.hpp"

using namespace mep_test;

namespace {

// A row that one rank gets.
struct TokenRow {
  int source;
  uint32_t token;
  std::vector<int32_t> local;  // [K]
  std::vector<float> weights;  // [K]
};

struct ThroughputCase {
  EpCase ep;
  uint32_t alignment = 1;

  mep_ep_config_t config() const {
    mep_ep_config_t config = ep.config();
    config.layout = MEP_EP_HIGH_THROUGHPUT;
    config.expert_alignment = alignment == 1 ? 0 : alignment;
    return config;
  }

  // Whether a token with these places has a row at `rank`.
  bool goes_to(int rank, const int64_t* places) const {
    const int64_t first = int64_t{rank} * ep.local_experts;
    return mep_reference::goes_to(places, ep.top_k, first, first + ep.local_experts);
  }

  std::vector<TokenRow> arrivals(int rank, uint64_t round, int gone) const {
    std::vector<TokenRow> rows;
    const int64_t first = int64_t{rank} * ep.local_experts;
    for (int source = 0; source < ep.ranks; ++source) {
      if (source == gone) continue;
      const std::vector<int64_t> places = ep.places_of(source, round);
      const std::vector<float> weights = ep.weights(source, round, false);
      for (const uint32_t token : tokens_for(places, ep.top_k, first, first + ep.local_experts)) {
        TokenRow row{source, token, {}, {}};
        for (uint32_t k = 0; k < ep.top_k; ++k) {
          const size_t at = size_t{token} * ep.top_k + k;
          const int64_t local = places[at] - first;
          const bool is_here = local >= 0 && local < ep.local_experts;
          row.local.push_back(is_here ? static_cast<int32_t>(local) : -1);
          const float weight = ep.dispatch_weights ? weights[at] : 1.0f;
          row.weights.push_back(is_here ? weight : 0.0f);
        }
        rows.push_back(row);
      }
    }
    return rows;
  }

  // The output of `rank` for a token of `source`.
  Bytes y_row(int rank, int source, uint64_t round, uint32_t token) const {
    return ep.y_row(static_cast<uint32_t>(rank), source, round, token);
  }

  Bytes combined_row(int rank, uint64_t routed, uint64_t round, uint32_t token, int gone) const {
    const std::vector<int64_t> places = ep.places_of(rank, routed);
    RowSum sum(ep.combine, ep.hidden);
    for (int owner = 0; owner < ep.ranks; ++owner) {
      if (owner != gone && goes_to(owner, &places[size_t{token} * ep.top_k])) {
        sum.add(y_row(owner, rank, round, token).data());
      }
    }
    if (ep.bias) sum.add(ep.bias_row(round).data());
    return sum.row();
  }
};

ThroughputCase random_case(uint64_t seed, int ranks) {
  ThroughputCase c{random_ep_case(seed, ranks)};
  RandomStream random(mix(seed, 78));
  c.ep.slotted = false;
  c.ep.combine_weights = false;
  constexpr uint32_t kAlignments[] = {1, 1, 4, 128};
  c.alignment = kAlignments[random.below(4)];
  return c;
}

// One rank on one buffer.
class Rank {
 public:
  Rank(const ThroughputCase& c, int rank, mep_ep_t ep, uint32_t buffer, Report& report)
      : c_(c), rank_(rank), report_(report) {
    COLL_OK(report_, mep_ep_handle_create(ep, buffer, &handle_));
    mep_ep_view_defaults(&view_);
    COLL_OK(report_, mep_ep_buffer_view(ep, buffer, &view_));
    statistics_.assign(c.ep.local_experts, 0);
    expected_statistics_ = statistics_;
  }
  ~Rank() { COLL_OK(report_, mep_ep_handle_destroy(handle_)); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // The tokens of `round`, by the routing of `routed`: another one replays it.
  mep_result_t dispatch(uint64_t routed, uint64_t round, Halves halves) {
    DispatchTokens send;
    DispatchRows receive;
    const EpCase& ep = c_.ep;
    routed_ = routed;
    round_ = round;
    const uint32_t tokens = ep.tokens(rank_, routed);
    if (sends(halves)) {
      x_.assign(tokens * ep.input_bytes() + 1, 0);
      scales_.assign(tokens * ep.scale_bytes() + 1, 0);
      for (uint32_t token = 0; token < tokens; ++token) {
        const Bytes row = ep.x_row(rank_, round, token);
        std::memcpy(x_.data() + token * ep.input_bytes(), row.data(), row.size());
        if (!mep_reference::has_scales(ep.input)) continue;
        const Bytes scales = ep.x_scales_row(rank_, round, token);
        std::memcpy(scales_.data() + token * ep.scale_bytes(), scales.data(), scales.size());
      }
      wide_ = ep.routing(rank_, routed);
      weights_ = ep.weights(rank_, routed, false);
      send.num_tokens = tokens;
      send.x = x_.data();
      send.x_scales = mep_reference::has_scales(ep.input) ? scales_.data() : nullptr;
      send.flags = routed == round ? 0 : MEP_DISPATCH_REPLAY;
      send.topk_idx = routed == round ? wide_.data() : nullptr;
      send.topk_weights = routed == round && ep.dispatch_weights ? weights_.data() : nullptr;
    }
    const size_t rows = static_cast<size_t>(ep.ranks) * ep.max_tokens;
    if (receives(halves) && ep.own_memory) {
      recv_x_ = std::make_unique<Poisoned>(rows * ep.wire_bytes());
      recv_topk_idx_ = std::make_unique<Poisoned>(rows * ep.top_k * 4);
      recv_topk_weights_ = std::make_unique<Poisoned>(rows * ep.top_k * 4);
      receive.recv_x = recv_x_->data();
      receive.recv_topk_idx = recv_topk_idx_->as<int32_t>();
      receive.recv_topk_weights = recv_topk_weights_->as<float>();
    }
    counts_.assign(ep.local_experts, -1);
    receive.recv_count = counts_.data();
    receive.recv_total = &total_;
    receive.statistics = statistics_.data();
    const mep_result_t result =
        dispatch_halves(handle_, if_sends(halves, send), if_receives(halves, receive), nullptr);
    // The memory that was sent is the caller's again.
    std::fill(x_.begin(), x_.end(), 0xee);
    std::fill(wide_.begin(), wide_.end(), int64_t{12345678});
    return result;
  }

  // The routing of the last dispatch, and no rows: what is combined next is of `round`.
  mep_result_t dispatch_again(uint64_t round) {
    round_ = round;
    const uint32_t tokens = c_.ep.tokens(rank_, routed_);
    mep_dispatch_options_t options;
    mep_dispatch_options_defaults(&options);
    options.flags = MEP_DISPATCH_REPLAY | MEP_DISPATCH_NO_ROWS;
    return mep_dispatch(handle_, nullptr, nullptr, nullptr, tokens, nullptr, &options, nullptr);
  }

  void check_received(int gone = -1) {
    const EpCase& ep = c_.ep;
    const std::vector<TokenRow> rows = c_.arrivals(rank_, routed_, gone);
    const auto total = static_cast<int64_t>(rows.size());
    if (total_ != total) {
      report_.add("%s: round %llu rank %d: %lld rows, not %lld", ep.describe().c_str(),
                  static_cast<unsigned long long>(round_), rank_, static_cast<long long>(total_),
                  static_cast<long long>(total));
      return;
    }
    const uint8_t* x = ep.own_memory ? recv_x_->data() : static_cast<const uint8_t*>(view_.recv_x);
    const int32_t* idx = ep.own_memory ? recv_topk_idx_->as<int32_t>() : view_.recv_topk_idx;
    const float* weights =
        ep.own_memory ? recv_topk_weights_->as<float>() : view_.recv_topk_weights;
    const auto* scales = static_cast<const uint8_t*>(view_.recv_scales);
    std::vector<int64_t> counts(ep.local_experts, 0);
    std::vector<int32_t> of_source(static_cast<size_t>(ep.ranks), 0);
    for (size_t i = 0; i < rows.size(); ++i) {
      const TokenRow& row = rows[i];
      const WireRow wire = ep.wire_row(row.source, round_, row.token);
      const bool is_same =
          std::memcmp(x + i * ep.wire_bytes(), wire.values.data(), wire.values.size()) == 0 &&
          (!ep.has_scales() ||
           std::memcmp(scales + i * ep.scale_bytes(), wire.scales.data(), wire.scales.size()) == 0);
      if (!is_same) {
        report_.add("%s: round %llu rank %d: row %zu is not token %u of rank %d",
                    ep.describe().c_str(), static_cast<unsigned long long>(round_), rank_, i,
                    row.token, row.source);
        return;
      }
      COLL_CHECK(report_, view_.src_info[i] == static_cast<int32_t>(row.token));
      ++of_source[static_cast<size_t>(row.source)];
      for (uint32_t k = 0; k < ep.top_k; ++k) {
        COLL_CHECK(report_, idx[i * ep.top_k + k] == row.local[k]);
        COLL_CHECK(report_, weights[i * ep.top_k + k] == row.weights[k]);
        if (row.local[k] >= 0) ++counts[static_cast<size_t>(row.local[k])];
      }
    }
    int32_t begin = 0;
    for (size_t source = 0; source < of_source.size(); ++source) {
      const mep_range_t& range = view_.layout_range[source];
      if (static_cast<int>(source) != gone) {
        COLL_CHECK(report_, range.begin == begin && range.count == of_source[source]);
      }
      begin += of_source[source];
    }
    for (uint32_t expert = 0; expert < ep.local_experts; ++expert) {
      const int64_t aligned =
          (counts[expert] + c_.alignment - 1) / c_.alignment * int64_t{c_.alignment};
      COLL_CHECK(report_, counts_[expert] == aligned && view_.recv_count[expert] == aligned);
      expected_statistics_[expert] += counts[expert];
    }
    COLL_CHECK(report_, statistics_ == expected_statistics_);
    if (ep.own_memory) {
      COLL_CHECK(report_, recv_x_->untouched(rows.size() * ep.wire_bytes(), recv_x_->bytes()));
      COLL_CHECK(report_, recv_x_->guard_intact() && recv_topk_idx_->guard_intact());
      COLL_CHECK(report_, recv_topk_weights_->guard_intact());
    }
  }

  mep_result_t combine(Halves halves, int gone = -1) {
    const EpCase& ep = c_.ep;
    CombineTerms send;
    CombineSums receive;
    if (sends(halves)) {
      const std::vector<TokenRow> rows = c_.arrivals(rank_, routed_, gone);
      y_.assign(rows.size() * ep.combine_bytes() + 1, 0);
      uint8_t* y = ep.own_memory ? y_.data() : static_cast<uint8_t*>(view_.combine_input);
      for (size_t i = 0; i < rows.size(); ++i) {
        const Bytes made = c_.y_row(rank_, rows[i].source, round_, rows[i].token);
        std::memcpy(y + i * ep.combine_bytes(), made.data(), made.size());
      }
      send.y = y;
      returned_.clear();
      for (const TokenRow& row : rows) {
        returned_.insert(returned_.end(), row.weights.begin(), row.weights.end());
        for (uint32_t k = 0; k < ep.top_k; ++k) {
          // Another value in each round, so that an old one is seen.
          if (row.local[k] >= 0) *(returned_.end() - ep.top_k + k) += static_cast<float>(round_);
        }
      }
      send.topk_weights = gives_weights() ? returned_.data() : nullptr;
    }
    if (receives(halves)) {
      out_ = std::make_unique<Poisoned>(ep.tokens(rank_, routed_) * ep.combine_bytes());
      bias_ = ep.bias_row(round_);
      receive.out = out_->data();
      weights_back_ = std::make_unique<Poisoned>(size_t{ep.tokens(rank_, routed_)} * ep.top_k * 4);
      receive.recv_topk_weights = weights_back_->as<float>();
      receive.bias = ep.bias ? bias_.data() : nullptr;
    }
    return combine_halves(handle_, if_sends(halves, send), if_receives(halves, receive), nullptr);
  }

  void check_combined(int gone = -1) {
    const EpCase& ep = c_.ep;
    for (uint32_t token = 0; token < ep.tokens(rank_, routed_); ++token) {
      const Bytes expected = c_.combined_row(rank_, routed_, round_, token, gone);
      if (std::memcmp(expected.data(), out_->data() + token * expected.size(), expected.size()) ==
          0)
        continue;
      report_.add("%s: round %llu rank %d token %u: wrong sum", ep.describe().c_str(),
                  static_cast<unsigned long long>(round_), rank_, token);
      return;
    }
    COLL_CHECK(report_, out_->guard_intact() && weights_back_->guard_intact());
    const std::vector<float> weights = ep.weights(rank_, routed_, false);
    const std::vector<int64_t> places = ep.places_of(rank_, routed_);
    for (size_t at = 0; at < places.size(); ++at) {
      const bool came = places[at] >= 0 && places[at] / ep.local_experts != gone && gives_weights();
      const float weight = ep.dispatch_weights ? weights[at] : 1.0f;
      const float expected = came ? weight + static_cast<float>(round_) : 0.0f;
      COLL_CHECK(report_, weights_back_->as<float>()[at] == expected);
    }
  }

 private:
  bool gives_weights() const { return round_ % 3 != 2; }

  const ThroughputCase& c_;
  const int rank_;
  Report& report_;
  mep_ep_handle_t handle_ = nullptr;
  mep_ep_view_t view_{};
  uint64_t routed_ = 0, round_ = 0;
  Bytes x_, scales_, y_, bias_;
  std::vector<int64_t> wide_;
  std::vector<float> weights_;
  std::vector<float> returned_;
  std::vector<int32_t> counts_;
  int64_t total_ = -1;
  std::vector<int64_t> statistics_, expected_statistics_;
  std::unique_ptr<Poisoned> recv_x_, recv_topk_idx_, recv_topk_weights_, out_, weights_back_;
};

mep_ep_t make_ep(const ThroughputCase& c, mep_comm_t comm, Report& report) {
  const mep_ep_config_t config = c.config();
  mep_ep_t ep = nullptr;
  COLL_OK(report, mep_ep_create(comm, &config, &ep));
  if (ep != nullptr && c.ep.mapped_experts) {
    const std::vector<int32_t> map = c.ep.expert_map();
    COLL_OK(report, mep_ep_set_expert_map(ep, map.data()));
  }
  return ep;
}

void run_case(const ThroughputCase& c, int rank, mep_comm_t comm, bool delays, Report& report) {
  mep_ep_t ep = make_ep(c, comm, report);
  if (ep == nullptr) return;
  RandomStream own(mix(c.ep.seed, 2000 + static_cast<uint64_t>(rank)));
  const auto pause = [&] {
    if (delays && own.one_in(3)) pause_us(static_cast<unsigned>(own.below(2000)));
  };
  {
    Rank buffer(c, rank, ep, c.ep.buffers - 1, report);
    Rank other(c, rank, ep, c.ep.buffers - 1, report);  // another handle of the same buffer
    uint64_t routed = 0;
    for (uint64_t round = 0; round < 8 && !report.bad(); ++round) {
      RandomStream plan = c.ep.stream(21, round);  // the same on all ranks
      const bool replays = round != 0 && plan.one_in(2);
      const bool apart = plan.one_in(2);
      if (!replays) routed = round;
      pause();
      COLL_OK(report, buffer.dispatch(routed, round, apart ? Halves::kSend : Halves::kBoth));
      pause();
      if (apart) COLL_OK(report, buffer.dispatch(routed, round, Halves::kReceive));
      buffer.check_received();
      if (report.bad() || plan.one_in(4)) continue;
      pause();
      COLL_OK(report, buffer.combine(apart ? Halves::kSend : Halves::kBoth));
      pause();
      if (apart) COLL_OK(report, buffer.combine(Halves::kReceive));
      buffer.check_combined();
      if (plan.one_in(3)) COLL_OK(report, other.dispatch(50 + round, 50 + round, Halves::kBoth));
      if (plan.one_in(2)) continue;
      pause();
      COLL_OK(report, buffer.dispatch_again(100 + round));
      pause();
      COLL_OK(report, buffer.combine(Halves::kBoth));
      buffer.check_combined();
    }
  }
  COLL_OK(report, mep_ep_destroy(ep));
}

void run_cases(uint32_t flags, bool delays, uint64_t first_seed) {
  on_random_cases(flags, slice(delays ? 3 : 8, 1200), first_seed,
                  [=](uint64_t seed, int ranks, int rank, mep_comm_t comm, Report& findings) {
                    run_case(random_case(seed, ranks), rank, comm, delays, findings);
                  });
}

void mapped(void**) {
  run_cases(0, false, 11);
}
void by_put_alone(void**) {
  run_cases(kPutOnly, false, 12);
}
void mapped_with_delays(void**) {
  run_cases(0, true, 13);
}
void by_put_alone_with_delays(void**) {
  run_cases(kPutOnly, true, 14);
}

// DeepSeek-V3's shape, so that the paths past the caches are taken.
void large_rows(void**) {
  for (const bool own_memory : {false, true}) {
    ThroughputCase c;
    c.ep.seed = test_seed() + (own_memory ? 1 : 0);
    c.ep.ranks = 2;
    c.ep.max_tokens = 64;
    c.ep.hidden = 7168;
    c.ep.top_k = 8;
    c.ep.experts = 256;
    c.ep.local_experts = 128;
    c.ep.own_memory = own_memory;
    Report report;
    with_rank_threads(2, patient_config(0), report,
                      [&](int rank, mep_comm_t comm, Report& findings) {
                        run_case(c, rank, comm, false, findings);
                      });
    report.require_clean();
  }
}

// A rank ends: the call that meets it fails, later ones go on without it, and its part of the sums is missing.
void a_rank_goes(void**) {
  constexpr int kSize = 4;
  constexpr int kGone = 2;
  for (const uint32_t flags : {0u, kPutOnly}) {
    ThroughputCase c = random_case(mix(test_seed(), 15), kSize);
    c.ep.mapped_experts = false;
    c.ep.replicas = 1;
    c.ep.on_loss = MEP_EP_LOSS_PARTIAL;
    Report report;
    with_rank_threads(
        kSize, patient_config(flags), report, [&](int rank, mep_comm_t comm, Report& findings) {
          mep_ep_t ep = make_ep(c, comm, findings);
          if (ep == nullptr) return;
          {
            Rank buffer(c, rank, ep, 0, findings);
            COLL_OK(findings, buffer.dispatch(0, 0, Halves::kBoth));
            buffer.check_received();
            COLL_OK(findings, buffer.combine(Halves::kBoth));
            buffer.check_combined();
            // The rank goes when all have ended this round: a death would cut what is under way.
            COLL_OK(findings, mep_barrier(comm, nullptr));
            if (rank == kGone) {
              COLL_OK(findings, mep_comm_abort(comm));
            } else {
              mep_result_t result = MEP_SUCCESS;
              uint64_t round = 1;
              // Until the death has been reported: each rank by its own data.
              for (; result == MEP_SUCCESS && round < 1000; ++round) {
                result = buffer.dispatch(round, round, Halves::kBoth);
              }
              COLL_CHECK(findings, result == MEP_ERR_PEER_FAILED || result == MEP_PARTIAL);
              COLL_CHECK(findings,
                         buffer.dispatch(0, round, Halves::kBoth) == MEP_ERR_INVALID_ARGUMENT);
              // Ranks have met the death in different rounds; a collective brings them together.
              while (mep_barrier(comm, nullptr) != MEP_SUCCESS) {
              }
              COLL_OK(findings, buffer.dispatch(5000, 5000, Halves::kBoth));
              buffer.check_received(kGone);
              const mep_result_t combined = buffer.combine(Halves::kBoth, kGone);
              COLL_CHECK(findings, combined == MEP_SUCCESS || combined == MEP_PARTIAL);
              buffer.check_combined(kGone);
              COLL_OK(findings, buffer.dispatch(5000, 5001, Halves::kBoth));
              buffer.check_received(kGone);
            }
          }
          (void)mep_ep_destroy(ep);
        });
    report.require_clean();
  }
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(mapped),
                              cmocka_unit_test(by_put_alone),
                              cmocka_unit_test(mapped_with_delays),
                              cmocka_unit_test(by_put_alone_with_delays),
                              cmocka_unit_test(large_rows),
                              cmocka_unit_test(a_rank_goes)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
