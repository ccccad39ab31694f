// Three moments follow a kill, each of them when the last rank has come to it:
//   notice   the survivors have the error, from the allreduce that they repeat
//   resume   the survivors' next allreduce has succeeded, without the lost rank
//   join     the allreduce of all ranks has succeeded again; counted from the replacement's call of mep_comm_join
// All are read from CLOCK_MONOTONIC, so the ranks are on one host.
#include "recovery.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "buffer.hpp"
#include "device_side.hpp"
#include "error.hpp"
#include "records.hpp"
#include "table.hpp"
#include "team.hpp"
#include "timing.hpp"
#include "types.hpp"

namespace mep::perf {
namespace {

constexpr int kWarmups = 50;  // allreduces before a kill
// The members' wait for a replacement, which starts and fills its memory before it joins.
constexpr double kReplaceMs = 30'000;
constexpr double kReplaceMsOfGiB = 2'000;
constexpr double kGiB = 1 << 30;

struct Sample {
  double notice_us;
  double resume_us;
  double join_us;
};

// The processes of one rank, the parent and its children in turn, share it. The parent writes `killed_at` before it kills
// a child, and reads the rest after the child's end.
struct Shared {
  double killed_at;  // seconds
  uint32_t kill;     // the number of the kill that this rank waits for, or is the replacement of
  int32_t rank;
  int32_t size;
  Sample* samples;  // of all kills, behind this; each process writes those that it was there for
};

class SharedPage {
 public:
  explicit SharedPage(uint32_t kills) : bytes_(sizeof(Shared) + kills * sizeof(Sample)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw PerfError("no memory to share with the rank");
    shared_ = static_cast<Shared*>(memory);
    shared_->samples = reinterpret_cast<Sample*>(shared_ + 1);
  }
  ~SharedPage() { munmap(shared_, bytes_); }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  Shared* get() const { return shared_; }

 private:
  size_t bytes_;
  Shared* shared_ = nullptr;
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Another number for each start of a kernel.
double clock_number() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string digits;
  std::getline(file, digits, '-');
  return static_cast<double>(std::strtoul(digits.c_str(), nullptr, 16));
}

// The child: one process of a rank.
class Rank {
 public:
  Rank(const Options& options, Shared* shared, int ready_pipe)
      : options_(options),
        shared_(shared),
        ready_pipe_(ready_pipe),
        count_(std::max<size_t>(1, options.allreduce_bytes / sizeof(float))),
        ones_(options.on_device ? 0 : count_, 1.0F),
        sums_(ones_) {}

  // Throws PerfError.
  void run(const mep_comm_config_t& config, bool is_replacement) {
    const double joined_at = begin(config, is_replacement);
    uint32_t kill = 0;
    if (is_replacement) {
      kill = shared_->kill;
      meet_all(kill++, {0, 0, shared_->killed_at, joined_at, 0});
    }
    for (; kill < options_.kills; ++kill) {
      const auto victim = static_cast<int32_t>(kill % static_cast<uint32_t>(team_->size()));
      if (victim == team_->rank()) wait_for_the_kill(kill);
      survive(kill, victim);
    }
    team_.reset();
    device_.reset();
    require(mep_comm_destroy(comm_), "mep_comm_destroy");
  }
  int number() const { return team_ == nullptr ? -1 : team_->rank(); }
  void give_up() const {
    if (comm_ != nullptr) (void)mep_comm_abort(comm_);
  }

 private:
  // One kill, in seconds; each moment is the latest of the ranks that know it.
  struct Moments {
    double notice;
    double resume;
    double kill;
    double join;
    double all;
  };

  double begin(const mep_comm_config_t& config, bool is_replacement);
  [[noreturn]] void wait_for_the_kill(uint32_t kill);
  void survive(uint32_t kill, int32_t victim);
  void meet_all(uint32_t kill, Moments moments);
  mep_result_t reduce();
  // Every rank adds 1.
  void reduce_over(int ranks) {
    require(reduce(), "mep_allreduce");
    if (sum_ != static_cast<float>(ranks)) {
      throw PerfError("the allreduce of " + std::to_string(ranks) + " ranks had the sum " +
                      figure_text(sum_) + ": another rank was lost");
    }
  }

  const Options& options_;
  Shared* shared_;
  const int ready_pipe_;
  const size_t count_;
  std::vector<float> ones_;
  std::vector<float> sums_;
  float sum_ = 0;
  Buffer memory_;
  mep_comm_t comm_ = nullptr;
  std::unique_ptr<DeviceRank> device_;
  std::unique_ptr<Team> team_;
};

// When mep_comm_join was called.
double Rank::begin(const mep_comm_config_t& config, bool is_replacement) {
  const auto bytes = static_cast<size_t>(options_.memory_gib * kGiB);
  if (options_.on_device) {
    prepare_device(options_.device);
  } else if (bytes > 0) {
    memory_ = Buffer(bytes);
    std::memset(memory_.as<void>(), 1, bytes);
  }
  const double called_at = now_s();
  if (is_replacement) {
    require(mep_comm_join(&config, &comm_), "mep_comm_join");
  } else {
    require(mep_comm_init(&config, &comm_), "mep_comm_init");
  }
  if (options_.on_device) {
    device_ = make_device_rank(comm_);
    if (bytes > 0) device_->hold(bytes);
  }
  team_ = device_ != nullptr ? device_->make_team() : make_mep_team(comm_);
  if (is_replacement) return called_at;
  if (team_->size() < 2) throw PerfError("recovery needs two ranks");
  double clocks[] = {clock_number(), -clock_number()};
  team_->maximum(clocks, 2);
  if (clocks[0] != -clocks[1]) {
    throw PerfError("recovery compares clocks of its ranks: all must be on one host");
  }
  shared_->rank = team_->rank();
  shared_->size = team_->size();
  return called_at;
}

// An allreduce of count_ ones; sum_ is the first element.
mep_result_t Rank::reduce() {
  if (device_ != nullptr) return device_->reduce_ones(count_, &sum_);
  const mep_result_t result =
      mep_allreduce(ones_.data(), sums_.data(), count_, MEP_FLOAT32, MEP_SUM, comm_, nullptr);
  sum_ = sums_[0];
  return result;
}

void Rank::wait_for_the_kill(uint32_t kill) {
  for (int i = 0; i < kWarmups; ++i) reduce_over(team_->size());
  shared_->kill = kill;
  const char byte = 0;
  if (write(ready_pipe_, &byte, 1) != 1) throw PerfError("the process of mep_run is gone");
  for (;;) reduce_over(team_->size());
}

void Rank::survive(uint32_t kill, int32_t victim) {
  Moments moments{};
  mep_result_t result = MEP_SUCCESS;
  while (result == MEP_SUCCESS) result = reduce();
  moments.notice = now_s();
  if (result != MEP_ERR_PEER_FAILED) require(result, "mep_allreduce");
  reduce_over(team_->size() - 1);
  moments.resume = now_s();
  int32_t admitted = 0;
  const auto limit_ms = static_cast<uint32_t>(kReplaceMs + kReplaceMsOfGiB * options_.memory_gib);
  require(mep_recover_ranks(comm_, &victim, 1, limit_ms, &admitted), "mep_recover_ranks");
  meet_all(kill, moments);
}

void Rank::meet_all(uint32_t kill, Moments moments) {
  reduce_over(team_->size());
  moments.all = now_s();
  double values[] = {moments.notice, moments.resume, moments.kill, moments.join, moments.all};
  team_->maximum(values, std::size(values));
  const auto [notice, resume, killed, joined, all] = values;
  shared_->samples[kill] = {1e6 * (notice - killed), 1e6 * (resume - killed), 1e6 * (all - joined)};
}

// The child's exit status.
int be_a_rank(const Options& options, const mep_comm_config_t& config, Shared* shared, int pipe,
              bool is_replacement) {
  setenv("MEP_LOG", "error", 0);  // that ranks die is no news here
  Rank rank(options, shared, pipe);
  try {
    rank.run(config, is_replacement);
    return 0;
  } catch (const std::exception& error) {
    (void)std::fprintf(stderr, "mep_perf: rank %d: %s\n", rank.number(), error.what());
    rank.give_up();
    return 1;
  }
}

// The parent's part of one child: its wait status. *was_killed: by this process, as planned.
int run_child(const Options& options, const mep_comm_config_t& config, Shared* shared,
              bool is_replacement, bool* was_killed) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw PerfError(std::string("pipe: ") + std::strerror(errno));
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw PerfError(std::string("fork: ") + std::strerror(errno));
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close(ends[0]);
    _exit(be_a_rank(options, config, shared, ends[1], is_replacement));
  }
  close(ends[1]);
  char byte = 0;
  ssize_t count = 0;
  do {  // the end of the child closes the pipe
    count = read(ends[0], &byte, 1);
  } while (count < 0 && errno == EINTR);
  close(ends[0]);
  *was_killed = count == 1;
  if (*was_killed) {
    // At different moments of a heartbeat.
    std::this_thread::sleep_for(std::chrono::milliseconds(10 + 37 * shared->kill % 100));
    shared->killed_at = now_s();
    kill(child, SIGKILL);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

struct Figure {
  const char* name;  // in JSON
  const char* text;
  double Sample::*value;
};

constexpr Figure kFigures[] = {
    {"notice", "from the kill to the error on the last survivor", &Sample::notice_us},
    {"resume", "from the kill to the survivors' next success", &Sample::resume_us},
    {"join", "from mep_comm_join to a success of all ranks", &Sample::join_us},
};

void print_figures(const Options& options, const Shared& shared) {
  const size_t bytes = std::max<size_t>(1, options.allreduce_bytes / sizeof(float)) * sizeof(float);
  Record record;
  record.text("op", options.operation);
  record.whole("ranks", static_cast<uint64_t>(shared.size));
  record.whole("bytes", bytes);
  record.text("device", options.on_device ? "cuda" : "host");
  record.whole("kills", options.kills);
  record.number("memory_gib", options.memory_gib);
  (void)std::printf("# mep_perf %s: recovery, %d ranks, allreduce of %s, %u kills",
                    library_version().c_str(), shared.size,
                    bytes_text(static_cast<double>(bytes)).c_str(), options.kills);
  if (options.memory_gib > 0) (void)std::printf(", %g GiB filled", options.memory_gib);
  (void)std::printf("\n%-48s %9s %9s %9s\n", "milliseconds", "p50", "p99", "worst");
  for (const Figure& figure : kFigures) {
    std::vector<double> us;
    for (uint32_t i = 0; i < options.kills; ++i) us.push_back(shared.samples[i].*figure.value);
    const Statistics statistics = statistics_of(us);
    const double ms[] = {statistics.p50_us / 1e3, statistics.p99_us / 1e3,
                         *std::max_element(us.begin(), us.end()) / 1e3};
    const char* const names[] = {"p50", "p99", "worst"};
    (void)std::printf("%-48s", figure.text);
    for (size_t i = 0; i < std::size(ms); ++i) {
      (void)std::printf(" %9s", figure_text(ms[i]).c_str());
      record.number(std::string(figure.name) + "_ms_" + names[i], ms[i]);
    }
    (void)std::putchar('\n');
  }
  add_origin(&record, {library_version(), {host_name()}});
  write_records(options, {record});
}

}  // namespace

int run_recovery(const Options& options, const mep_comm_config_t& config) {
  if (secure_getenv("MEP_JOB") == nullptr) {
    throw PerfError("recovery needs ranks of mep_run: mep_run -n 4 mep_perf recovery");
  }
  const char* const number = secure_getenv("MEP_RANK");
  if (number != nullptr && std::string_view(number) == "0") write_records(options, {});
  const SharedPage page(options.kills);
  Shared* const shared = page.get();
  int status = 0;
  bool was_killed = false;
  do {
    status = run_child(options, config, shared, was_killed, &was_killed);
  } while (was_killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  if (WIFSIGNALED(status)) {
    throw PerfError("rank " + std::to_string(shared->rank) + " was ended by signal " +
                    std::to_string(WTERMSIG(status)));
  }
  if (status == 0 && shared->rank == 0) print_figures(options, *shared);
  return WEXITSTATUS(status);
}

}  // namespace mep::perf
