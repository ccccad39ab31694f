// Ranks of a test: as threads over mep_comm_init_all, or as processes made by fork. A rank's body
// reports what is wrong to a Report; asserts of CMocka work only in the test's own thread.
#pragma once

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "mep.h"
#include "support/cmocka_cpp.hpp"
#include "support/coll_reference.hpp"
#include "support/put_only.hpp"
#include "support/temporary_folder.hpp"
#include "transport/test_network.hpp"

namespace mep_test {

using namespace mep_reference;

// CI runs one fixed slice of the random tests; MEP_TEST_SEED chooses another.
inline uint64_t test_seed() {
  static const uint64_t seed = mep_reference::seed_of_run(20250117);
  return seed;
}

// The whole matrix instead of a slice: --soak, or MEP_TEST_SOAK=1 as ./dev soak sets it.
inline bool& soak_flag() {
  static bool soak = [] {
    const char* text = getenv("MEP_TEST_SOAK");
    return text != nullptr && text[0] != '\0' && text[0] != '0';
  }();
  return soak;
}
// --hosts 0011: on which "host" each rank counts as being, repeated for larger worlds. Threads of
// different hosts reach each other by put and signal alone, processes as MEP_TRANSPORTS says. Empty: all
// on one.
inline std::string& hosts_pattern() {
  static std::string pattern;
  return pattern;
}
// Under a sanitizer tests take fewer numbers of ranks, and fewer of their slowest cases.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

// --less 10: where machines are slow, a tenth of the slice that CI runs.
inline size_t& less() {
  static size_t divisor = 1;
  return divisor;
}
// --ranks 8: only worlds of this size; 0: all that the test has.
inline int& only_size() {
  static int size = 0;
  return size;
}
inline void read_arguments(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--soak") soak_flag() = true;
    if (std::string(argv[i]) == "--hosts" && i + 1 < argc) hosts_pattern() = argv[i + 1];
    if (std::string(argv[i]) == "--ranks" && i + 1 < argc) only_size() = atoi(argv[i + 1]);
    if (std::string(argv[i]) == "--less" && i + 1 < argc) {
      less() = std::max<size_t>(strtoull(argv[i + 1], nullptr, 10), 1);
    }
  }
}
inline size_t slice(size_t ci, size_t soak) {
  return soak_flag() ? soak : std::max<size_t>(ci / less(), 1);
}

// Collects findings of all ranks; the first few are kept.
class Report {
 public:
  __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const std::lock_guard lock(mutex_);
    if (count_.fetch_add(1) < 10) text_ += std::string("\n  ") + text;
  }
  bool bad() const { return count_.load() != 0; }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  void require_clean() const {
    if (bad()) {
      fail_msg("seed %llu, %d findings:%s", static_cast<unsigned long long>(test_seed()),
               count_.load(), text().c_str());
    }
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
  std::atomic<int> count_{0};
};

// Reports `expression` that is not MEP_SUCCESS, with the library's text.
#define COLL_EXPECT(report, expected, expression)                                                  \
  do {                                                                                             \
    const mep_result_t coll_result = (expression);                                                 \
    if (coll_result != (expected)) {                                                               \
      (report).add("%s:%d: %s gave %s, not %s (%s)", __FILE__, __LINE__, #expression,              \
                   mep_result_string(coll_result), mep_result_string(expected), mep_last_error()); \
    }                                                                                              \
  } while (0)
#define COLL_OK(report, expression) COLL_EXPECT(report, MEP_SUCCESS, expression)
#define COLL_CHECK(report, condition)                                                \
  do {                                                                               \
    if (!(condition)) (report).add("%s:%d: not %s", __FILE__, __LINE__, #condition); \
  } while (0)

inline void pause_us(unsigned us) {
  const timespec time{static_cast<time_t>(us / 1000000), static_cast<long>(us % 1000000) * 1000};
  nanosleep(&time, nullptr);
}

// Limits that a busy machine does not reach: a test fails by them only if something hangs.
inline mep_comm_config_t patient_config(uint32_t flags) {
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  config.flags = flags;
  config.timeout_ms = 60'000;
  config.init_timeout_ms = 60'000;
  config.suspect_ms = 60'000;
  return config;
}

using RankBody = std::function<void(int rank, mep_comm_t comm, Report& report)>;

// Runs body on `size` threads.
inline void on_threads(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

// For its life ranks are on the hosts of `pattern`.
class HostsScope {
 public:
  HostsScope(const std::string& pattern, int size) : used_(!pattern.empty()) {
    if (!used_) return;
    std::vector<uint32_t> hosts;
    for (size_t rank = 0; rank < static_cast<size_t>(size); ++rank) {
      hosts.push_back(static_cast<uint32_t>(pattern[rank % pattern.size()]));
    }
    mep::TestNetwork::enable(hosts);
  }
  ~HostsScope() {
    if (used_) mep::TestNetwork::disable();
  }
  HostsScope(const HostsScope&) = delete;
  HostsScope& operator=(const HostsScope&) = delete;

 private:
  bool used_;
};

// A world of threads; every rank destroys its comm itself, without waiting for the others.
inline void with_rank_threads(int size, const mep_comm_config_t& config, Report& report,
                              const RankBody& body) {
  const HostsScope hosts(hosts_pattern(), size);
  std::vector<mep_comm_t> comms(static_cast<size_t>(size), nullptr);
  mep_comm_config_t given = config;
  {
    const MapScope map(&given);
    COLL_OK(report, mep_comm_init_all(size, &given, comms.data()));
  }
  if (report.bad()) return;
  on_threads(size, [&](int rank) {
    const mep_comm_t comm = comms[static_cast<size_t>(rank)];
    body(rank, comm, report);
    COLL_OK(report, mep_comm_destroy(comm));
  });
}

// The same with usual limits; no rank may find anything.
inline void require_on_rank_threads(int size, uint32_t flags, const RankBody& body) {
  Report report;
  with_rank_threads(size, patient_config(flags), report, body);
  report.require_clean();
}

inline std::string new_job_name() {
  static int number = 0;
  return "coll-test-" + std::to_string(getpid()) + "-" + std::to_string(number++);
}

// A rank process is on the "host" of its letter in hosts_pattern(); these find each other by a directory.
inline void play_host(int rank, const std::string& folder) {
  const std::string& pattern = hosts_pattern();
  const char host = pattern[static_cast<size_t>(rank) % pattern.size()];
  setenv("MEP_TEST_HOST", std::string(1, host).c_str(), 1);
  setenv("MEP_RENDEZVOUS", folder.c_str(), 1);
  setenv("MEP_ALLOW_INSECURE", "1", 1);
}

// Runs in a rank's process before it makes its communicator; for jobs whose ranks are not alike.
inline std::function<void(int rank)>& before_rank() {
  static std::function<void(int rank)> hook;
  return hook;
}

// The life of one rank process, from its environment to its exit status.
inline int rank_process(int rank, int size, const std::string& job, mep_comm_config_t config,
                        const RankBody& body) {
  setenv("MEP_RANK", std::to_string(rank).c_str(), 1);
  setenv("MEP_SIZE", std::to_string(size).c_str(), 1);
  setenv("MEP_JOB", job.c_str(), 1);
  if (before_rank()) before_rank()(rank);
  Report report;
  mep_comm_t comm = nullptr;
  {
    const MapScope map(&config);
    COLL_OK(report, mep_comm_init(&config, &comm));
  }
  if (comm != nullptr) {
    body(rank, comm, report);
    COLL_OK(report, mep_comm_destroy(comm));
  }
  if (report.bad()) {
    fprintf(stderr, "rank %d of %d:%s\n", rank, size, report.text().c_str());
    fflush(stderr);
  }
  return report.bad() ? 1 : 0;
}

// The caller must have no other threads. Ranks that do not end in time are killed and reported.
// `expected` may accept another wait status of a rank than a clean exit.
inline void with_rank_processes(int size, const mep_comm_config_t& config, Report& report,
                                const RankBody& body,
                                const std::function<bool(int rank, int status)>& expected = {}) {
  const std::string job = new_job_name();
  const TemporaryFolder meeting;
  std::vector<pid_t> ranks;
  fflush(stdout);
  fflush(stderr);
  for (int rank = 0; rank < size; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) report.add("fork: %m");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (!hosts_pattern().empty()) play_host(rank, meeting.path());
      _exit(rank_process(rank, size, job, config, body));
    }
    if (pid > 0) ranks.push_back(pid);
  }
  constexpr unsigned kLimitMs = 110'000;
  unsigned waited_ms = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(ranks[rank], &status, WNOHANG)) == 0 &&
           (waited_ms < kLimitMs || soak_flag())) {
      pause_us(1000);
      waited_ms += 1;
    }
    if (ended == 0) {
      kill(ranks[rank], SIGKILL);
      waitpid(ranks[rank], &status, 0);
      report.add("rank %zu of %d did not end", rank, size);
    } else if ((!WIFEXITED(status) || WEXITSTATUS(status) != 0) &&
               (!expected || !expected(static_cast<int>(rank), status))) {
      report.add("rank %zu of %d ended with status 0x%x", rank, size, status);
    }
  }
}

}  // namespace mep_test
