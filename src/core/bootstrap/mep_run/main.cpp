// mep_run: starts the ranks of a job on this host, without MPI. The end of a rank, however it comes
// about, does nothing to the others, unless --end-on-failure asks for that.
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.hpp"
#include "base/rank_list.hpp"
#include "base/status.hpp"
#include "core/bootstrap/mep_run/process_group.hpp"
#include "core/bootstrap/net_address.hpp"

namespace mep {
namespace {

constexpr int kUsageStatus = 2;
constexpr int kTimeoutStatus = 124;
constexpr int kCannotStartStatus = 127;
constexpr int kMaxRespawnsOfRank = 16;
constexpr uint64_t kGraceMs = 5000;
constexpr int32_t kMaxRanksHere = 4096;
constexpr uint64_t kMaxRanks = 1 << 16;

constexpr const char* kHelp =
    "usage: mep_run -n N [OPTION]... [--] COMMAND [ARGUMENT]...\n"
    "\n"
    "Starts N ranks of a MEP job on this host. Each finds its rank, the size and the\n"
    "job's name in its environment (MEP_RANK, MEP_SIZE, MEP_JOB, MEP_LOCAL_RANK), and\n"
    "what torch.distributed reads (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,\n"
    "MASTER_ADDR, MASTER_PORT). When a rank fails, the others continue.\n"
    "\n"
    "  -n N            number of ranks here\n"
    "  --size N        number of ranks of the world, when other hosts have more of\n"
    "                  them; required where MEP_RENDEZVOUS is set\n"
    "  --rank-offset K the first rank here, with --size; default 0\n"
    "  --respawn       start a rank again that a signal killed, as a replacement\n"
    "                  (MEP_JOIN=1)\n"
    "  --allow-failures N\n"
    "                  exit with 0 although signals killed up to N ranks, if all\n"
    "                  others succeed\n"
    "  --end-on-failure\n"
    "                  when a rank fails, end the others: SIGTERM, 5 s later SIGKILL\n"
    "  --timeout S     end all ranks after S seconds; the exit status is then 124\n"
    "  --tag-output    put \"[RANK] \" before each line of output\n"
    "  --version       of MEP\n"
    "  --help          this text\n"
    "\n"
    "It starts nothing on other hosts. Over several hosts: one mep_run on each, with\n"
    "the same --size, MEP_JOB, MEP_RENDEZVOUS and MEP_SECRET_FILE.\n"
    "\n"
    "Standard input goes to rank 0. SIGINT, SIGTERM and SIGHUP are passed on to all\n"
    "ranks; the second one kills them. The exit status is 0 if all ranks succeeded,\n"
    "else that of the first rank that failed, or 128 plus the number of the signal\n"
    "that killed it.\n";

struct RunOptions {
  ProcessGroup::Options group;
  bool respawn = false;
  bool end_on_failure = false;
  uint64_t allowed_losses = 0;
  uint64_t timeout_s = 0;  // 0: none
};

bool parse_number(const char* text, uint64_t min, uint64_t max, uint64_t* value) {
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, *value, 10);
  return error == std::errc() && stop == end && *value >= min && *value <= max;
}

int usage_error(const std::string& what) {
  std::fprintf(stderr, "mep_run: %s\nTry 'mep_run --help'.\n", what.c_str());
  return kUsageStatus;
}

struct Numbers {
  uint64_t size = 0;
  uint64_t world_size = 0;
  uint64_t offset = 0;
};

struct NumberOption {
  std::string_view name;
  uint64_t least;
  uint64_t most;
  uint64_t* value;
};

// The option `name`, whose number is `text`; null: nothing follows it.
bool take_number(const std::string& name, const char* text, RunOptions* options, Numbers* numbers,
                 int* status) {
  const NumberOption known[] = {{"-n", 1, kMaxRanksHere, &numbers->size},
                                {"-np", 1, kMaxRanksHere, &numbers->size},
                                {"--size", 1, kMaxRanks, &numbers->world_size},
                                {"--rank-offset", 0, kMaxRanks, &numbers->offset},
                                {"--allow-failures", 0, kMaxRanks, &options->allowed_losses},
                                {"--timeout", 1, 1u << 30, &options->timeout_s}};
  for (const NumberOption& option : known) {
    if (option.name != name) continue;
    if (text != nullptr && parse_number(text, option.least, option.most, option.value)) return true;
    *status = usage_error(name + " needs a number from " + std::to_string(option.least));
    return false;
  }
  for (const char* of_others : {"-H", "--host", "--hosts", "--hostfile", "--machinefile", "-f"}) {
    if (name != of_others) continue;
    *status = usage_error(name +
                          ": mep_run starts ranks on this host alone; run it on each host with "
                          "--size and --rank-offset, or use mpirun or srun");
    return false;
  }
  *status = usage_error("unknown option " + name);
  return false;
}

// Sets *first to where the command begins. False: *status is what to leave with.
bool take_options(int argc, char** argv, RunOptions* options, Numbers* numbers, int* first,
                  int* status) {
  for (int i = 1;; ++i) {
    *first = i;
    if (i == argc || argv[i][0] != '-') return true;
    const std::string name = argv[i];
    if (name == "--") {
      *first = i + 1;
      return true;
    }
    if (name == "--help" || name == "-h") {
      std::fputs(kHelp, stdout);
      *status = 0;
      return false;
    }
    if (name == "--version") {
      std::printf("mep_run %d.%d.%d\n", MEP_VERSION_MAJOR, MEP_VERSION_MINOR, MEP_VERSION_PATCH);
      *status = 0;
      return false;
    }
    if (name == "--respawn") {
      options->respawn = true;
    } else if (name == "--end-on-failure") {
      options->end_on_failure = true;
    } else if (name == "--tag-output") {
      options->group.tag_output = true;
    } else {
      const char* text = i + 1 < argc ? argv[i + 1] : nullptr;
      if (!take_number(name, text, options, numbers, status)) return false;
      ++i;
    }
  }
}

// Hosts that meet do so as one world, whose size a launcher on one of them cannot know.
int size_is_missing(uint64_t size) {
  const std::string n = std::to_string(size);
  const std::string line = "  mep_run -n " + n + " --size " + std::to_string(2 * size);
  return usage_error(
      "MEP_RENDEZVOUS is set, so ranks of several hosts meet, but --size is missing: the number of "
      "ranks on all hosts.\nFor " +
      n + " ranks on each of two hosts type\n" + line + " COMMAND\n" + line + " --rank-offset " +
      n + " COMMAND\nFor ranks of this host alone unset MEP_RENDEZVOUS, or add --size " + n + ".");
}

// The name of a job over several hosts that nobody gave one. All its hosts must come to the same, so the order of the
// addresses and how a host is called there mean nothing: the lowest port tells jobs apart, else the directory's own name.
std::string name_of_hosts(const std::string& rendezvous) {
  std::string name = "hosts";
  if (rendezvous.find('/') != std::string::npos) {
    const size_t end = rendezvous.find_last_not_of('/');
    if (end == std::string::npos) return name;
    const size_t begin = rendezvous.find_last_of('/', end);
    const size_t first = begin == std::string::npos ? 0 : begin + 1;
    return name + "-" + rendezvous.substr(first, std::min<size_t>(end + 1 - first, 32));
  }
  std::vector<ListedAddress> listed;
  // The ranks tell what is wrong with the list.
  if (rendezvous.empty() || parse_address_list(rendezvous, &listed) != MEP_SUCCESS) return name;
  uint16_t lowest = listed[0].port;
  for (const ListedAddress& address : listed) lowest = std::min(lowest, address.port);
  return name + "-" + std::to_string(lowest);
}

// Where the ranks' torch.distributed meets, unless the caller named a place. On one host a port that is free now; over
// several the first address of MEP_RENDEZVOUS, one port below MEP's own, as MEP meets one above torch's under torchrun.
// Ranks that meet in a directory get none: no host of theirs is known here.
void add_torch_store(const std::string& rendezvous, bool is_one_host,
                     ProcessGroup::Options* group) {
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  if (is_one_host) {
    UniqueFd listener;
    bool taken = false;
    if (listen_tcp(nullptr, &listener, &taken, &port) != MEP_SUCCESS) return;
  } else {
    std::vector<ListedAddress> listed;
    if (rendezvous.empty() || rendezvous.find('/') != std::string::npos ||
        parse_address_list(rendezvous, &listed) != MEP_SUCCESS || listed[0].port < 2) {
      return;
    }
    host = listed[0].host;
    port = static_cast<uint16_t>(listed[0].port - 1);
  }
  group->defaults = {{"MASTER_ADDR", host}, {"MASTER_PORT", std::to_string(port)}};
}

// True: go on; else *status is what to leave with.
bool parse_arguments(int argc, char** argv, RunOptions* options, int* status) {
  Numbers numbers;
  int first = 0;
  if (!take_options(argc, argv, options, &numbers, &first, status)) return false;
  const auto& [size, world_size, offset] = numbers;
  if (size == 0 || first == argc) {
    *status = usage_error(size == 0 ? "-n N is missing" : "the command is missing");
    return false;
  }
  if (world_size == 0 ? offset != 0 : offset + size > world_size) {
    *status = usage_error(
        world_size == 0
            ? "--rank-offset is for jobs of several hosts: give --size, the ranks of all of them"
            : "--size must be at least --rank-offset plus -n");
    return false;
  }
  std::string rendezvous;
  bool has_rendezvous = false;
  (void)env_string("MEP_RENDEZVOUS", &rendezvous, &has_rendezvous);
  if (world_size == 0 && has_rendezvous && !rendezvous.empty()) {
    *status = size_is_missing(size);
    return false;
  }
  if (options->allowed_losses >= std::max(size, world_size)) {
    *status = usage_error("--allow-failures must be less than the number of ranks");
    return false;
  }
  options->group.size = static_cast<int32_t>(size);
  options->group.first_rank = static_cast<int32_t>(offset);
  options->group.world_size = static_cast<int32_t>(world_size);
  if (world_size != 0) {
    // All hosts need the same name.
    bool is_set = false;
    if (env_string("MEP_JOB", &options->group.job, &is_set) != MEP_SUCCESS || !is_set) {
      options->group.job = name_of_hosts(rendezvous);
    }
  }
  add_torch_store(rendezvous, world_size == 0 || world_size == size, &options->group);
  options->group.command.assign(argv + first, argv + argc);
  return true;
}

// The signals come as bytes of a descriptor, so that nothing interrupts anything.
UniqueFd catch_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  UniqueFd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  sigaddset(&set, SIGPIPE);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  return fd;
}

class Run {
 public:
  Run(const RunOptions& options, UniqueFd signals)
      : options_(options),
        signals_(std::move(signals)),
        respawns_(static_cast<size_t>(options.group.size), 0) {
    if (options.timeout_s != 0) limit_ = Deadline::after_ms(options.timeout_s * 1000);
  }

  int run() {
    if (group_.start(options_.group) != MEP_SUCCESS) {
      std::fprintf(stderr, "mep_run: %s\n", last_error_text());
      return kCannotStartStatus;
    }
    while (group_.running() > 0) {
      ProcessGroup::Exit exit;
      bool ended = false;
      if (group_.wait(limit_, signals_.get(), &exit, &ended) != MEP_SUCCESS) {
        std::fprintf(stderr, "mep_run: %s\n", last_error_text());
        return kCannotStartStatus;
      }
      if (ended) on_exit(exit);
      pass_signals();
      if (limit_.expired()) on_limit();
    }
    group_.finish();
    if (timed_out_) return kTimeoutStatus;
    if (lost_ == 0 || lost_ > options_.allowed_losses) return status_;
    if (status_without_losses_ == 0) {
      std::fprintf(
          stderr,
          "mep_run: %llu of %d ranks lost, as --allow-failures %llu allows; the others succeeded\n",
          static_cast<unsigned long long>(lost_), options_.group.size,
          static_cast<unsigned long long>(options_.allowed_losses));
    }
    return status_without_losses_;
  }

 private:
  void say_how_it_ended(const ProcessGroup::Exit& exit) {
    // One line says it, and none where an option has said what a lost rank is to do to the others.
    const bool names_option = !said_option_ && !stopping_ && !options_.end_on_failure &&
                              !options_.respawn && options_.allowed_losses == 0 &&
                              group_.running() > 0;
    said_option_ = said_option_ || names_option;
    std::fprintf(stderr, "mep_run: rank %d (pid %d) %s%s\n", group_.world_rank(exit.rank), exit.pid,
                 text_of_wait_status(exit.wait_status).c_str(),
                 names_option ? "; the others continue, --end-on-failure would end them" : "");
  }
  void on_exit(const ProcessGroup::Exit& exit) {
    int code = 0;
    if (WIFSIGNALED(exit.wait_status)) {
      const int signal = WTERMSIG(exit.wait_status);
      if (ends_others_ && signal == SIGTERM) return;  // by end_others()
      say_how_it_ended(exit);
      if (try_respawn(exit.rank)) return;
      code = 128 + signal;
      // A rank that mep_run was told to end is no loss.
      if (!stopping_) {
        ++lost_;
        if (status_ == 0) status_ = code;
        if (lost_ > options_.allowed_losses) end_others();
        return;
      }
    } else {
      code = WEXITSTATUS(exit.wait_status);
      if (code == 0) {
        left_early_.push_back(group_.world_rank(exit.rank));
        return;
      }
      say_how_it_ended(exit);
      say_who_was_gone();
    }
    if (status_ == 0) status_ = code;
    if (status_without_losses_ == 0) status_without_losses_ = code;
    end_others();
  }

  // Whether a rank that exited with 0 had left the job cannot be seen from here; the others' errors name it.
  void say_who_was_gone() {
    if (told_who_was_gone_ || left_early_.empty() || stopping_) return;
    told_who_was_gone_ = true;
    std::sort(left_early_.begin(), left_early_.end());
    std::fprintf(stderr,
                 "mep_run: %s had exited with status 0 before: without mep_comm_destroy that is a "
                 "failure to the others\n",
                 list_ranks(left_early_).c_str());
  }

  bool try_respawn(int32_t rank) {
    int& count = respawns_[static_cast<size_t>(rank)];
    // Without another rank there is no job to join; on other hosts there may be some.
    const bool alone = group_.running() == 0 && options_.group.world_size == 0;
    if (!options_.respawn || stopping_ || alone) return false;
    if (count == kMaxRespawnsOfRank) {
      std::fprintf(stderr, "mep_run: rank %d is not started again: it died %d times\n",
                   group_.world_rank(rank), count + 1);
      return false;
    }
    ++count;
    if (group_.start_replacement(rank) != MEP_SUCCESS) {
      std::fprintf(stderr, "mep_run: rank %d is not started again: %s\n", group_.world_rank(rank),
                   last_error_text());
      return false;
    }
    std::fprintf(stderr, "mep_run: rank %d is started again (pid %d)\n", group_.world_rank(rank),
                 group_.pid(rank));
    return true;
  }

  void pass_signals() {
    signalfd_siginfo info{};
    while (read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      group_.signal_all(stopping_ ? SIGKILL : static_cast<int>(info.ssi_signo));
      stopping_ = true;
    }
  }

  // on_limit() kills the ranks that are still there after the grace.
  void end_all() {
    stopping_ = true;
    grace_begun_ = true;
    group_.signal_all(SIGTERM);
    limit_ = Deadline::after_ms(kGraceMs);
  }

  // After a failure.
  void end_others() {
    if (!options_.end_on_failure || stopping_ || group_.running() == 0) return;
    std::fprintf(stderr, "mep_run: --end-on-failure: ending the other ranks\n");
    ends_others_ = true;
    end_all();
  }

  void on_limit() {
    if (grace_begun_) {
      group_.signal_all(SIGKILL);
      limit_ = Deadline::never();
      return;
    }
    std::fprintf(stderr, "mep_run: %llu s are over: ending all ranks\n",
                 static_cast<unsigned long long>(options_.timeout_s));
    timed_out_ = true;
    end_all();
  }

  const RunOptions& options_;
  UniqueFd signals_;
  ProcessGroup group_;
  Deadline limit_ = Deadline::never();
  std::vector<int> respawns_;
  bool stopping_ = false;     // told to end: nobody is started again
  bool grace_begun_ = false;  // all have got SIGTERM; limit_ is when they get SIGKILL
  bool timed_out_ = false;
  bool ends_others_ = false;  // because one has failed
  bool said_option_ = false;
  std::vector<int32_t> left_early_;  // ranks that exited with 0
  bool told_who_was_gone_ = false;
  uint64_t lost_ = 0;  // ranks that a signal killed and nobody replaced
  // The status of the first rank that failed, and of the first that failed otherwise than by being lost.
  int status_ = 0;
  int status_without_losses_ = 0;
};

}  // namespace
}  // namespace mep

int main(int argc, char** argv) {
  try {
    mep::RunOptions options;
    int status = 0;
    if (!mep::parse_arguments(argc, argv, &options, &status)) return status;
    mep::Run run(options, mep::catch_signals());
    return run.run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mep_run: %s\n", error.what());
    return mep::kCannotStartStatus;
  }
}
