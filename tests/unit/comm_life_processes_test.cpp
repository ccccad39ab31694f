// labels: gate
// Ranks that are killed while communicators are made, used and closed: split in a loop, a world at its
// start, a world that grows. Every survivor comes to its end, soon, with the same results as the others.
#include <string.h>

#include "base/clock.hpp"
#include "support/kill_job.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

constexpr unsigned kLimitMs = 60'000;
// No call may take this long: far more than a change of the membership does, far less than a deadline.
constexpr uint32_t kLongMs = 20'000;

mep_comm_config_t life_config() {
  mep_comm_config_t config = patient_config(0);
  config.timeout_ms = 30'000;
  return config;
}

void become(int rank, int size, const std::string& job) {
  setenv("MEP_RANK", std::to_string(rank).c_str(), 1);
  setenv("MEP_SIZE", std::to_string(size).c_str(), 1);
  setenv("MEP_JOB", job.c_str(), 1);
}

// The outcomes of the runs of one kind.
struct Count {
  size_t runs = 0;
  size_t died = 0;     // runs in which a rank was killed before its end
  size_t crashed = 0;  // survivors that ended by a signal
  size_t slow = 0;     // survivors that did not end, or had a call that took long
  size_t split = 0;    // runs in which survivors got different results
  size_t wrong = 0;    // runs with a result that nothing explains

  void print(const char* what) const {
    printf("%s: %zu runs, %zu with a death; crashed %zu, slow %zu, not alike %zu, wrong %zu\n",
           what, runs, died, crashed, slow, split, wrong);
    fflush(stdout);
  }
  void require_clean(const char* what) const {
    print(what);
    if (crashed + slow + split + wrong != 0) {
      fail_msg("%s: see above; seed %llu", what, static_cast<unsigned long long>(test_seed()));
    }
  }
};

bool is_told(mep_result_t result) {
  return result == MEP_SUCCESS || result == MEP_ERR_PEER_FAILED || result == MEP_ERR_PEER_LEFT;
}

// Compares the logs of all that were not to die.
void judge(const char* what, uint64_t run, const std::vector<KillJob::Ended>& ended,
           const RankLog* logs, const std::vector<bool>& is_victim, Count* count) {
  ++count->runs;
  const RankLog* first = nullptr;
  bool alike = true;
  bool wrong = false;
  bool died = false;
  for (size_t i = 0; i < ended.size(); ++i) {
    if (is_victim[i]) {
      died = died || !WIFEXITED(ended[i].status);
      if (WIFEXITED(ended[i].status)) continue;
      if (WTERMSIG(ended[i].status) == SIGALRM || WTERMSIG(ended[i].status) == SIGKILL) continue;
    }
    if (!ended[i].in_time || logs[i].longest_ms > kLongMs) {
      ++count->slow;
      printf("%s %llu: process %zu was slow (%u ms)\n", what, static_cast<unsigned long long>(run),
             i, logs[i].longest_ms);
      continue;
    }
    if (!WIFEXITED(ended[i].status)) {
      ++count->crashed;
      printf("%s %llu: process %zu ended by signal %d\n", what,
             static_cast<unsigned long long>(run), i, WTERMSIG(ended[i].status));
      continue;
    }
    if (is_victim[i]) continue;
    const RankLog& log = logs[i];
    wrong = wrong || !log.is_complete || log.texts != 0;
    for (uint32_t t = 0; t < log.texts; ++t) printf("  process %zu: %s\n", i, log.text[t]);
    if (first == nullptr) first = &log;
    const bool same = log.count == first->count &&
                      memcmp(log.results, first->results, log.count * sizeof log.results[0]) == 0;
    alike = alike && same;
  }
  count->died += died;
  count->wrong += wrong;
  if (!alike) {
    ++count->split;
    printf("%s %llu: not alike:\n", what, static_cast<unsigned long long>(run));
    for (size_t i = 0; i < ended.size(); ++i) {
      if (is_victim[i]) continue;
      printf("  process %zu: %u results, the last:", i, logs[i].count);
      for (uint32_t k = logs[i].count > 12 ? logs[i].count - 12 : 0; k < logs[i].count; ++k) {
        printf(" %d", logs[i].results[k]);
      }
      printf("\n");
    }
  }
}

// A rank's log: its calls in order.
class Calls {
 public:
  explicit Calls(RankLog* log) : log_(log) {}
  template <typename Call>
  mep_result_t operator()(const char* name, Call&& call) {
    const uint64_t begun = mep::now_ns();
    const mep_result_t result = log_->note(call(), begun);
    if (!is_told(result)) complain(name, result);
    return result;
  }
  // Survivors find it alike, as they do their results.
  void note(int32_t found) { (void)log_->note(found, mep::now_ns()); }
  void complain(const char* name, mep_result_t result) {
    if (log_->texts == std::size(log_->text)) return;
    snprintf(log_->text[log_->texts++], sizeof log_->text[0], "%s: %s, %s", name,
             mep_result_string(result), mep_last_error());
  }

 private:
  RankLog* log_;
};

// Sums a bit of every member; its result.
mep_result_t sum_up(mep_comm_t comm, int rank, Calls& calls) {
  const uint64_t own = uint64_t{1} << rank;
  uint64_t sum = 0;
  const mep_result_t result = calls("allreduce", [&] {
    return mep_allreduce(&own, &sum, 1, MEP_UINT64, MEP_SUM, comm, nullptr);
  });
  if (result == MEP_SUCCESS && (sum & own) == 0) calls.complain("a wrong sum", MEP_ERR_INTERNAL);
  return result;
}

// Split, allreduce, destroy, and again; after the first failure some more, so that late news counts.
void split_loop(mep_comm_t world, int rank, uint64_t rounds_after, bool halves, Calls& calls) {
  uint64_t left = rounds_after;
  for (uint64_t round = 0; left > 0 && round < 600; ++round) {
    mep_comm_t child = nullptr;
    bool failed = false;
    const int color = halves ? static_cast<int>((static_cast<uint64_t>(rank) + round) % 2) : 0;
    failed |= calls("split", [&] { return mep_comm_split(world, color, rank, &child); }) != 0;
    if (child != nullptr) {
      failed |= sum_up(child, rank, calls) != 0;
      calls("destroy", [&] { return mep_comm_destroy(child); });
    }
    uint64_t good = 0;
    const mep_result_t agreed =
        calls("agree", [&] { return mep_comm_agree(world, failed ? 0 : 1, &good); });
    if (agreed != MEP_SUCCESS) return;
    // Counted by what all have found.
    if (good == 0 || left < rounds_after) --left;
  }
}

// Shrink, allreduce, destroy, and again: no death prevents the first, and all have the same members.
void shrink_loop(mep_comm_t world, int rank, uint64_t rounds_after, Calls& calls) {
  uint64_t left = rounds_after;
  for (uint64_t round = 0; left > 0 && round < 600; ++round) {
    mep_comm_t child = nullptr;
    const mep_result_t shrunk = calls("shrink", [&] { return mep_comm_shrink(world, &child); });
    if (shrunk != MEP_SUCCESS) return calls.complain("no shrink", shrunk);
    int32_t size = 0;
    (void)mep_comm_size(child, &size);
    calls.note(size);
    const bool failed = sum_up(child, rank, calls) != 0;
    calls("destroy", [&] { return mep_comm_destroy(child); });
    uint64_t good = 0;
    if (calls("agree", [&] { return mep_comm_agree(world, failed ? 0 : 1, &good); }) != 0) return;
    int32_t all = 0;
    (void)mep_comm_size(world, &all);
    if (good == 0 || left < rounds_after || size < all) --left;
  }
}

// The same with communicators that only the ranks of a list make: those that agreed last.
void listed_loop(mep_comm_t world, int rank, uint64_t rounds_after, Calls& calls) {
  int32_t size = 0;
  (void)mep_comm_size(world, &size);
  uint64_t left = rounds_after;
  bool failed = false;
  for (uint64_t round = 0; left > 0 && round < 600; ++round) {
    uint64_t good = 0;
    if (calls("agree", [&] { return mep_comm_agree(world, failed ? 0 : 1, &good); }) != 0) return;
    if (good == 0 || left < rounds_after) --left;
    uint64_t members = 0;
    mep_op_info_t info;
    mep_op_info_defaults(&info);
    info.contributors = &members;
    info.contributors_words = 1;
    (void)mep_comm_last_op(world, &info);
    std::vector<int32_t> ranks;
    for (int32_t each = 0; each < size; ++each) {
      if ((members >> each & 1) != 0) ranks.push_back(each);
    }
    const std::string name = "round " + std::to_string(round);
    mep_comm_t child = nullptr;
    failed = calls("create", [&] {
               return mep_comm_create_from_ranks(
                   world, ranks.data(), static_cast<int32_t>(ranks.size()), name.c_str(), &child);
             }) != 0;
    if (child == nullptr) continue;
    failed |= sum_up(child, rank, calls) != 0;
    calls("destroy", [&] { return mep_comm_destroy(child); });
  }
}

enum class Loop { kSplit, kHalves, kShrink, kListed };

const char* const kSplitPoints[] = {"comm begin",  "comm offered", "comm open",
                                    "comm agreed", "comm closing", "enter",
                                    "complete",    "eager post",   "signal"};

void run_loop(uint64_t seed, const char* what, uint64_t run, Loop loop, Count* count) {
  RandomStream random(seed);
  const int size = 3 + static_cast<int>(random.below(2));
  if (loop == Loop::kSplit && random.one_in(4)) loop = Loop::kHalves;
  std::vector<bool> is_victim(static_cast<size_t>(size));
  const auto victim = static_cast<int>(random.below(static_cast<uint64_t>(size)));
  is_victim[static_cast<size_t>(victim)] = true;
  // A second death leaves a quorum only of four, by the lowest slot or because both are confirmed.
  const int second = random.one_in(4) && size == 4 ? (victim + 1) % size : -1;
  if (second >= 0) is_victim[static_cast<size_t>(second)] = true;
  const uint64_t at_us = random.below(40'000);
  const uint64_t second_us = at_us + random.below(2'000);
  const bool by_point = random.one_in(2);
  const std::string point = std::string(kSplitPoints[random.below(std::size(kSplitPoints))]) + ":" +
                            std::to_string(1 + random.below(60)) + "=kill";
  const std::string job = new_job_name();
  const auto logs = make_shared_memory<RankLog>(static_cast<size_t>(size));
  const auto ended = KillJob::run(
      size,
      [&](int rank) {
        become(rank, size, job);
        RankLog& log = logs.get()[rank];
        Calls calls(&log);
        const mep_comm_config_t config = life_config();
        mep_comm_t world = nullptr;
        if (mep_comm_init(&config, &world) != MEP_SUCCESS) _exit(1);
        (void)mep_barrier(world, nullptr);
        if (rank == victim && by_point) (void)mep::failpoint_arm(point);
        if (rank == victim) die_after_us(by_point ? 60'000 : at_us);
        if (rank == second) die_after_us(second_us);
        // With halves the colors have different members, which meet different failures.
        if (loop == Loop::kListed) {
          listed_loop(world, rank, 3, calls);
        } else if (loop == Loop::kShrink) {
          shrink_loop(world, rank, 3, calls);
        } else {
          split_loop(world, rank, 3, loop == Loop::kHalves, calls);
        }
        log.is_complete = true;
        (void)mep_comm_destroy(world);
      },
      kLimitMs);
  // Halves: only the calls on the world are alike; here the ends are what counts.
  if (loop == Loop::kHalves) {
    for (int rank = 0; rank < size; ++rank) logs.get()[rank].count = 0;
  }
  judge(what, run, ended, logs.get(), is_victim, count);
}

void run_loops(const char* what, Loop loop) {
  const size_t runs = slice(30, 2000);
  Count count;
  for (size_t run = 0; run < runs; ++run) run_loop(mix(test_seed(), run), what, run, loop, &count);
  count.require_clean(what);
}

void test_split(void**) {
  run_loops("split", Loop::kSplit);
}

void test_shrink(void**) {
  run_loops("shrink", Loop::kShrink);
}

void test_listed(void**) {
  run_loops("listed", Loop::kListed);
}

const char* const kInitPoints[] = {"comm begin", "comm offered", "comm open",
                                   "enter",      "complete",     "eager post"};

// A rank dies while the world is made. Whether it is made then is the same on all that live.
void run_init(uint64_t seed, uint64_t run, Count* count) {
  RandomStream random(seed);
  const int size = 3 + static_cast<int>(random.below(2));
  const auto victim = static_cast<int>(random.below(static_cast<uint64_t>(size)));
  std::vector<bool> is_victim(static_cast<size_t>(size));
  is_victim[static_cast<size_t>(victim)] = true;
  const uint64_t at_us = random.below(25'000);
  const std::string point =
      random.one_in(2) ? ""
                       : std::string(kInitPoints[random.below(std::size(kInitPoints))]) + ":1=kill";
  const std::string job = new_job_name();
  const auto logs = make_shared_memory<RankLog>(static_cast<size_t>(size));
  const auto ended = KillJob::run(
      size,
      [&](int rank) {
        become(rank, size, job);
        RankLog& log = logs.get()[rank];
        Calls calls(&log);
        mep_comm_config_t config = life_config();
        // A rank that dies before it is found is waited for as long.
        config.init_timeout_ms = 2'000;
        if (rank == victim && !point.empty()) (void)mep::failpoint_arm(point);
        if (rank == victim) die_after_us(point.empty() ? at_us : 200'000);
        mep_comm_t world = nullptr;
        const uint64_t begun = mep::now_ns();
        const mep_result_t made = mep_comm_init(&config, &world);
        // Which error it is depends on how far each had come.
        log.note(made == MEP_SUCCESS ? MEP_SUCCESS : MEP_ERR_BOOTSTRAP, begun);
        if (made != MEP_SUCCESS && made != MEP_ERR_BOOTSTRAP && made != MEP_ERR_PEER_FAILED) {
          calls.complain("init", made);
        }
        for (int i = 0; world != nullptr && i < 2000; ++i) {
          if (sum_up(world, rank, calls) != MEP_SUCCESS) break;
        }
        if (world != nullptr) (void)sum_up(world, rank, calls);
        log.is_complete = true;
        (void)mep_comm_destroy(world);
      },
      kLimitMs);
  judge("init", run, ended, logs.get(), is_victim, count);
}

void test_init(void**) {
  const size_t runs = slice(25, 2000);
  Count count;
  for (size_t run = 0; run < runs; ++run) run_init(mix(test_seed() + 1, run), run, &count);
  count.require_clean("init");
}

const char* const kGrowPoints[] = {"comm begin", "comm offered", "comm open", "comm agreed",
                                   "enter",      "complete",     "commit"};

// Two or three members and a joiner, one of whom dies. The grown comm is made by all that live or by none.
void run_grow(uint64_t seed, uint64_t run, Count* count) {
  RandomStream random(seed);
  const int size = 2 + static_cast<int>(random.below(2));
  const auto victim = static_cast<int>(random.below(static_cast<uint64_t>(size) + 1));
  std::vector<bool> is_victim(static_cast<size_t>(size) + 1);
  is_victim[static_cast<size_t>(victim)] = true;
  const uint64_t at_us = random.below(25'000);
  const bool by_point = random.one_in(2);
  const std::string point =
      std::string(kGrowPoints[random.below(std::size(kGrowPoints))]) + ":1=kill";
  const std::string job = new_job_name();
  const auto logs = make_shared_memory<RankLog>(static_cast<size_t>(size) + 1);
  const auto started = make_shared_memory<std::atomic<int>>();
  const auto ended = KillJob::run(
      size + 1,
      [&](int rank) {
        RankLog& log = logs.get()[rank];
        Calls calls(&log);
        mep_comm_config_t config = life_config();
        mep_comm_t world = nullptr;
        mep_comm_t grown = nullptr;
        mep_result_t made = MEP_SUCCESS;
        const auto arm = [&] {
          if (rank == victim && by_point) (void)mep::failpoint_arm(point);
          if (rank == victim) die_after_us(by_point ? 100'000 : at_us);
        };
        uint64_t begun = mep::now_ns();
        if (rank < size) {
          become(rank, size, job);
          config.max_size = size + 1;
          if (mep_comm_init(&config, &world) != MEP_SUCCESS) _exit(1);
          started->fetch_add(1);
          while (started->load() < size) pause_us(200);
          arm();
          begun = mep::now_ns();
          made = mep_comm_grow(world, 1, 3'000, &grown);
        } else {
          setenv("MEP_JOB", job.c_str(), 1);
          while (started->load() < size) pause_us(200);
          arm();
          config.init_timeout_ms = 6'000;
          made = mep_comm_join(&config, &grown);
        }
        log.note(made == MEP_SUCCESS ? MEP_SUCCESS : MEP_ERR_BOOTSTRAP, begun);
        // A joiner that died before it came is waited for, and one that meets a death may not come.
        const bool is_unready =
            made == MEP_ERR_TIMEOUT && strstr(mep_last_error(), "were ready within") != nullptr;
        const bool is_refused = rank == size && made != MEP_SUCCESS;
        if (!is_told(made) && !is_unready && !is_refused) calls.complain("grow", made);
        for (int i = 0; grown != nullptr && i < 2000; ++i) {
          if (sum_up(grown, rank, calls) != MEP_SUCCESS) break;
        }
        if (grown != nullptr) (void)sum_up(grown, rank, calls);
        log.is_complete = true;
        if (grown != nullptr) (void)mep_comm_destroy(grown);
        (void)mep_comm_destroy(world);
      },
      kLimitMs);
  judge("grow", run, ended, logs.get(), is_victim, count);
}

void test_grow(void**) {
  const size_t runs = slice(25, 2000);
  Count count;
  for (size_t run = 0; run < runs; ++run) run_grow(mix(test_seed() + 2, run), run, &count);
  count.require_clean("grow");
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  (void)mep_test::test_seed();
  const CMUnitTest tests[] = {cmocka_unit_test(test_split), cmocka_unit_test(test_shrink),
                              cmocka_unit_test(test_listed), cmocka_unit_test(test_init),
                              cmocka_unit_test(test_grow)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
