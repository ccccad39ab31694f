// labels: gate
// Worlds with much in them: a replacement is told of all of it, a death is settled as fast as in a small
// one, and what comes and goes leaves nothing behind.
#include <malloc.h>
#include <sys/resource.h>

#include "base/clock.hpp"
#include "support/ep_halves.hpp"
#include "support/join_job.hpp"

using namespace mep_test;

namespace {

constexpr int kRanks = 3;
constexpr int32_t kVictim = 1;

mep_ep_config_t tiny_config(uint32_t buffers) {
  mep_ep_config_t config;
  mep_ep_config_defaults(&config);
  config.max_tokens_per_rank = 1;
  config.hidden = 8;
  config.top_k = 1;
  config.num_experts = 1;
  config.experts_per_rank = 1;
  config.num_buffers = buffers;
  return config;
}

// y in the library's memory.
void combine(mep_ep_t ep, mep_ep_handle_t handle, void* out, Report& report) {
  mep_ep_view_t view;
  CombineTerms send;
  CombineSums receive;
  mep_ep_view_defaults(&view);
  COLL_OK(report, mep_ep_buffer_view(ep, 0, &view));
  send.y = view.combine_input;
  receive.out = out;
  COLL_OK(report, combine_halves(handle, &send, &receive, nullptr));
}

// At most `wanted` objects of so many buffers: each buffer has a descriptor.
size_t objects_within_limits(size_t wanted, size_t buffers) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  constexpr size_t kOthers = 600;
  const size_t most = limit.rlim_cur > kOthers ? (limit.rlim_cur - kOthers) / buffers : 1;
  if (most < wanted) print_message("only %zu of %zu objects: ulimit -n\n", most, wanted);
  return std::min(wanted, most);
}

std::string object_name(size_t index) {
  const std::string name = "object " + std::to_string(index);
  // Some are as long as names may be.
  return index % 100 == 0 ? name + std::string(65535 - name.size(), 'x') : name;
}

mep_ep_t open_object(mep_comm_t comm, size_t index, bool attach, Report& report) {
  mep_ep_config_t config = tiny_config(1);
  const std::string name = object_name(index);
  config.name = name.c_str();
  mep_ep_t ep = nullptr;
  COLL_OK(report, attach ? mep_ep_attach(comm, &config, &ep) : mep_ep_create(comm, &config, &ep));
  return ep;
}

// An object with `side` experts and as many replicas. Expert e has one place: that of the e-th from the end.
struct Mapped {
  uint32_t side;
  uint32_t local_experts() const { return (side + kRanks - 1) / kRanks; }
  uint32_t places() const { return kRanks * local_experts(); }

  mep_ep_t open(mep_comm_t comm, const char* name, bool attach, Report& report) const {
    mep_ep_config_t config = tiny_config(1);
    config.name = name;
    config.num_experts = side;
    config.experts_per_rank = local_experts();
    config.max_replicas = side;
    mep_ep_t ep = nullptr;
    COLL_OK(report, attach ? mep_ep_attach(comm, &config, &ep) : mep_ep_create(comm, &config, &ep));
    return ep;
  }
  void set_map(mep_ep_t ep, Report& report) const {
    std::vector<int32_t> map(size_t{side} * side, -1);
    for (uint32_t expert = 0; expert < side; ++expert) {
      map[size_t{expert} * side + side - 1] = static_cast<int32_t>(places() - 1 - expert);
    }
    COLL_OK(report, mep_ep_set_expert_map(ep, map.data()));
  }
  // Every rank sends its token to the expert of its own number: all of them arrive at the last rank.
  void exchange(mep_ep_t ep, int rank, Report& report) const {
    mep_ep_handle_t handle = nullptr;
    COLL_OK(report, mep_ep_handle_create(ep, 0, &handle));
    if (handle == nullptr) return;
    const std::vector<uint16_t> row(8, 0x3f80);
    const int64_t expert = rank;
    std::vector<int32_t> counts(local_experts(), -1);
    DispatchTokens send;
    DispatchRows receive;
    send.num_tokens = 1;
    send.x = row.data();
    send.topk_idx = &expert;
    receive.recv_count = counts.data();
    COLL_OK(report, dispatch_halves(handle, &send, &receive, nullptr));
    int32_t sum = 0;
    for (uint32_t local = 0; local < local_experts(); ++local) {
      const bool is_wanted = rank == kRanks - 1 && local + kRanks >= local_experts();
      COLL_CHECK(report, counts[local] == (is_wanted ? 1 : 0));
      sum += counts[local];
    }
    COLL_CHECK(report, sum == (rank == kRanks - 1 ? kRanks : 0));
    std::vector<uint16_t> out(8);
    combine(ep, handle, out.data(), report);
    COLL_OK(report, mep_ep_handle_destroy(handle));
  }
};

constexpr const char* kMappedNames[] = {"mapped 0", "mapped 1"};

void replacement_finds_all(void**) {
  const size_t objects = objects_within_limits(slice(150, 1000), 1);
  const auto nested = static_cast<int>(slice(80, 100));
  const Mapped mapped{soak_flag() ? 1000u : 600u};
  std::string deepest = "world";
  for (int depth = 0; depth < nested; ++depth) deepest += "/0.0";
  Meeting all(kRanks);
  Report report;
  JoinJob job(kRanks, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    std::vector<mep_comm_t> comms{comm};
    for (int depth = 0; depth < nested && !found.bad(); ++depth) {
      comms.push_back(nullptr);
      COLL_OK(found, mep_comm_split(comms[comms.size() - 2], 0, 0, &comms.back()));
    }
    const char* name = nullptr;
    COLL_OK(found, mep_comm_name(comms.back(), &name));
    COLL_CHECK(found, name != nullptr && deepest == name);
    std::vector<mep_ep_t> eps;
    for (size_t i = 0; i < objects && !found.bad(); ++i) {
      eps.push_back(open_object(comm, i, false, found));
    }
    for (const char* each : kMappedNames) {
      eps.push_back(mapped.open(comm, each, false, found));
      mapped.set_map(eps.back(), found);
    }
    if (found.bad()) return;
    mapped.exchange(eps.back(), rank, found);
    lose_rank(kVictim, rank, comm, all, found);
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &kVictim, 1, kNeverMs, &admitted));
    check_contributors(rank, comm, 0x111, found);
    meet_failure(comms.back(), found);
    check_contributors(rank, comms.back(), 0x111, found);
    mapped.exchange(eps.back(), rank, found);
    for (const mep_ep_t ep : eps) COLL_OK(found, mep_ep_destroy(ep));
    for (; comms.size() > 1; comms.pop_back()) COLL_OK(found, mep_comm_destroy(comms.back()));
  });
  job.expect_killed(kVictim);
  job.join(kVictim, [&](int rank, mep_comm_t comm, Report& found) {
    check_contributors(rank, comm, 0x111, found);
    std::vector<mep_comm_t> comms;
    std::string name = "world";
    for (int depth = 0; depth < nested; ++depth) {
      name += "/0.0";
      comms.push_back(nullptr);
      COLL_OK(found, mep_comm_attach(comm, name.c_str(), &comms.back()));
    }
    std::vector<mep_ep_t> eps;
    for (size_t i = 0; i < objects && !found.bad(); ++i) {
      eps.push_back(open_object(comm, i, true, found));
    }
    for (const char* each : kMappedNames) eps.push_back(mapped.open(comm, each, true, found));
    if (found.bad()) return;
    check_contributors(rank, comms.back(), 0x111, found);
    mapped.exchange(eps.back(), rank, found);
    for (const mep_ep_t ep : eps) COLL_OK(found, mep_ep_destroy(ep));
    for (; !comms.empty(); comms.pop_back()) COLL_OK(found, mep_comm_destroy(comms.back()));
  });
  job.expect_clean_end();
  report.require_clean();
}

// A name that could not be told to a joiner is refused when the object is made.
void limits_are_refused(void**) {
  Report report;
  with_rank_threads(1, patient_config(0), report, [](int, mep_comm_t comm, Report& found) {
    mep_ep_config_t config = tiny_config(1);
    const std::string name(65536, 'x');
    config.name = name.c_str();
    mep_ep_t ep = nullptr;
    COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT, mep_ep_create(comm, &config, &ep));
    config.name = nullptr;
    config.num_experts = config.experts_per_rank = config.max_replicas = 12'000;
    COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT, mep_ep_create(comm, &config, &ep));
  });
  report.require_clean();
}

// The CPU time of all threads of this process.
double cpu_seconds() {
  rusage usage{};
  (void)getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// In a soak the tables of a view change are larger than a frame: such a change needs them in pieces.
void many_channels_are_settled(void**) {
  const size_t objects = objects_within_limits(slice(300, 2200), 8);
  Meeting all(kRanks);
  Report report;
  JoinJob job(kRanks, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    std::vector<mep_ep_t> eps;
    const mep_ep_config_t config = tiny_config(8);
    for (size_t i = 0; i < objects && !found.bad(); ++i) {
      eps.push_back(nullptr);
      COLL_OK(found, mep_ep_create(comm, &config, &eps.back()));
    }
    all.pass(found);
    if (rank == kVictim) die();
    const double before = cpu_seconds();
    meet_failure(comm, found);
    const double settled = cpu_seconds();
    check_contributors(rank, comm, 0x101, found);
    for (const mep_ep_t ep : eps) COLL_OK(found, mep_ep_destroy(ep));
    printf(
        "rank %d: %zu objects of 8 buffers: %.3f s for the view change, %.3f s to destroy them\n",
        rank, objects, settled - before, cpu_seconds() - settled);
    fflush(stdout);
  });
  job.expect_killed(kVictim);
  job.expect_clean_end();
  report.require_clean();
}

// The bytes of all threads, where there is one arena.
size_t allocated_bytes() {
  return mallinfo2().uordblks;
}

// Comms and EP objects that come and go, each used: then a death, and a destroy that waits for nobody.
void cycles_leave_nothing(void**) {
  const size_t cycles = slice(2000, 100'000);
  Meeting all(kRanks);
  Report report;
  const auto with_one_arena = [](int) { mallopt(M_ARENA_MAX, 1); };
  const auto body = [&](int rank, mep_comm_t comm, Report& found) {
    const mep_ep_config_t config = tiny_config(2);
    size_t settled = 0;
    for (size_t cycle = 0; cycle < cycles && !found.bad(); ++cycle) {
      mep_comm_t child = nullptr;
      COLL_OK(found, mep_comm_split(comm, 0, 0, &child));
      mep_ep_t inner = nullptr;
      mep_ep_t outer = nullptr;
      COLL_OK(found, mep_ep_create(child, &config, &inner));
      COLL_OK(found, mep_ep_create(comm, &config, &outer));
      for (const mep_ep_t ep : {inner, outer}) {
        mep_ep_handle_t handle = nullptr;
        COLL_OK(found, mep_ep_handle_create(ep, 0, &handle));
        DispatchTokens nothing;
        DispatchRows receive;
        COLL_OK(found, dispatch_halves(handle, &nothing, &receive, nullptr));
        combine(ep, handle, nullptr, found);
        COLL_OK(found, mep_ep_handle_destroy(handle));
        COLL_OK(found, mep_ep_destroy(ep));
      }
      COLL_OK(found, mep_barrier(child, nullptr));
      COLL_OK(found, mep_comm_destroy(child));
      COLL_OK(found, mep_barrier(comm, nullptr));
      if (cycle == cycles / 4) settled = allocated_bytes();
    }
    // Less than a channel's state for each cycle.
    const size_t now = allocated_bytes();
    if (now > settled + cycles / 4 * 3 * 24) {
      found.add("rank %d: %zu bytes allocated, %zu after a quarter of the cycles", rank, now,
                settled);
    }
    lose_rank(kVictim, rank, comm, all, found);
    check_contributors(rank, comm, 0x101, found);
    COLL_OK(found, mep_barrier(comm, nullptr));
    // Its own limit is the comm's, of a minute: who does not wait for it ends long before.
    const mep::Deadline limit = mep::Deadline::after_ms(30'000);
    const mep_result_t left = mep_comm_destroy(comm);
    COLL_CHECK(found, left == MEP_SUCCESS && !limit.expired());
    if (found.bad()) fprintf(stderr, "rank %d:%s\n", rank, found.text().c_str());
    fflush(stderr);
    _exit(found.bad() ? 1 : 0);
  };
  JoinJob job(kRanks, patient_config(0), report, body, with_one_arena);
  job.expect_killed(kVictim);
  job.expect_clean_end();
  report.require_clean();
}

// Ranks of which half come after the first notice of the others: each looks for many. Some 20 s, so in the soak alone.
void many_ranks_start_though_half_are_late(void**) {
  constexpr int kMany = 200;
  constexpr unsigned kLateUs = 7'000'000;  // the first notice comes after 5 s
  if (!soak_flag()) return;
  Report report;
  JoinJob job(
      kMany, patient_config(0), report,
      [](int, mep_comm_t comm, Report& found) {
        const int32_t one = 1;
        int32_t sum = 0;
        COLL_OK(found, mep_allreduce(&one, &sum, 1, MEP_INT32, MEP_SUM, comm, nullptr));
        COLL_CHECK(found, sum == kMany);
      },
      [](int rank) {
        if (rank < kMany / 2) pause_us(kLateUs);
      });
  job.expect_clean_end();
  report.require_clean();
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(replacement_finds_all), cmocka_unit_test(limits_are_refused),
      cmocka_unit_test(many_channels_are_settled), cmocka_unit_test(cycles_leave_nothing),
      cmocka_unit_test(many_ranks_start_though_half_are_late)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
