#include "campaign.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
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
  std::string text;
  for (const char* const name : {"MEP_CUDA_REACH", "MEP_GPU_QUEUES"}) {
    const char* const value = campaign.limits.device ? std::getenv(name) : nullptr;
    if (value != nullptr) text += std::string(name) + "=" + value + " ";
  }
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

// How far a batch has come, in memory that its process shares with this one.
class Progress {
 public:
  struct Counts {
    std::atomic<uint64_t> begun;
    std::atomic<uint64_t> ended;
    std::atomic<uint64_t> found;
    std::atomic<uint64_t> refused;
  };

  Progress() {
    void* const memory =
        mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no memory for the progress of a batch");
    counts_ = new (memory) Counts{};
  }
  ~Progress() { munmap(counts_, sizeof(Counts)); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  Counts* operator->() const { return counts_; }

 private:
  Counts* counts_ = nullptr;
};

class Runner {
 public:
  explicit Runner(const Campaign& campaign) : campaign_(campaign) {}

  int run() {
    begin_s_ = now_s();
    next_line_s_ = begin_s_ + kLineS;
    if (campaign_.seconds != 0) end_s_ = begin_s_ + static_cast<double>(campaign_.seconds);
    uint64_t next = 0;
    for (;;) {
      if (next < campaign_.programs && !is_over(found_) && running_.size() < campaign_.jobs) {
        const uint64_t count = std::min<uint64_t>(batch_of(campaign_), campaign_.programs - next);
        start(campaign_.seed + next, count);
        next += count;
        continue;
      }
      if (running_.empty()) break;
      reap();
    }
    std::printf("mep_chaos: %llu programs from seed %llu, mode %s, %.1f s, %llu with findings\n",
                static_cast<unsigned long long>(done_),
                static_cast<unsigned long long>(campaign_.seed), name_of(campaign_.limits.mode),
                now_s() - begin_s_, static_cast<unsigned long long>(found_));
    if (refused_ != 0) {
      std::printf("%llu of them were not run: the GPUs do not hold their ranks together\n",
                  static_cast<unsigned long long>(refused_));
    }
    // Without a GPU all are.
    return found_ == 0 && (refused_ == 0 || refused_ < done_) ? 0 : 1;
  }

 private:
  struct Batch {
    uint64_t seed;
    uint64_t count;
    std::unique_ptr<Progress> progress;
  };

  // Waits for one of them; says meanwhile how far all are.
  pid_t await_one(int* status) {
    constexpr timespec kNap{0, 2'000'000};
    for (;;) {
      const pid_t pid = waitpid(-1, status, WNOHANG);
      if (pid != 0) return pid;
      if (now_s() >= next_line_s_) say_progress();
      (void)nanosleep(&kNap, nullptr);
    }
  }

  void say_progress() {
    next_line_s_ = now_s() + kLineS;
    uint64_t done = done_;
    uint64_t found = found_;
    for (const auto& [pid, batch] : running_) {
      done += (*batch.progress)->ended;
      found += (*batch.progress)->found;
    }
    std::fprintf(stderr, "mep_chaos: %llu of %llu programs, %.0f s, %llu with findings\n",
                 static_cast<unsigned long long>(done),
                 static_cast<unsigned long long>(campaign_.programs), now_s() - begin_s_,
                 static_cast<unsigned long long>(found));
  }

  bool is_over(uint64_t found) const {
    return (campaign_.max_findings != 0 && found >= campaign_.max_findings) || now_s() >= end_s_;
  }

  void start(uint64_t seed, uint64_t count) {
    std::fflush(stdout);
    Batch batch{seed, count, std::make_unique<Progress>()};
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) throw std::runtime_error("fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);
      const int status = run_batch(batch);
      std::fflush(stdout);
      _exit(status);
    }
    running_[pid] = std::move(batch);
  }

  // In a process of its own; its exit status.
  int run_batch(const Batch& batch) const {
    Progress& progress = *batch.progress;
    for (uint64_t i = 0; i < batch.count && !is_over(found_ + progress->found); ++i) {
      ++progress->begun;
      // Threads cannot be ended from outside; the kernel ends the process.
      if (campaign_.limits.mode == Mode::kThreads) alarm(campaign_.hang_ms / 1000 + 1);
      int status = 0;
      try {
        status = run_one(campaign_, batch.seed + i);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "mep_chaos: seed %llu: %s\n",
                     static_cast<unsigned long long>(batch.seed) + i, error.what());
        return 2;
      }
      std::fflush(stdout);
      if (status == kRefused) ++progress->refused;
      if (status == 1) ++progress->found;
      ++progress->ended;
    }
    return 0;
  }

  void reap() {
    int status = 0;
    const pid_t pid = await_one(&status);
    const auto found = running_.find(pid);
    if (found == running_.end()) return;
    const Batch batch = std::move(found->second);
    running_.erase(found);
    const uint64_t begun = (*batch.progress)->begun;
    done_ += begun;
    found_ += (*batch.progress)->found;
    refused_ += (*batch.progress)->refused;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    ++found_;
    const uint64_t seed = batch.seed + (*batch.progress)->ended;
    std::printf("! seed %llu: %s\n", static_cast<unsigned long long>(seed),
                replay_command(campaign_, seed).c_str());
    if (WIFSIGNALED(status)) {
      std::printf("    the program ended by signal %d%s\n", WTERMSIG(status),
                  WTERMSIG(status) == SIGALRM ? ": it hangs" : "");
    } else {
      std::printf("    exit status %d\n", WEXITSTATUS(status));
    }
    if (begun < batch.count && !is_over(found_)) start(batch.seed + begun, batch.count - begun);
  }

  const Campaign& campaign_;
  std::map<pid_t, Batch> running_;
  static constexpr double kLineS = 10;  // between two lines of progress
  double begin_s_ = 0;
  double next_line_s_ = 0;
  double end_s_ = 1e18;
  uint64_t done_ = 0;
  uint64_t found_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace

int run_campaign(const Campaign& campaign) {
  return Runner(campaign).run();
}

}  // namespace mep::programs
