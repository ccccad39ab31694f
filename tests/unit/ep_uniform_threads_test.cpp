// With MEP_EP_LOSS_UNIFORM every dispatch and every combine has one result on all survivors, whenever a
// rank goes: they need not agree on anything to go on together.
// labels: gate threads asan
#include <latch>

#include "support/ep_failing.hpp"
#include "support/ep_halves.hpp"

using namespace mep_test;

namespace {

struct UniformPlan {
  EpCase problem;
  int ranks;
  int victim;
  uint64_t round;
  int step;
};

UniformPlan make_plan(uint64_t seed) {
  RandomStream random(seed);
  UniformPlan plan{};
  plan.ranks = static_cast<int>(random.below(4)) + 3;
  plan.problem = failing_case(random.bits(), plan.ranks);
  plan.problem.on_loss = MEP_EP_LOSS_UNIFORM;
  plan.victim = static_cast<int>(random.below(static_cast<uint64_t>(plan.ranks)));
  plan.round = random.below(4);
  plan.step = static_cast<int>(random.below(5));
  return plan;
}

// The results of all operations of one rank, in their order.
using Log = std::vector<mep_result_t>;

class UniformRun {
 public:
  // made: counts the ranks whose object is made, or is not; the victim leaves after all.
  UniformRun(const UniformPlan& plan, int rank, mep_comm_t comm, Report& report, Log* log,
             std::latch* made)
      : plan_(plan), rank_(rank), comm_(comm), report_(report), log_(log), made_(made) {}

  void run() {
    const EpCase& c = plan_.problem;
    const mep_ep_config_t config = c.config();
    mep_ep_t ep = nullptr;
    COLL_OK(report_, mep_ep_create(comm_, &config, &ep));
    made_->count_down();
    if (ep == nullptr) return;
    {
      auto buffer = std::make_unique<EpRound>(c, rank_, ep, 0, report_);
      const uint64_t rounds = plan_.round + 6;
      for (uint64_t round = 0; round < rounds && !left_ && !report_.bad(); ++round) {
        run_round(ep, *buffer, round);
        if (left_ || log_->empty() || is_success(log_->back())) continue;
        // It counts what it was given; of what had failed that is not known here.
        buffer.reset();
        buffer = std::make_unique<EpRound>(c, rank_, ep, 0, report_);
      }
    }
    COLL_OK(report_, mep_ep_destroy(ep));
  }

 private:
  bool leave(uint64_t round, int step) {
    left_ = rank_ == plan_.victim && round == plan_.round && step == plan_.step;
    if (!left_) return false;
    made_->wait();
    COLL_OK(report_, mep_comm_abort(comm_));
    return true;
  }

  // True: all ranks have what they needed.
  bool note(mep_ep_t ep, mep_result_t result, bool is_dispatch) {
    if (left_) return false;
    log_->push_back(result);
    if (is_success(result) || (is_dispatch && result == MEP_ERR_PEER_FAILED)) {
      uint64_t failed = 0;
      mep_op_info_t info;
      mep_op_info_defaults(&info);
      info.failed = &failed;
      info.failed_words = 1;
      COLL_OK(report_, mep_ep_last_op(ep, 0, &info));
      COLL_CHECK(report_, info.result == result);
      // A failed dispatch lacks no rank that is there.
      COLL_CHECK(report_, !is_dispatch || (failed & ~(uint64_t{1} << plan_.victim)) == 0);
    }
    return is_success(result);
  }
  static bool is_success(mep_result_t result) { return result >= MEP_SUCCESS; }

  // In one call or in two; the victim may go between them.
  template <typename Operation>
  mep_result_t perform(uint64_t round, int step, Operation&& operation) {
    if (plan_.problem.stream(50, round).one_in(2)) return operation(Halves::kBoth);
    const mep_result_t sent = operation(Halves::kSend);
    if (leave(round, step)) return sent;
    return operation(Halves::kReceive);  // also what was sent and failed
  }

  void run_round(mep_ep_t ep, EpRound& buffer, uint64_t round) {
    buffer.begin(round);
    if (leave(round, 0)) return;
    const mep_result_t dispatched =
        perform(round, 1, [&](Halves halves) { return buffer.dispatch(halves); });
    if (!note(ep, dispatched, true) || leave(round, 2)) return;
    const std::vector<uint8_t> gone = absent();
    buffer.check_received(gone);
    buffer.run_experts(gone);
    const mep_result_t combined =
        perform(round, 3, [&](Halves halves) { return buffer.combine(halves); });
    if (note(ep, combined, false)) buffer.check_combined(gone);
    (void)leave(round, 4);
  }

  // The ranks that were gone when the last dispatch that succeeded began: those not among its contributors.
  std::vector<uint8_t> absent() {
    const bool is_after = std::count_if(log_->begin(), log_->end(), [](mep_result_t each) {
                            return each == MEP_ERR_PEER_FAILED;
                          }) != 0;
    std::vector<uint8_t> gone(static_cast<size_t>(plan_.ranks), 0);
    if (is_after) gone[static_cast<size_t>(plan_.victim)] = 1;
    return gone;
  }

  const UniformPlan& plan_;
  const int rank_;
  mep_comm_t comm_;
  Report& report_;
  Log* log_;
  std::latch* made_;
  bool left_ = false;
};

void compare(const UniformPlan& plan, const std::vector<Log>& logs, Report& report) {
  const int witness = plan.victim == 0 ? 1 : 0;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    if (rank == plan.victim) continue;
    const Log& log = logs[static_cast<size_t>(rank)];
    const Log& other = logs[static_cast<size_t>(witness)];
    for (size_t i = 0; i < std::max(log.size(), other.size()); ++i) {
      if (i < log.size() && i < other.size() && log[i] == other[i]) continue;
      report.add("operation %zu of %zu: rank %d has %s, rank %d of %zu %s", i, log.size(), rank,
                 i < log.size() ? mep_result_string(log[i]) : "none", witness, other.size(),
                 i < other.size() ? mep_result_string(other[i]) : "none");
      break;
    }
  }
}

void run_failures(uint32_t flags, uint64_t first_seed) {
  const size_t cases = slice(30, 1000);
  size_t with_failure = 0;
  for (size_t i = 0; i < cases; ++i) {
    const UniformPlan plan = make_plan(mix(test_seed() + first_seed, i));
    std::vector<Log> logs(static_cast<size_t>(plan.ranks));
    std::latch made(plan.ranks);
    Report report;
    mep_comm_config_t config = patient_config(flags);
    config.timeout_ms = 20'000;
    with_rank_threads(plan.ranks, config, report, [&](int rank, mep_comm_t comm, Report& found) {
      UniformRun(plan, rank, comm, found, &logs[static_cast<size_t>(rank)], &made).run();
    });
    compare(plan, logs, report);
    for (const mep_result_t result : logs[plan.victim == 0 ? 1 : 0]) {
      with_failure += result == MEP_ERR_PEER_FAILED;
      if (result == MEP_PARTIAL) report.add("PARTIAL unasked");
    }
    if (report.bad()) {
      fail_msg("seed %llu, case %zu: victim %d of %d in round %llu at step %d%s",
               static_cast<unsigned long long>(test_seed()), i, plan.victim, plan.ranks,
               static_cast<unsigned long long>(plan.round), plan.step, report.text().c_str());
    }
  }
  assert_true(with_failure >= cases / 2);
}

void mapped(void**) {
  run_failures(0, 61);
}
void by_put_alone(void**) {
  run_failures(kPutOnly, 63);
}

// One rank comes too late for the others: the time is over for all, then all go on.
void a_late_rank(void**) {
  EpCase c = failing_case(mix(test_seed(), 64), 3);
  c.on_loss = MEP_EP_LOSS_UNIFORM;
  Report report;
  mep_comm_config_t config = patient_config(0);
  config.timeout_ms = 300;
  with_rank_threads(3, config, report, [&](int rank, mep_comm_t comm, Report& found) {
    COLL_OK(found, mep_comm_set_timeout(comm, 60'000));
    const mep_ep_config_t ep_config = c.config();
    mep_ep_t ep = nullptr;
    COLL_OK(found, mep_ep_create(comm, &ep_config, &ep));
    if (ep == nullptr) return;
    COLL_OK(found, mep_barrier(comm, nullptr));
    {
      EpRound late(c, rank, ep, 0, found);
      late.begin(0);
      uint64_t epoch = 0;
      COLL_OK(found, mep_comm_epoch(comm, &epoch));
      if (rank == 1) {
        COLL_OK(found, mep_comm_wait_view(comm, epoch, 60'000));
      } else {
        COLL_OK(found, mep_comm_set_timeout(comm, 300));
      }
      COLL_EXPECT(found, MEP_ERR_TIMEOUT, late.dispatch(Halves::kBoth));
      COLL_OK(found, mep_comm_set_timeout(comm, 60'000));
    }
    {
      EpRound buffer(c, rank, ep, 0, found);
      for (uint64_t round = 1; round < 4 && !found.bad(); ++round) {
        buffer.begin(round);
        COLL_OK(found, buffer.dispatch(Halves::kBoth));
        buffer.check_received();
        buffer.run_experts();
        COLL_OK(found, buffer.combine(Halves::kBoth));
        buffer.check_combined();
      }
    }
    COLL_OK(found, mep_ep_destroy(ep));
  });
  report.require_clean();
}

// A dispatch of one token to the expert of rank 0, of the object's buffer.
mep_result_t dispatch_one(mep_ep_t ep, uint32_t buffer, Report& report) {
  const std::vector<float> x(16, 1.0F);
  const int64_t expert = 0;
  mep_ep_handle_t handle = nullptr;
  COLL_OK(report, mep_ep_handle_create(ep, buffer, &handle));
  DispatchTokens send;
  DispatchRows receive;
  send.num_tokens = 1;
  send.x = x.data();
  send.topk_idx = &expert;
  const mep_result_t result = dispatch_halves(handle, &send, &receive, nullptr);
  COLL_OK(report, mep_ep_handle_destroy(handle));
  return result;
}

// Each buffer of each object reports a loss by its first call after it, and by no other; a collective does if it is
// called before them, as their rounds are calls of the comm too.
void report_of_each_buffer(bool collective_first) {
  Report report;
  std::atomic<int> ready{0};
  with_rank_threads(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    mep_ep_t eps[2] = {};
    for (mep_ep_t& ep : eps) {
      mep_ep_config_t config;
      mep_ep_config_defaults(&config);
      config.max_tokens_per_rank = 1;
      config.hidden = 16;
      config.top_k = 1;
      config.num_experts = 3;
      config.num_buffers = 2;
      config.input_type = MEP_FLOAT32;
      config.on_loss = MEP_EP_LOSS_UNIFORM;
      COLL_OK(found, mep_ep_create(comm, &config, &ep));
    }
    uint64_t epoch = 0;
    COLL_OK(found, mep_comm_epoch(comm, &epoch));
    ready.fetch_add(1);
    if (rank == 2) {
      while (ready.load() < 3) pause_us(200);
      COLL_OK(found, mep_comm_abort(comm));
    } else {
      COLL_OK(found, mep_comm_wait_view(comm, epoch, 60'000));
      if (collective_first) COLL_EXPECT(found, MEP_ERR_PEER_FAILED, mep_barrier(comm, nullptr));
      for (const int times : {0, 1, 2}) {
        const mep_result_t expected = times == 0 ? MEP_ERR_PEER_FAILED : MEP_SUCCESS;
        for (mep_ep_t ep : {eps[1], eps[0]}) {
          COLL_EXPECT(found, expected, dispatch_one(ep, 0, found));
          COLL_EXPECT(found, expected, dispatch_one(ep, 1, found));
        }
      }
      COLL_OK(found, mep_barrier(comm, nullptr));
    }
    for (mep_ep_t ep : eps) COLL_OK(found, mep_ep_destroy(ep));
  });
  report.require_clean();
}
void each_buffer_reports_a_loss_once(void**) {
  report_of_each_buffer(false);
  report_of_each_buffer(true);
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(mapped), cmocka_unit_test(by_put_alone),
                              cmocka_unit_test(a_late_rank),
                              cmocka_unit_test(each_buffer_reports_a_loss_once)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
