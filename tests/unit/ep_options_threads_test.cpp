// A dispatch or combine can give more than rows: counters of either width, how long it waited for whom, and it can
// have a time limit of its own.
// labels: quick threads tsan asan
#include <array>
#include <atomic>
#include <limits>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "core/ep/host/ep_waits.hpp"
#include "support/coll_ranks.hpp"
#include "support/ep_halves.hpp"

using namespace mep_test;

namespace {

constexpr int kRanks = 3;
constexpr uint32_t kTokens = 5;
constexpr uint32_t kTopK = 2;
constexpr uint32_t kHidden = 16;
constexpr uint32_t kExperts = 6;  // 2 on each rank
constexpr uint32_t kLocal = kExperts / kRanks;

struct Kind {
  const char* name;
  uint32_t layout;
};
constexpr Kind kPacked{"packed", MEP_EP_LOW_LATENCY};
constexpr Kind kSlotted{"slotted", MEP_EP_SLOTTED};
constexpr Kind kThroughput{"high throughput", MEP_EP_HIGH_THROUGHPUT};

// The k-th expert of a token of `rank`; -1 for some.
int64_t expert_of(int rank, uint64_t round, uint32_t token, uint32_t k) {
  if ((static_cast<uint32_t>(rank) + token) % 4 == 3) return -1;
  const uint64_t first = (static_cast<uint64_t>(rank) * 5 + token * token + round) % kExperts;
  return static_cast<int64_t>(k == 0 ? first : (first + 1 + token % (kExperts - 1)) % kExperts);
}

// A rank's EP object and its calls.
class Layer {
 public:
  Layer(mep_comm_t comm, int rank, const Kind& kind, Report& report, uint32_t timeout_ms = 0)
      : report_(report), rank_(rank), x_(kTokens * kHidden), out_(kTokens * kHidden) {
    mep_ep_config_t config;
    mep_moe_defaults(&config, kTokens, kHidden, kTopK, kExperts);
    config.layout = kind.layout;
    config.timeout_ms = timeout_ms;
    COLL_OK(report, mep_ep_create(comm, &config, &ep_));
    COLL_OK(report, mep_ep_handle_create(ep_, 0, &handle_));
  }
  ~Layer() {
    COLL_OK(report_, mep_ep_handle_destroy(handle_));
    COLL_OK(report_, mep_ep_destroy(ep_));
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  mep_result_t dispatch(uint64_t round, Halves halves = Halves::kBoth) {
    std::vector<int64_t> experts;
    for (uint32_t token = 0; token < kTokens; ++token) {
      for (uint32_t k = 0; k < kTopK; ++k) experts.push_back(expert_of(rank_, round, token, k));
    }
    DispatchTokens send;
    send.num_tokens = kTokens;
    send.x = x_.data();
    send.topk_idx = experts.data();
    return dispatch_halves(handle_, if_sends(halves, send), if_receives(halves, received), nullptr);
  }
  mep_result_t combine(Halves halves = Halves::kBoth) {
    mep_ep_view_t view;
    mep_ep_view_defaults(&view);
    COLL_OK(report_, mep_ep_buffer_view(ep_, 0, &view));
    CombineTerms send;
    send.y = view.combine_input;
    sums.out = out_.data();
    return combine_halves(handle_, if_sends(halves, send), if_receives(halves, sums), nullptr);
  }

  DispatchRows received{};
  CombineSums sums{};

 private:
  Report& report_;
  const int rank_;
  mep_ep_t ep_ = nullptr;
  mep_ep_handle_t handle_ = nullptr;
  std::vector<uint16_t> x_, out_;
};

// --- Counters ---

// Rows that two dispatches bring to a rank's experts.
std::array<int64_t, kLocal> rows_of_both(int rank) {
  std::array<int64_t, kLocal> rows{};
  for (uint64_t round = 0; round < 2; ++round) {
    for (int source = 0; source < kRanks; ++source) {
      for (uint32_t at = 0; at < kTokens * kTopK; ++at) {
        const int64_t expert = expert_of(source, round, at / kTopK, at % kTopK);
        const int64_t local = expert - static_cast<int64_t>(rank) * kLocal;
        if (local >= 0 && local < kLocal) ++rows[static_cast<size_t>(local)];
      }
    }
  }
  return rows;
}

template <typename Counter>
void count_two_dispatches(const Kind& kind, mep_dtype_t type) {
  constexpr Counter kNear = std::numeric_limits<Counter>::max() - 1;
  require_on_rank_threads(kRanks, 0, [&](int rank, mep_comm_t comm, Report& report) {
    Layer layer(comm, rank, kind, report);
    // The second is nearly full, the last is not the library's.
    std::array<Counter, kLocal + 1> counters{100, kNear, 77};
    layer.received.statistics = counters.data();
    layer.received.statistics_type = type;
    for (uint64_t round = 0; round < 2; ++round) {
      COLL_OK(report, layer.dispatch(round));
      COLL_OK(report, layer.combine());
    }
    const std::array<int64_t, kLocal> rows = rows_of_both(rank);
    COLL_CHECK(report, rows[0] > 1 && rows[1] > 1 && rows[0] != rows[1]);
    COLL_CHECK(report, counters[0] == 100 + rows[0]);
    COLL_CHECK(report, counters[1] ==
                           std::numeric_limits<Counter>::min() + static_cast<Counter>(rows[1]) - 2);
    COLL_CHECK(report, counters[2] == 77);
  });
}

void statistics_of_either_width(void**) {
  for (const Kind& kind : {kPacked, kSlotted, kThroughput}) {
    count_two_dispatches<int64_t>(kind, 0);
    count_two_dispatches<int64_t>(kind, MEP_INT64);
    count_two_dispatches<int32_t>(kind, MEP_INT32);
  }
}

// --- Waits ---

void after_a_tick() {
  const uint64_t before = mep::now_ns();
  while (mep::now_ns() == before) continue;
}

// Ranks 0 (which is the own one), 1 and 3 of 4 are members.
void a_wait_is_counted_from_its_first_look(void**) {
  const std::vector<uint32_t> members{0, 1, 3};
  std::array<int64_t, 4> waited{0, 5, 5, 5};
  std::array<bool, 4> here{};
  const auto look = [&](mep::EpWaits* waits) {
    return waits->look(members, 0, [&](uint32_t rank) { return here[rank]; });
  };
  mep::EpWaits waits;
  waits.reserve(4);
  waits.begin(waited.data());
  here[1] = true;
  assert_false(look(&waits));
  after_a_tick();
  here[0] = here[3] = true;
  assert_true(look(&waits));
  const int64_t first = waited[3];
  assert_true(first > 5);
  assert_true(waited == (std::array<int64_t, 4>{0, 5, 5, first}));
  // The next wait: rank 1 does not come before the call ends.
  after_a_tick();
  here[1] = false;
  assert_false(look(&waits));
  assert_int_equal(waited[3], first);
  after_a_tick();
  waits.end(0);
  assert_true(waited[1] > 5);
  assert_true(waited[0] == 0 && waited[2] == 5 && waited[3] == first);
  assert_false(waits.measures());
  const auto all = waited;
  waits.begin(waited.data());
  waits.end(0);
  assert_true(waited == all);
}

constexpr int kLate = 1;
using Waits = std::array<int64_t, kRanks>;

bool shows_the_late_one(const Waits& waits) {
  return waits[kLate] > 0 && waits[kLate] > waits[0] && waits[kLate] > waits[2];
}

// Rank 1 begins each call when the others have begun theirs. A round in which they have not come to wait by then
// shows nothing, so rounds go on until the sums show it on all.
void find_the_late_rank(const Kind& kind) {
  std::atomic<int> calling{0};
  std::array<std::atomic<bool>, kRanks> has_seen{};
  std::atomic<bool> gives_up{false};
  require_on_rank_threads(kRanks, 0, [&](int rank, mep_comm_t comm, Report& report) {
    Layer layer(comm, rank, kind, report);
    const mep::Deadline limit = mep::Deadline::after_ms(40'000);
    Waits dispatched{};
    Waits combined{};
    layer.received.wait_ns = dispatched.data();
    layer.sums.wait_ns = combined.data();
    int calls = 0;
    const auto meet = [&] {
      ++calls;
      if (rank != kLate) {
        calling.fetch_add(1);
        return;
      }
      while (calling.load() < calls * (kRanks - 1) && !limit.expired()) pause_us(50);
      pause_us(500);  // for them to look
    };
    bool goes_on = true;
    for (uint64_t round = 0; goes_on && !report.bad(); ++round) {
      meet();
      COLL_OK(report, layer.dispatch(round));
      meet();
      COLL_OK(report, layer.combine());
      has_seen[static_cast<size_t>(rank)] =
          rank == kLate || (shows_the_late_one(dispatched) && shows_the_late_one(combined));
      if (rank == kLate && limit.expired()) gives_up = true;
      COLL_OK(report, mep_barrier(comm, nullptr));
      goes_on = !gives_up && !(has_seen[0] && has_seen[1] && has_seen[2]);
      COLL_OK(report, mep_barrier(comm, nullptr));
    }
    for (const Waits& waits : {dispatched, combined}) {
      COLL_CHECK(report, rank == kLate || shows_the_late_one(waits));
      COLL_CHECK(report, waits[static_cast<size_t>(rank)] == 0);
    }
  });
}

void waits_name_the_late_rank(void**) {
  for (const Kind& kind : {kPacked, kSlotted, kThroughput}) find_the_late_rank(kind);
}

// --- Limits ---

bool is_told(const char* part) {
  return std::string(mep_last_error()).find(part) != std::string::npos;
}

// Rank 1 does not call before rank 0 has given up, though the object's time is long. It is told that it was late,
// and both go on.
void give_up(const Kind& kind, bool in_combine, Halves halves) {
  std::atomic<bool> has_given_up{false};
  require_on_rank_threads(2, 0, [&](int rank, mep_comm_t comm, Report& report) {
    Layer layer(comm, rank, kind, report);
    if (in_combine) COLL_OK(report, layer.dispatch(0));
    const auto call = [&](Halves which) {
      return in_combine ? layer.combine(which) : layer.dispatch(0, which);
    };
    if (rank == 0) {
      Waits waited{};
      (in_combine ? layer.sums.timeout_ms : layer.received.timeout_ms) = 50;
      (in_combine ? layer.sums.wait_ns : layer.received.wait_ns) = waited.data();
      if (halves == Halves::kReceive) COLL_OK(report, call(Halves::kSend));
      COLL_EXPECT(report, MEP_ERR_TIMEOUT, call(halves));
      COLL_CHECK(report, is_told("50 ms (timeout_ms of the call)") && is_told("rank 1"));
      COLL_CHECK(report, waited[0] == 0 && waited[1] > 0);
      has_given_up = true;
    } else {
      const mep::Deadline limit = mep::Deadline::after_ms(40'000);
      while (!has_given_up && !limit.expired()) pause_us(200);
      COLL_CHECK(report, has_given_up);
      COLL_EXPECT(report, MEP_ERR_TIMEOUT, call(Halves::kBoth));
    }
    layer.received.timeout_ms = layer.sums.timeout_ms = 0;
    layer.received.wait_ns = layer.sums.wait_ns = nullptr;
    COLL_OK(report, layer.dispatch(1));
    COLL_OK(report, layer.combine());
  });
}

void a_call_has_its_own_limit(void**) {
  for (const bool in_combine : {false, true}) {
    for (const Kind& kind : {kPacked, kSlotted, kThroughput}) {
      give_up(kind, in_combine, Halves::kBoth);
    }
    give_up(kSlotted, in_combine, Halves::kReceive);
  }
}

void a_limit_of_the_object_is_named(void**) {
  std::atomic<bool> has_given_up{false};
  require_on_rank_threads(2, 0, [&](int rank, mep_comm_t comm, Report& report) {
    Layer layer(comm, rank, kPacked, report, 50);
    if (rank == 0) {
      COLL_EXPECT(report, MEP_ERR_TIMEOUT, layer.dispatch(0));
      COLL_CHECK(report, is_told("50 ms (timeout_ms of mep_ep_config_t)"));
      has_given_up = true;
      return;
    }
    const mep::Deadline limit = mep::Deadline::after_ms(40'000);
    while (!has_given_up && !limit.expired()) pause_us(200);
    COLL_EXPECT(report, MEP_ERR_TIMEOUT, layer.dispatch(0));
  });
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(statistics_of_either_width),
                              cmocka_unit_test(a_wait_is_counted_from_its_first_look),
                              cmocka_unit_test(waits_name_the_late_rank),
                              cmocka_unit_test(a_call_has_its_own_limit),
                              cmocka_unit_test(a_limit_of_the_object_is_named)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
