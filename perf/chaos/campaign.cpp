#include "campaign.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "session.hpp"

namespace mep::programs {
namespace {

constexpr int kRefused = 3;

double now_s() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

std::string replay_command(const Campaign& campaign, uint64_t seed) {
  const char* const reach = campaign.limits.device ? std::getenv("MEP_CUDA_REACH") : nullptr;
  std::string text = reach != nullptr ? std::string("MEP_CUDA_REACH=") + reach + " " : "";
  text += "mep_chaos --programs 1 --seed " + std::to_string(seed) + " --mode " +
          name_of(campaign.limits.mode);
  if (!campaign.limits.faults) text += " --no-faults";
  if (!campaign.limits.ep) text += " --no-ep";
  if (campaign.limits.device) text += " --device";
  if (!campaign.limits.shape.empty()) text += " --shape " + campaign.limits.shape;
  if (campaign.limits.patience != 1)
    text += " --patience " + std::to_string(campaign.limits.patience);
  if (campaign.limits.steps != UINT32_MAX)
    text += " --steps " + std::to_string(campaign.limits.steps);
  return text + " -v";
}

// One program, in this process. Findings go to stdout. Exit status: 0, 1 with findings, or kRefused.
int run_one(const Campaign& campaign, uint64_t seed) {
  const Program program = generate(seed, campaign.limits);
  if (campaign.prints) {
    std::fputs(program.text().c_str(), stdout);
    return 0;
  }
  Outcome outcome = run_program(program, campaign.sabotage, campaign.hang_ms, campaign.verbose);
  std::erase_if(outcome.findings, [&](const Finding& finding) {
    return std::any_of(
        campaign.ignored.begin(), campaign.ignored.end(), [&](const std::string& text) {
          return (std::string(name_of(finding.kind)) + ": " + finding.text).find(text) !=
                 std::string::npos;
        });
  });
  if (campaign.verbose) std::fputs(outcome.story.c_str(), stdout);
  if (outcome.findings.empty()) return outcome.refused ? kRefused : 0;
  std::string text =
      "! seed " + std::to_string(seed) + ": " + replay_command(campaign, seed) + "\n";
  size_t shown = 0;
  for (const Finding& finding : outcome.findings) {
    if (++shown > 8) break;
    text += std::string("    ") + name_of(finding.kind) + " at step ";
    text += finding.step < program.steps.size() ? program.text_of(finding.step)
                                                : std::to_string(finding.step);
    text += "\n        " + finding.text + "\n";
  }
  if (outcome.findings.size() > shown) {
    text += "    and " + std::to_string(outcome.findings.size() - shown + 1) + " more\n";
  }
  std::error_code ignored;
  std::filesystem::create_directories(campaign.folder, ignored);
  const std::string path =
      campaign.folder + "/" + name_of(program.mode) + "-" + std::to_string(seed) + ".txt";
  std::ofstream(path) << text << "\n" << outcome.story;
  text += "    all that the ranks said: " + path + "\n";
  std::fputs(text.c_str(), stdout);
  return 1;
}

class Runner {
 public:
  explicit Runner(const Campaign& campaign) : campaign_(campaign) {}

  int run() {
    const double begin = now_s();
    const double limit = campaign_.seconds == 0 ? 1e18 : static_cast<double>(campaign_.seconds);
    uint64_t next = 0;
    for (;;) {
      const bool enough = campaign_.max_findings != 0 && found_ >= campaign_.max_findings;
      const bool more = next < campaign_.programs && now_s() - begin < limit && !enough;
      if (more && running_.size() < campaign_.jobs) {
        start(campaign_.seed + next++);
        continue;
      }
      if (running_.empty()) break;
      reap();
    }
    std::printf("mep_chaos: %llu programs from seed %llu, mode %s, %.1f s, %llu with findings\n",
                static_cast<unsigned long long>(done_),
                static_cast<unsigned long long>(campaign_.seed), name_of(campaign_.limits.mode),
                now_s() - begin, static_cast<unsigned long long>(found_));
    if (refused_ != 0) {
      std::printf("%llu of them were not run: the GPUs do not hold their ranks together\n",
                  static_cast<unsigned long long>(refused_));
    }
    // Without a GPU all are.
    return found_ == 0 && (refused_ == 0 || refused_ < done_) ? 0 : 1;
  }

 private:
  void start(uint64_t seed) {
    std::fflush(stdout);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) throw std::runtime_error("fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);
      int status = 2;
      // Threads cannot be ended from outside; the kernel ends the process.
      if (campaign_.limits.mode == Mode::kThreads) alarm(campaign_.hang_ms / 1000 + 1);
      try {
        status = run_one(campaign_, seed);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "mep_chaos: seed %llu: %s\n", static_cast<unsigned long long>(seed),
                     error.what());
      }
      std::fflush(stdout);
      _exit(status);
    }
    running_[pid] = seed;
  }

  void reap() {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, 0);
    const auto found = running_.find(pid);
    if (found == running_.end()) return;
    ++done_;
    if (WIFEXITED(status) && WEXITSTATUS(status) == kRefused) {
      ++refused_;
    } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      ++found_;
      if (WIFSIGNALED(status)) {
        std::printf("! seed %llu: %s\n    the program ended by signal %d%s\n",
                    static_cast<unsigned long long>(found->second),
                    replay_command(campaign_, found->second).c_str(), WTERMSIG(status),
                    WTERMSIG(status) == SIGALRM ? ": it hangs" : "");
      } else if (WEXITSTATUS(status) != 1) {
        std::printf("! seed %llu: %s\n    exit status %d\n",
                    static_cast<unsigned long long>(found->second),
                    replay_command(campaign_, found->second).c_str(), WEXITSTATUS(status));
      }
    }
    running_.erase(found);
  }

  const Campaign& campaign_;
  std::map<pid_t, uint64_t> running_;
  uint64_t done_ = 0;
  uint64_t found_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace

int run_campaign(const Campaign& campaign) {
  return Runner(campaign).run();
}

}  // namespace mep::programs
