// Rounds of an EpCase in which one rank fails. Survivors check what each operation says of itself: the
// ranks that it names as missing, and no others, are missing from its data. After the first trouble
// all survivors agree on where to go on, and from then on every byte must be right again.
#pragma once

#include <type_traits>

#include "support/ep_rounds.hpp"

namespace mep_test {

inline constexpr uint64_t kRoundsAfter = 6;

// `Round` is one rank's work on one buffer in one round, as EpRound.
template <typename Problem, typename Round>
class FailingRunOf {
 public:
  FailingRunOf(const Problem& c, int rank, int victim, mep_comm_t comm, Report& report)
      : c_(c), rank_(rank), victim_(victim), comm_(comm), report_(report) {
    const mep_ep_config_t config = c.config();
    COLL_OK(report, mep_ep_create(comm, &config, &ep_));
    if (ep_ == nullptr) return;
    for (uint32_t i = 0; i < c.buffers; ++i) {
      buffers_.push_back(std::make_unique<Round>(c, rank, ep_, i, report));
    }
  }
  ~FailingRunOf() {
    buffers_.clear();
    if (ep_ != nullptr) COLL_OK(report_, mep_ep_destroy(ep_));
  }
  FailingRunOf(const FailingRunOf&) = delete;
  FailingRunOf& operator=(const FailingRunOf&) = delete;

  // The victim's life: goes on until `stop` says that it is enough, then returns.
  void live(const std::function<bool(uint64_t round, int step)>& stop) {
    for (uint64_t round = 0;; ++round) {
      Round& buffer = *buffers_[round % c_.buffers];
      buffer.begin(round);
      if (stop(round, 0) || buffer.dispatch(Halves::kSend) != MEP_SUCCESS) return;
      if (stop(round, 1) || buffer.dispatch(Halves::kReceive) != MEP_SUCCESS) return;
      if (stop(round, 2)) return;
      buffer.run_experts();
      if (buffer.combine(Halves::kSend) != MEP_SUCCESS) return;
      if (stop(round, 3) || buffer.combine(Halves::kReceive) != MEP_SUCCESS) return;
    }
  }

  // A survivor's: rounds until the failure was met and kRoundsAfter more were right.
  void survive() {
    uint64_t round = 0;
    uint64_t last = UINT64_MAX;
    while (round < last && !report_.bad()) {
      if (run_round(round)) {
        ++round;
        continue;
      }
      if (report_.bad()) return;
      if (last != UINT64_MAX) {
        report_.add("%s: rank %d met a second failure in round %llu", c_.describe().c_str(), rank_,
                    static_cast<unsigned long long>(round));
        return;
      }
      round = agree_and_go_on(round);
      last = round + kRoundsAfter;
    }
  }

 private:
  bool is_failure(mep_result_t result) {
    if (result == MEP_ERR_PEER_FAILED) return true;
    if (c_.on_loss != MEP_EP_LOSS_PARTIAL || result != MEP_PARTIAL) return false;
    // Only once the missing rank has left the view.
    uint32_t state = MEP_PEER_ALIVE;
    COLL_OK(report_, mep_comm_peer_state(comm_, victim_, &state));
    COLL_CHECK(report_,
               state == MEP_PEER_DEAD || state == MEP_PEER_EXCLUDED || state == MEP_PEER_LEFT);
    return true;
  }

  // Whether the buffer's last operation is another one than `before`. *lacking: ranks whose part is not in its result.
  bool ended_since(uint32_t buffer, const mep_op_info_t& before, mep_op_info_t* now,
                   uint64_t* lacking) {
    uint64_t contributors = 0;
    uint64_t failed = 0;
    mep_op_info_defaults(now);
    now->contributors = &contributors;
    now->contributors_words = 1;
    now->failed = &failed;
    now->failed_words = 1;
    const mep_result_t found = mep_ep_last_op(ep_, buffer, now);
    now->contributors = nullptr;
    now->failed = nullptr;
    if (found == MEP_ERR_NOT_FOUND) return false;
    COLL_CHECK(report_, found == MEP_SUCCESS);
    failed_ = failed;
    *lacking = ~contributors & ((uint64_t{1} << c_.ranks) - 1);
    // The error of a view change names the rank that went, whoever's part had not come by then. A combine may find by
    // itself that terms are missing.
    const bool by_change = now->result == MEP_ERR_PEER_FAILED && failed == uint64_t{1} << victim_;
    COLL_CHECK(report_, by_change || failed == *lacking);
    return now->seq != 0 && (now->epoch != before.epoch || now->seq != before.seq);
  }

  // A call that only tells of the change has no number, and names who went. False.
  bool is_report(const mep_op_info_t& info, mep_result_t result) {
    COLL_CHECK(report_, info.seq == 0 && info.result == result);
    COLL_CHECK(report_, failed_ == uint64_t{1} << victim_);
    return false;
  }

  std::vector<uint8_t> missing(uint64_t lacking) const {
    std::vector<uint8_t> result(static_cast<size_t>(c_.ranks), 0);
    for (int rank = 0; rank < c_.ranks; ++rank) {
      result[static_cast<size_t>(rank)] = (lacking >> rank) & 1;
    }
    return result;
  }

  // How far this rank has come.
  enum Progress : uint64_t { kNothing = 0, kDispatchEnded = 1, kCombineEnded = 2 };

  // All survivors have met the failure. If all have ended the dispatch of the same round they may
  // still combine it; each for itself, the others learn of it by its next dispatch. Then all go on
  // with the same round.
  uint64_t agree_and_go_on(uint64_t round) {
    uint64_t bounds[2] = {round * 4 + progress_, ~(round * 4 + progress_)};
    // The collectives report the failure too, by the same call on all.
    COLL_EXPECT(report_, MEP_ERR_PEER_FAILED, mep_barrier(comm_, nullptr));
    COLL_OK(report_, mep_allreduce(bounds, bounds, 2, MEP_UINT64, MEP_MAX, comm_, nullptr));
    const bool all_alike = bounds[0] == ~bounds[1] && bounds[0] % 4 == kDispatchEnded;
    const bool together = c_.stream(40).one_in(2);
    RandomStream own(mix(c_.seed, 5000 + static_cast<uint64_t>(rank_)));
    const bool chosen = c_.buffers == 1 ? together || own.one_in(2) : together;
    if (all_alike && chosen) {
      const auto index = static_cast<uint32_t>(round % c_.buffers);
      buffers_[index]->run_experts(absent_);
      (void)combine(index, round, true);
    }
    gone_.assign(static_cast<size_t>(c_.ranks), 0);
    gone_[static_cast<size_t>(victim_)] = 1;
    return bounds[0] / 4 + 1;
  }

  // False: the failure was met in it.
  bool run_round(uint64_t round) {
    const auto index = static_cast<uint32_t>(round % c_.buffers);
    Round& buffer = *buffers_[index];
    mep_op_info_t before;
    mep_op_info_t now;
    uint64_t lacking = 0;
    (void)ended_since(index, {}, &before, &lacking);
    progress_ = kNothing;
    buffer.begin(round);
    const mep_result_t dispatched = buffer.dispatch(Halves::kBoth);
    const bool bad = dispatched != MEP_SUCCESS;
    if (bad && !is_failure(dispatched)) {
      report_.add("%s: rank %d round %llu: dispatch gave %s (%s)", c_.describe().c_str(), rank_,
                  static_cast<unsigned long long>(round), mep_result_string(dispatched),
                  mep_last_error());
      return false;
    }
    if (!ended_since(index, before, &now, &lacking)) return is_report(now, dispatched);
    progress_ = kDispatchEnded;
    COLL_CHECK(report_, now.result == dispatched);
    if (dispatched == MEP_ERR_PEER_FAILED) COLL_CHECK(report_, failed_ == uint64_t{1} << victim_);
    absent_ = bad ? missing(lacking) : gone_;
    if (!gone_.empty()) COLL_CHECK(report_, missing(lacking) == gone_);
    buffer.check_received(absent_);
    if (report_.bad() || bad) return false;
    buffer.run_experts(absent_);
    return combine(index, round, false);
  }

  // `carried`: of a dispatch of the view before. False: the failure was met in it.
  bool combine(uint32_t index, uint64_t round, bool carried) {
    Round& buffer = *buffers_[index];
    const bool renormalize = round % 2 == 1;
    const uint32_t flags = renormalize ? uint32_t{MEP_COMBINE_RENORMALIZE} : 0;
    mep_op_info_t before;
    mep_op_info_t now;
    uint64_t lacking = 0;
    (void)ended_since(index, {}, &before, &lacking);
    const mep_result_t combined = buffer.combine(Halves::kBoth, flags);
    if (combined != MEP_SUCCESS && !is_failure(combined)) {
      report_.add("%s: rank %d round %llu: combine gave %s (%s)", c_.describe().c_str(), rank_,
                  static_cast<unsigned long long>(round), mep_result_string(combined),
                  mep_last_error());
      return false;
    }
    if (!ended_since(index, before, &now, &lacking)) {
      COLL_CHECK(report_, combined == MEP_ERR_PEER_FAILED && gone_.empty() && !carried);
      return is_report(now, combined);
    }
    progress_ = kCombineEnded;
    buffer.check_combined(missing(lacking), renormalize);
    if (carried || gone_.empty()) return combined == MEP_SUCCESS;
    // In the new view only the victim's part is missing, and the result says so if there was any.
    COLL_CHECK(report_, missing(lacking) == gone_);
    bool lacks = false;
    for (const int64_t place : c_.routing(rank_, round)) {
      lacks = lacks || (place >= 0 && place / c_.local_experts == victim_);
    }
    const mep_result_t expected =
        !lacks ? mep_result_t{MEP_SUCCESS}
               : (c_.on_loss == MEP_EP_LOSS_PARTIAL ? mep_result_t{MEP_PARTIAL}
                                                    : mep_result_t{MEP_ERR_PEER_FAILED});
    COLL_CHECK(report_, combined == expected);
    return true;
  }

  const Problem& c_;
  const int rank_;
  const int victim_;
  mep_comm_t comm_;
  Report& report_;
  mep_ep_t ep_ = nullptr;
  std::vector<std::unique_ptr<Round>> buffers_;
  std::vector<uint8_t> gone_;    // of the new view; empty before
  std::vector<uint8_t> absent_;  // sources missing from the last dispatch
  uint64_t failed_ = 0;          // of the buffer's last operation
  uint64_t progress_ = kNothing;
};

using FailingRun = FailingRunOf<EpCase, EpRound>;

// Many cases, made by make_case(seed, ranks): a rank ends its part by mep_comm_abort at a random point of a round, the
// others survive.
template <typename Round, typename MakeCase>
void fail_at_random_points(uint32_t flags, mep_ep_loss_t on_loss, uint64_t first_seed,
                           MakeCase&& make_case) {
  const size_t cases = slice(12, 500);
  for (size_t i = 0; i < cases; ++i) {
    RandomStream random(mix(test_seed() + first_seed, i));
    const int ranks = static_cast<int>(random.below(4)) + 3;
    auto c = make_case(random.bits(), ranks);
    c.on_loss = on_loss;
    const int victim = static_cast<int>(random.below(static_cast<uint64_t>(ranks)));
    const uint64_t round = random.below(4);
    const int step = static_cast<int>(random.below(4));
    Report report;
    mep_comm_config_t config = patient_config(flags);
    config.timeout_ms = 20'000;
    with_rank_threads(ranks, config, report, [&](int rank, mep_comm_t comm, Report& findings) {
      FailingRunOf<decltype(c), Round> run(c, rank, victim, comm, findings);
      if (findings.bad()) return;
      if (rank != victim) return run.survive();
      run.live([&](uint64_t at, int now) { return at == round && now == step; });
      COLL_OK(findings, mep_comm_abort(comm));
    });
    if (report.bad()) {
      fail_msg("seed %llu, failure %zu: victim %d of %d in round %llu at step %d, %s%s",
               static_cast<unsigned long long>(test_seed()), i, victim, ranks,
               static_cast<unsigned long long>(round), step, c.describe().c_str(),
               report.text().c_str());
    }
  }
}

inline EpCase failing_case(uint64_t seed, int ranks) {
  EpCase c = random_ep_case(seed, ranks);
  c.mapped_experts = false;
  c.replicas = 1;
  c.bias = false;
  return c;
}

}  // namespace mep_test
