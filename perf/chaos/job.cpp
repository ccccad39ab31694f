#include "job.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <new>
#include <stdexcept>

#include "base/clock.hpp"

namespace mep::chaos {

Process::~Process() {
  if (page != nullptr) munmap(page, sizeof(Page));
}

bool Process::killed() const {
  return ended && WIFSIGNALED(wait_status);
}

Job::Job(const Options& options) : options_(options), generations_(kMaxRanks, 0) {
  name_ = "chaos-" + std::to_string(getpid()) + "-" + std::to_string(now_ns());
}

Job::~Job() {
  for (const auto& process : processes_) {
    if (process->ended) continue;
    kill(process->pid, SIGKILL);
    waitpid(process->pid, nullptr, 0);
  }
}

Process* Job::of(uint32_t rank) const {
  Process* found = nullptr;
  for (const auto& process : processes_) {
    if (process->rank == rank) found = process.get();
  }
  return found;
}

Process& Job::start(uint32_t rank, bool joins, const std::string& environment) {
  auto process = std::make_unique<Process>();
  process->rank = rank;
  process->generation = generations_[rank]++;
  // Inherited by the worker alone: it is made without close-on-exec just before the fork, and this
  // process starts one child at a time.
  const UniqueFd memory(memfd_create("mep-chaos", 0));
  if (!memory.valid() || ftruncate(memory.get(), sizeof(Page)) != 0) {
    throw std::runtime_error(std::string("memfd: ") + std::strerror(errno));
  }
  void* mapped = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (mapped == MAP_FAILED) throw std::runtime_error(std::string("mmap: ") + std::strerror(errno));
  // Zeroed pages are what the fields begin with; constructing 4 MB of records would only touch them.
  process->page = static_cast<Page*>(mapped);

  const std::string fd = std::to_string(memory.get());
  const std::string generation = std::to_string(process->generation);
  const std::string seed = std::to_string(options_.seed);
  const std::string ranks = std::to_string(options_.ranks);
  const std::string timeout = std::to_string(options_.timeout_ms);
  const std::string suspect = std::to_string(options_.suspect_ms);
  const std::string heartbeat = std::to_string(options_.heartbeat_ms);
  std::vector<const char*> words = {"mep_chaos",    "--worker",         fd.c_str(),
                                    "--generation", generation.c_str(), "--seed",
                                    seed.c_str(),   "--workload",       options_.workload.c_str(),
                                    "--timeout-ms", timeout.c_str(),    "-n",
                                    ranks.c_str()};
  if (options_.suspect_ms != 0) words.insert(words.end(), {"--suspect-ms", suspect.c_str()});
  if (options_.heartbeat_ms != 0) words.insert(words.end(), {"--heartbeat-ms", heartbeat.c_str()});
  words.push_back(nullptr);
  std::string program = "/proc/self/exe";
  const std::string own_path = std::filesystem::read_symlink(program);
  if (!options_.starter.empty()) {
    program = options_.starter;
    words[0] = own_path.c_str();
    words.insert(words.begin(), program.c_str());
  }
  const pid_t parent = getpid();
  process->started_ns = now_ns();
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    setenv("MEP_RANK", std::to_string(rank).c_str(), 1);
    setenv("MEP_LOCAL_RANK", std::to_string(rank).c_str(), 1);
    setenv("MEP_SIZE", std::to_string(options_.ranks).c_str(), 1);
    setenv("MEP_JOB", name_.c_str(), 1);
    // That ranks die is no news here.
    setenv("MEP_LOG", options_.verbose ? "warn" : "error", 0);
    if (joins) setenv("MEP_JOIN", "1", 1);
    const size_t equals = environment.find('=');
    if (equals != std::string::npos) {
      setenv(environment.substr(0, equals).c_str(), environment.substr(equals + 1).c_str(), 1);
    }
    execv(program.c_str(), const_cast<char* const*>(words.data()));
    _exit(127);
  }
  process->pid = pid;
  processes_.push_back(std::move(process));
  return *processes_.back();
}

void Job::signal(const Process& process, int signal) {
  if (!process.ended) kill(process.pid, signal);
}

void Job::look() {
  for (const auto& process : processes_) {
    if (process->ended) continue;
    int status = 0;
    while (waitpid(process->pid, &status, WNOHANG | WUNTRACED | WCONTINUED) == process->pid) {
      if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
        process->stopped = WIFSTOPPED(status);
        continue;
      }
      process->ended = true;
      process->wait_status = status;
      process->ended_ns = now_ns();
      break;
    }
  }
}

}  // namespace mep::chaos
