#include "session.hpp"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>

namespace mep::programs {
namespace {

// A rank that is slow runs for so long, and stands still so many times as long.
constexpr uint64_t kSlowRunMs = 2;
constexpr uint64_t kSlowFactor = 19;

uint64_t now_us() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000u +
         static_cast<uint64_t>(now.tv_nsec) / 1000u;
}

uint64_t now_ms() {
  return now_us() / 1000;
}

// In memory that the ranks' processes share with this one. Zeroed pages are an empty journal.
class SharedJournal {
 public:
  SharedJournal() {
    void* memory = mmap(nullptr, sizeof(Journal), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no memory for a journal");
    journal_ = static_cast<Journal*>(memory);
  }
  ~SharedJournal() { munmap(journal_, sizeof(Journal)); }
  SharedJournal(const SharedJournal&) = delete;
  SharedJournal& operator=(const SharedJournal&) = delete;
  Journal* get() const { return journal_; }

 private:
  Journal* journal_ = nullptr;
};

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/mep-chaos-XXXXXX";
    if (mkdtemp(name) == nullptr) throw std::runtime_error("no folder in /tmp");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Process {
  Life life;
  pid_t pid = 0;
  bool stopped = false;
  uint64_t wake_at_ms = 0;
  uint64_t slow_at_ms = UINT64_MAX;
  uint64_t slow_until_ms = 0;  // 0: it was not slowed so far
  bool in_join = false;        // a stop of kStopInJoin, which ends otherwise
};

// A replacement that joins while another rank is stopped.
struct StoppedJoin {
  const Fault* fault = nullptr;
  uint32_t slot = 0;  // that is replaced
  uint32_t generation = 0;
  uint64_t ended_us = 0;  // when the replaced process was seen to have ended
  bool has_stopped = false;
  bool is_over = false;
};

class Session {
 public:
  Session(const Program& program, const Sabotage& sabotage)
      : program_(program), sabotage_(sabotage) {
    job_ = "program-" + std::to_string(getpid()) + "-" + std::to_string(program.seed);
    if (program.host_count() > 1) folder_ = std::make_unique<Folder>();
  }

  ~Session() {
    for (const Process& process : processes_) {
      if (process.life.ended) continue;
      kill(process.pid, SIGKILL);
      waitpid(process.pid, nullptr, 0);
    }
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  std::vector<Life> run(uint32_t hang_ms) {
    for (uint32_t slot = 0; slot < program_.ranks; ++slot) start(slot, 0);
    const uint64_t deadline = now_ms() + hang_ms;
    while (look() && now_ms() < deadline) {
      start_replacements();
      for (StoppedJoin& join : stopped_joins_) act_on(&join);
      const timespec pause{0, 500'000};
      nanosleep(&pause, nullptr);
    }
    std::vector<Life> lives;
    for (const Process& process : processes_) lives.push_back(process.life);
    return lives;
  }

  // Files and sockets of the job, whose ranks have ended.
  std::vector<std::string> left_over() const {
    std::vector<std::string> names;
    for (const char* folder : {"/dev/shm", "/tmp"}) {
      std::error_code ignored;
      for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
        names.push_back(entry.path().string());
      }
    }
    std::ifstream sockets("/proc/net/unix");
    for (std::string line; std::getline(sockets, line);) names.push_back(line);
    std::erase_if(names, [&](const std::string& name) { return name.find(job_) == name.npos; });
    return names;
  }

 private:
  Part part_of(uint32_t slot, uint32_t generation, Journal* journal) const {
    Part part;
    part.program = &program_;
    part.slot = slot;
    part.generation = generation;
    part.journal = journal;
    part.job = job_;
    part.sabotage = sabotage_;
    return part;
  }

  void start(uint32_t slot, uint32_t generation) {
    journals_.push_back(std::make_unique<SharedJournal>());
    Process process;
    process.life.slot = slot;
    process.life.generation = generation;
    process.life.journal = journals_.back()->get();
    const pid_t parent = getpid();
    process.pid = fork();
    if (process.pid < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
    if (process.pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);
      const std::string host = "host" + std::to_string(program_.hosts[slot]);
      if (folder_ != nullptr) {
        setenv("MEP_TEST_HOST", host.c_str(), 1);
        setenv("MEP_RENDEZVOUS", folder_->path().c_str(), 1);
        setenv("MEP_ALLOW_INSECURE", "1", 1);
        setenv("MEP_NET_IF", "lo", 0);
      }
      // That ranks die is no news here.
      setenv("MEP_LOG", "error", 0);
      int status = 125;
      try {
        status = Player(part_of(slot, generation, journals_.back()->get())).play();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "mep_chaos: rank %u: %s\n", slot, error.what());
      }
      _exit(status);
    }
    processes_.push_back(process);
  }

  // Whether one still runs.
  bool look() {
    bool any = false;
    for (Process& process : processes_) {
      if (process.life.ended) continue;
      any = true;
      int status = 0;
      while (waitpid(process.pid, &status, WNOHANG | WUNTRACED) == process.pid) {
        if (WIFSTOPPED(status)) {
          if (process.in_join) continue;
          stand_still(&process);
          continue;
        }
        process.life.ended = true;
        process.life.ended_ns = now_us() * 1000;
        process.life.signalled = WIFSIGNALED(status);
        process.life.status = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
        break;
      }
      if (!process.life.ended && process.stopped && now_ms() >= process.wake_at_ms) {
        process.stopped = false;
        go_on(&process, SIGCONT);
        process.slow_at_ms = now_ms() + kSlowRunMs;
      }
      if (!process.life.ended && !process.stopped && now_ms() >= process.slow_at_ms &&
          now_ms() < process.slow_until_ms) {
        process.slow_at_ms = UINT64_MAX;
        kill(process.pid, SIGSTOP);
      }
    }
    return any;
  }

  static void go_on(Process* process, int signal_number) {
    kill(process->pid, signal_number);
    if (!process->life.stops.empty()) process->life.stops.back().to_ns = now_us() * 1000;
  }

  void stand_still(Process* process) const {
    process->stopped = true;
    process->life.stops.push_back({now_us() * 1000});
    for (const Fault& fault : program_.faults) {
      if (!only_stops(fault.kind) || fault.slot != process->life.slot) continue;
      const uint64_t ms = uint64_t{fault.stop_ms} * program_.patience;
      const bool is_slow = fault.kind == FaultKind::kSlow;
      if (process->slow_until_ms == 0 && is_slow) process->slow_until_ms = now_ms() + ms;
      process->wake_at_ms = now_ms() + (is_slow ? kSlowRunMs * kSlowFactor : ms);
      return;
    }
  }

  // A slot whose process has ended gets another one if a later step is to admit it.
  void start_replacements() {
    bool anybody = false;
    for (const Process& process : processes_) anybody = anybody || !process.life.ended;
    if (!anybody) return;
    start_grown();
    for (uint32_t slot = 0; slot < program_.max_ranks; ++slot) {
      const Life* latest = nullptr;
      uint32_t count = 0;
      for (const Process& process : processes_) {
        if (process.life.slot != slot) continue;
        latest = &process.life;
        ++count;
      }
      if (latest == nullptr || !latest->ended || latest->is_done()) continue;
      const auto steps = static_cast<uint32_t>(program_.steps.size());
      if (program_.generation(slot, steps) < count) continue;
      if (may_start(slot, count)) start(slot, count);
    }
  }

  // False: later, for a rank is stopped in this join.
  bool may_start(uint32_t slot, uint32_t generation) {
    for (const StoppedJoin& join : stopped_joins_) {
      if (join.slot != slot || join.generation != generation) continue;
      return now_us() >= join.ended_us + join.fault->start_us;
    }
    for (const Fault& fault : program_.faults) {
      if (fault.kind != FaultKind::kStopInJoin || fault.step >= program_.steps.size()) continue;
      const std::vector<uint32_t>& slots = program_.steps[fault.step].slots;
      if (std::count(slots.begin(), slots.end(), slot) == 0) continue;
      if (program_.generation(slot, fault.step + 1) != generation) continue;
      stopped_joins_.push_back({&fault, slot, generation, now_us()});
      return false;
    }
    return true;
  }

  Process* process_of(uint32_t slot, uint32_t generation) {
    for (Process& process : processes_) {
      if (process.life.slot == slot && process.life.generation == generation) return &process;
    }
    return nullptr;
  }

  void act_on(StoppedJoin* join) {
    const Fault& fault = *join->fault;
    Process* const process = process_of(fault.slot, fault.generation);
    if (join->is_over || process == nullptr || process->life.ended) return;
    const uint64_t stop_at_us = join->ended_us + fault.delay_us;
    const uint64_t now = now_us();
    if (!join->has_stopped && now >= stop_at_us) {
      process->in_join = true;
      join->has_stopped = kill(process->pid, SIGSTOP) == 0;
      if (join->has_stopped) process->life.stops.push_back({now_us() * 1000});
    }
    if (!join->has_stopped) return;
    const bool is_late = now >= stop_at_us + uint64_t{fault.stop_ms} * program_.patience * 1000;
    if (!is_late && !(fault.until_admitted && has_joined(*join))) return;
    join->is_over = true;
    process->in_join = false;
    go_on(process, fault.ends_killed ? SIGKILL : SIGCONT);
  }

  bool has_joined(const StoppedJoin& join) {
    const Process* const process = process_of(join.slot, join.generation);
    if (process == nullptr) return false;
    const Journal& journal = *process->life.journal;
    const uint32_t count = journal.count.load(std::memory_order_acquire);
    return std::any_of(journal.records, journal.records + count, [](const Record& record) {
      return record.entry == Entry::kEnd && record.what == What::kJoin;
    });
  }

  // Starts the added ranks as soon as one rank has come to the growth.
  void start_grown() {
    if (has_grown_) return;
    for (const Process& process : processes_) {
      const uint32_t at = process.life.journal->step.load(std::memory_order_acquire);
      if (at >= program_.steps.size() || program_.steps[at].kind != StepKind::kGrow) continue;
      has_grown_ = true;
      for (const uint32_t slot : program_.steps[at].slots) start(slot, 0);
      return;
    }
  }

  const Program& program_;
  const Sabotage& sabotage_;
  bool has_grown_ = false;
  std::string job_;
  std::unique_ptr<Folder> folder_;
  std::vector<std::unique_ptr<SharedJournal>> journals_;
  std::vector<Process> processes_;
  std::vector<StoppedJoin> stopped_joins_;

 public:
  const std::vector<std::unique_ptr<SharedJournal>>& journals() const { return journals_; }
};

// Ranks as threads of this process. A rank that hangs hangs all: the caller watches over the time.
// Nobody lives where the library refuses so many ranks on a GPU.
std::vector<Life> run_threads(const Program& program, const Sabotage& sabotage,
                              std::vector<std::unique_ptr<SharedJournal>>* journals) {
  setenv("MEP_LOG", "error", 0);
  std::vector<mep_comm_t> worlds(program.ranks, nullptr);
  mep_comm_config_t config = config_of(program, 0);
  config.transports = nullptr;
  std::vector<Life> lives(program.ranks);
  for (uint32_t slot = 0; slot < program.ranks; ++slot) {
    journals->push_back(std::make_unique<SharedJournal>());
    lives[slot].slot = slot;
    lives[slot].journal = journals->back()->get();
  }
  if (!program.maps) setenv("MEP_MAP", "0", 1);
  const mep_result_t result =
      mep_comm_init_all(static_cast<int32_t>(program.ranks), &config, worlds.data());
  if (!program.maps) unsetenv("MEP_MAP");
  if (result == MEP_ERR_UNSUPPORTED && program.device) return {};
  if (result != MEP_SUCCESS) {
    throw std::runtime_error(std::string("mep_comm_init_all: ") + mep_last_error());
  }
  std::vector<std::shared_ptr<Device>> devices(program.ranks);
  for (uint32_t slot = 0; slot < program.ranks && program.device; ++slot) {
    devices[slot] = make_device(worlds[slot], program.device_bytes());
  }
  const auto quiet = program.device ? std::make_shared<Quiet>(program.ranks) : nullptr;
  std::vector<std::thread> threads;
  for (uint32_t slot = 0; slot < program.ranks; ++slot) {
    threads.emplace_back([&, slot] {
      Part part;
      part.program = &program;
      part.slot = slot;
      part.journal = (*journals)[slot]->get();
      part.world = worlds[slot];
      part.device = devices[slot];
      part.quiet = quiet;
      part.sabotage = sabotage;
      lives[slot].status = Player(part).play();
      lives[slot].ended = true;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return lives;
}

Outcome outcome_of(const Program& program, const std::vector<Life>& lives, bool wants_story) {
  Outcome outcome;
  outcome.findings = judge(program, lives);
  if (wants_story || !outcome.findings.empty()) outcome.story = story(program, lives);
  return outcome;
}

}  // namespace

Outcome run_program(const Program& program, const Sabotage& sabotage, uint32_t hang_ms,
                    bool wants_story) {
  if (program.mode == Mode::kThreads) {
    std::vector<std::unique_ptr<SharedJournal>> journals;
    const std::vector<Life> lives = run_threads(program, sabotage, &journals);
    if (!lives.empty()) return outcome_of(program, lives, wants_story);
    Outcome outcome;
    outcome.refused = true;
    return outcome;
  }
  Session session(program, sabotage);
  const std::vector<Life> lives = session.run(hang_ms);
  Outcome outcome = outcome_of(program, lives, wants_story);
  const bool ended =
      std::all_of(lives.begin(), lives.end(), [](const Life& life) { return life.ended; });
  for (const std::string& name : ended ? session.left_over() : std::vector<std::string>()) {
    outcome.findings.push_back(
        {Class::kOther, static_cast<uint32_t>(program.steps.size()), "left over: " + name});
  }
  return outcome;
}

}  // namespace mep::programs
