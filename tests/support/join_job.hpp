// A job of rank processes that joiners join while it runs. The test's process starts them all and has
// no threads; what processes tell each other beside the library lies in a shared page.
#pragma once

#include <atomic>
#include <memory>

#include "base/failpoint.hpp"
#include "core/bootstrap/local_socket.hpp"
#include "support/coll_ranks.hpp"
#include "support/meeting.hpp"
#include "support/shared_memory.hpp"

namespace mep_test {

inline constexpr uint32_t kNeverMs = 600'000;  // longer than any test may take

// Counters of all processes of a test.
struct Page {
  std::atomic<int> at[16];

  void reach(int stage) { at[stage].fetch_add(1); }
  void await(int stage, int count) const {
    while (at[stage].load() < count) pause_us(500);
  }
};

class JoinJob {
 public:
  // `first`: what a rank's process does before it starts.
  JoinJob(int size, const mep_comm_config_t& config, Report& report, const RankBody& body,
          const std::function<void(int rank)>& first = {})
      : config_(config), report_(report), job_(new_job_name()) {
    for (int rank = 0; rank < size; ++rank) {
      start([&, rank] {
        if (first) first(rank);
        return rank_process(rank, size, job_, config_, body);
      });
    }
  }
  ~JoinJob() {
    for (const pid_t pid : processes_) {
      if (pid > 0) kill(pid, SIGKILL);
    }
    for (const pid_t pid : processes_) {
      if (pid > 0) waitpid(pid, nullptr, 0);
    }
  }
  JoinJob(const JoinJob&) = delete;
  JoinJob& operator=(const JoinJob&) = delete;

  // A joiner for `rank`, or for any absent one (-1), with "POINT=kill" or "POINT=stop" perhaps.
  // Returns its index among all processes.
  size_t join(int rank, const RankBody& body, const char* failpoint = nullptr) {
    return joiner(rank, body, MEP_SUCCESS, failpoint);
  }
  // One that is not let in.
  size_t join_in_vain(int rank, mep_result_t expected, const char* failpoint = nullptr) {
    return joiner(
        rank, [](int, mep_comm_t, Report&) {}, expected, failpoint);
  }

  // Its wait status; -1 if it does not end.
  int status_of(size_t index) {
    int status = -1;
    for (unsigned waited_ms = 0; waited_ms < 110'000 || soak_flag(); ++waited_ms) {
      if (waitpid(processes_[index], &status, WNOHANG) != 0) {
        processes_[index] = 0;
        return status;
      }
      pause_us(1000);
    }
    report_.add("process %zu did not end", index);
    return -1;
  }
  void await_stopped(size_t index) {
    int status = 0;
    if (waitpid(processes_[index], &status, WUNTRACED) < 0 || !WIFSTOPPED(status)) {
      report_.add("process %zu has status 0x%x, it was to stop", index, status);
    }
  }
  // Until somebody listens as `rank` (on this host).
  void await_place(int rank) const {
    const std::string name = mep::local_socket_name(geteuid(), job_, rank);
    mep::UniqueFd socket;
    while (mep::connect_local(name, &socket) == MEP_SUCCESS && !socket.valid()) pause_us(500);
  }
  void expect_killed(size_t index) {
    const int status = status_of(index);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
      report_.add("process %zu ended with status 0x%x, it was to be killed", index, status);
    }
  }
  void expect_clean_end() {
    for (size_t i = 0; i < processes_.size(); ++i) {
      if (processes_[i] == 0) continue;
      const int status = status_of(i);
      if (status != 0) report_.add("process %zu ended with status 0x%x", i, status);
    }
  }
  pid_t pid(size_t index) const { return processes_[index]; }

  static SharedMemory<Page> shared_page() { return make_shared_memory<Page>(); }

 private:
  size_t joiner(int rank, const RankBody& body, mep_result_t expected, const char* failpoint) {
    return start([&] {
      Report found;
      if (failpoint != nullptr) {
        COLL_OK(found, mep::failpoint_arm(failpoint));
      }
      setenv("MEP_JOB", job_.c_str(), 1);
      mep_comm_config_t config = config_;
      config.max_size = 0;
      if (rank >= 0) {
        config.flags |= MEP_COMM_SET_RANK;
        config.rank = rank;
      }
      mep_comm_t comm = nullptr;
      const MapScope map(&config);
      COLL_EXPECT(found, expected, mep_comm_join(&config, &comm));
      if (comm != nullptr) {
        int32_t own = -1;
        COLL_OK(found, mep_comm_rank(comm, &own));
        COLL_CHECK(found, rank < 0 || own == rank);
        body(own, comm, found);
        COLL_OK(found, mep_comm_destroy(comm));
      }
      if (found.bad()) fprintf(stderr, "joiner:%s\n", found.text().c_str());
      return found.bad() ? 1 : 0;
    });
  }

  template <typename Body>
  size_t start(Body&& body) {
    fflush(stdout);
    fflush(stderr);
    const pid_t pid = fork();
    if (pid < 0) report_.add("fork: %m");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(body());
    }
    processes_.push_back(pid);
    return processes_.size() - 1;
  }

  const mep_comm_config_t config_;
  Report& report_;
  const std::string job_;
  std::vector<pid_t> processes_;  // 0: has ended
};

// Until a call answers something else than success, however long it takes.
inline void call_until(mep_result_t end, mep_comm_t comm, Report& report) {
  mep_result_t result = MEP_SUCCESS;
  while (result == MEP_SUCCESS) result = mep_barrier(comm, nullptr);
  if (result != end) {
    report.add("a barrier gave %s (%s)", mep_result_string(result), mep_last_error());
  }
}

// Barriers until one tells of the failure.
inline void meet_failure(mep_comm_t comm, Report& report) {
  call_until(MEP_ERR_PEER_FAILED, comm, report);
}

inline int32_t live_of(mep_comm_t comm, Report& report) {
  int32_t live = -1;
  COLL_OK(report, mep_comm_live_count(comm, &live));
  return live;
}

// Every rank gives 16^rank, so the sum names who took part.
inline void check_contributors(int rank, mep_comm_t comm, uint64_t expected, Report& report) {
  uint64_t value = uint64_t{1} << (4 * rank);
  uint64_t sum = 0;
  COLL_OK(report, mep_allreduce(&value, &sum, 1, MEP_UINT64, MEP_SUM, comm, nullptr));
  if (sum != expected) {
    report.add("rank %d: contributors are %#llx, not %#llx", rank,
               static_cast<unsigned long long>(sum), static_cast<unsigned long long>(expected));
  }
}

// Until so few take part in a call. The view here may be newer than the one of the last call, and on others not, so it
// is no measure: they would make one call more.
inline void call_until_few(uint64_t ranks, mep_comm_t comm, const Report& report) {
  const uint64_t one = 1;
  uint64_t took_part = UINT64_MAX;
  mep_result_t result = MEP_ERR_PEER_FAILED;
  while ((result != MEP_SUCCESS || took_part > ranks) && !report.bad()) {
    result = mep_allreduce(&one, &took_part, 1, MEP_UINT64, MEP_SUM, comm, nullptr);
  }
}

[[noreturn]] inline void die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

// All meet; then rank `victim` dies, and the others are told.
inline void lose_rank(int victim, int rank, mep_comm_t comm, Meeting& all, Report& report) {
  all.pass(report);
  if (rank == victim) die();
  meet_failure(comm, report);
}

}  // namespace mep_test
