// A job of rank processes of which some are killed at random moments, and what the others found: each
// writes its results, in the order of its calls, to memory that the test compares afterwards.
#pragma once

#include <sys/time.h>

#include <atomic>

#include "base/failpoint.hpp"
#include "support/coll_ranks.hpp"
#include "support/shared_memory.hpp"

namespace mep_test {

// One rank's findings. Written by its process alone; read once that has ended.
struct RankLog {
  static constexpr uint32_t kMost = 4096;
  uint32_t count = 0;
  bool is_complete = false;  // it came to its end
  uint32_t longest_ms = 0;   // of its calls
  int32_t results[kMost];
  char text[kMost / 16][48];  // of the first results that are errors
  uint32_t texts = 0;

  mep_result_t note(mep_result_t result, uint64_t begun_ns) {
    const auto ms = static_cast<uint32_t>((mep::now_ns() - begun_ns) / 1'000'000);
    longest_ms = std::max(longest_ms, ms);
    if (count < kMost) results[count++] = result;
    return result;
  }
};

// The default action of SIGALRM ends the process, whatever its threads do.
inline void die_after_us(uint64_t us) {
  itimerval timer{};
  timer.it_value.tv_sec = static_cast<time_t>(us / 1'000'000);
  timer.it_value.tv_usec = static_cast<suseconds_t>(us % 1'000'000);
  if (us == 0) timer.it_value.tv_usec = 1;
  setitimer(ITIMER_REAL, &timer, nullptr);
}

struct KillJob {
  struct Ended {
    bool in_time = true;
    int status = 0;
  };

  // Forks `count` processes and waits for them; the caller has no threads.
  static std::vector<Ended> run(int count, const std::function<void(int)>& body,
                                unsigned limit_ms) {
    fflush(stdout);
    fflush(stderr);
    std::vector<pid_t> pids;
    for (int i = 0; i < count; ++i) {
      const pid_t pid = fork();
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        // CMocka's handlers would go on with the next test in this process.
        for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
          signal(number, SIG_DFL);
        }
        body(i);
        _exit(0);
      }
      pids.push_back(pid);
    }
    std::vector<Ended> ended(pids.size());
    const uint64_t start = mep::now_ns();
    for (size_t i = 0; i < pids.size(); ++i) {
      while (waitpid(pids[i], &ended[i].status, WNOHANG) == 0) {
        if ((mep::now_ns() - start) / 1'000'000 > limit_ms) {
          ended[i].in_time = false;
          kill(pids[i], SIGKILL);
          waitpid(pids[i], &ended[i].status, 0);
          break;
        }
        pause_us(500);
      }
    }
    return ended;
  }
};

}  // namespace mep_test
