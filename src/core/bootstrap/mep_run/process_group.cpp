// Between fork() and exec a rank calls more than async-signal-safe functions: the owner must have
// one thread, as it does in the programs that use this.
#include "core/bootstrap/mep_run/process_group.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/status.hpp"

namespace mep {
namespace {

// Without pidfds the end of a child is looked for this often.
constexpr int kReapEveryMs = 20;
constexpr size_t kMaxLineBytes = 64 << 10;

[[nodiscard]] mep_result_t make_pipe(UniqueFd* reader, UniqueFd* writer) {
  int sides[2];
  if (pipe2(sides, O_CLOEXEC) != 0) {
    return fail(MEP_ERR_NO_MEMORY, "pipe failed: %s", strerrordesc_np(errno));
  }
  reader->reset(sides[0]);
  writer->reset(sides[1]);
  return MEP_SUCCESS;
}

std::string new_job_name() {
  uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) != static_cast<ssize_t>(sizeof random)) {
    random = now_ns();
  }
  char name[64];
  std::snprintf(name, sizeof name, "run-%d-%016llx", getpid(),
                static_cast<unsigned long long>(random));
  return name;
}

// NOLINTBEGIN(concurrency-mt-unsafe): in a new process with one thread
void reset_signals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGPIPE, SIGQUIT}) {
    ::signal(signal, SIG_DFL);
  }
}
// NOLINTEND(concurrency-mt-unsafe)

// Runs in the keeper until the owner's end of the pipe is closed, which the kernel does at the
// latest.
[[noreturn]] void keep(int pipe) {
  setpgid(0, 0);
  prctl(PR_SET_NAME, "mep_run_keeper");
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_IGN);
  // It must hold nothing that others wait to be closed, such as the pipe of another group's keeper.
  dup2(pipe, 0);
  close_range(1, ~0u, 0);
  char byte = 0;
  while (read(0, &byte, 1) < 0 && errno == EINTR) {
  }
  kill(0, SIGKILL);
  _exit(0);
}

void write_all(int fd, const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = write(fd, data, bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return;  // nobody reads it any more
      pollfd entry{fd, POLLOUT, 0};
      (void)poll(&entry, 1, -1);
      continue;
    }
    data += written;
    bytes -= static_cast<size_t>(written);
  }
}

}  // namespace

ProcessGroup::~ProcessGroup() {
  if (parent_ == getpid()) finish();
}

mep_result_t ProcessGroup::start(const Options& options) {
  if (parent_ != 0 || options.command.empty() || options.size < 1) {
    return fail(MEP_ERR_INTERNAL, "a process group is started wrongly");
  }
  options_ = options;
  if (options_.job.empty()) options_.job = new_job_name();
  parent_ = getpid();
  ranks_.resize(static_cast<size_t>(options_.size));
  // Without it ranks wait for one that has ended until the time of the start is over.
  (void)page_.create(options_.first_rank, options_.size, options_.job);
  MEP_TRY(start_keeper());
  for (int32_t rank = 0; rank < options_.size; ++rank) MEP_TRY(start_rank(rank, false));
  return MEP_SUCCESS;
}

mep_result_t ProcessGroup::start_keeper() {
  UniqueFd reader;
  MEP_TRY(make_pipe(&reader, &keeper_pipe_));
  const pid_t pid = fork();
  if (pid < 0) return fail(MEP_ERR_NO_MEMORY, "fork failed: %s", strerrordesc_np(errno));
  if (pid == 0) {
    keeper_pipe_.reset();
    keep(reader.get());
  }
  keeper_ = pid;
  setpgid(pid, pid);  // both sides do it, so it is done when either goes on
  return MEP_SUCCESS;
}

mep_result_t ProcessGroup::start_replacement(int32_t rank) {
  return start_rank(rank, true);
}

// Rank 0 has the owner's standard input; a terminal's is passed through a pipe, because the group
// is not the terminal's foreground one.
mep_result_t ProcessGroup::make_input(int32_t rank, UniqueFd* input) {
  if (rank == 0 && isatty(STDIN_FILENO) == 0) {
    input->reset(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
    if (input->valid()) return MEP_SUCCESS;
  } else if (rank == 0) {
    input_.clear();
    MEP_TRY(make_pipe(input, &input_pipe_));
    fcntl(input_pipe_.get(), F_SETFL, O_NONBLOCK);
    return MEP_SUCCESS;
  }
  input->reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!input->valid()) {
    return fail(MEP_ERR_SYSTEM, "/dev/null cannot be opened: %s", strerrordesc_np(errno));
  }
  return MEP_SUCCESS;
}

mep_result_t ProcessGroup::start_rank(int32_t rank, bool is_replacement) {
  Rank& child = ranks_[static_cast<size_t>(rank)];
  UniqueFd error_reader;
  UniqueFd error_writer;
  UniqueFd input;
  UniqueFd writers[2];
  MEP_TRY(make_pipe(&error_reader, &error_writer));
  MEP_TRY(make_input(rank, &input));
  if (options_.tag_output) {
    for (int i = 0; i < 2; ++i) {
      pass_output(rank, &child.output[i]);
      MEP_TRY(make_pipe(&child.output[i].pipe, &writers[i]));
      fcntl(child.output[i].pipe.get(), F_SETFL, O_NONBLOCK);
      child.output[i].target = i + 1;
    }
  }
  page_.note_started(rank);
  const pid_t pid = fork();
  if (pid < 0) return fail(MEP_ERR_NO_MEMORY, "fork failed: %s", strerrordesc_np(errno));
  if (pid == 0) {
    const int output[2] = {writers[0].get(), writers[1].get()};
    become_rank(rank, is_replacement, error_writer.get(), output, input.get());
  }
  setpgid(pid, keeper_);
  child.pid = pid;
#ifdef SYS_pidfd_open
  child.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
#endif
  error_writer.reset();
  int error = 0;
  ssize_t count = 0;
  do {
    count = read(error_reader.get(), &error, sizeof error);
  } while (count < 0 && errno == EINTR);
  if (count != static_cast<ssize_t>(sizeof error)) return MEP_SUCCESS;  // closed by exec
  waitpid(pid, nullptr, 0);
  child.pid = 0;
  child.pidfd.reset();
  return fail(MEP_ERR_NOT_FOUND, "'%s' cannot be started: %s", options_.command[0].c_str(),
              strerrordesc_np(error));
}

void ProcessGroup::become_rank(int32_t rank, bool is_replacement, int error_pipe,
                               const int output[2], int input) {
  // The keeper would do it too; this is quicker. An owner that is gone already sends no signal.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent_) _exit(127);
  setpgid(0, keeper_);
  reset_signals();
  dup2(input, STDIN_FILENO);
  if (output[0] >= 0) {
    dup2(output[0], STDOUT_FILENO);
    dup2(output[1], STDERR_FILENO);
  }
  // NOLINTBEGIN(concurrency-mt-unsafe): in a new process with one thread
  const int32_t world_size = options_.world_size != 0 ? options_.world_size : options_.size;
  const std::pair<const char*, int32_t> numbers[] = {
      {"MEP_RANK", world_rank(rank)},     {"MEP_LOCAL_RANK", rank}, {"MEP_SIZE", world_size},
      {"RANK", world_rank(rank)},         {"LOCAL_RANK", rank},     {"WORLD_SIZE", world_size},
      {"LOCAL_WORLD_SIZE", options_.size}};
  for (const auto& [name, value] : numbers) setenv(name, std::to_string(value).c_str(), 1);
  setenv("MEP_JOB", options_.job.c_str(), 1);
  if (page_.found()) {
    setenv(LaunchPage::kVariable, std::to_string(page_.fd()).c_str(), 1);
    fcntl(page_.fd(), F_SETFD, 0);
  }
  for (const auto& [name, value] : options_.defaults) setenv(name.c_str(), value.c_str(), 0);
  for (const auto& [name, value] : options_.environment) setenv(name.c_str(), value.c_str(), 1);
  if (is_replacement) {
    setenv("MEP_JOIN", "1", 1);
  } else {
    unsetenv("MEP_JOIN");
  }
  // NOLINTEND(concurrency-mt-unsafe)
  std::vector<char*> arguments;
  for (std::string& argument : options_.command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  const int error = errno;
  if (write(error_pipe, &error, sizeof error) < 0) _exit(126);
  _exit(127);
}

bool ProcessGroup::reap(Exit* exit) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].pid == 0) continue;
    int status = 0;
    if (waitpid(ranks_[i].pid, &status, WNOHANG) != ranks_[i].pid) continue;
    exit->rank = static_cast<int32_t>(i);
    exit->pid = ranks_[i].pid;
    exit->wait_status = status;
    ranks_[i].pid = 0;
    ranks_[i].pidfd.reset();
    page_.note_ended(exit->rank, exit->pid, status);
    for (Stream& stream : ranks_[i].output) pass_output(exit->rank, &stream);
    return true;
  }
  return false;
}

mep_result_t ProcessGroup::wait(Deadline deadline, int wake_fd, Exit* exit, bool* ended) {
  for (;;) {
    *ended = reap(exit);
    if (*ended) return MEP_SUCCESS;
    std::vector<pollfd> entries;
    bool blind = false;
    if (wake_fd >= 0) entries.push_back({wake_fd, POLLIN, 0});
    for (const Rank& rank : ranks_) {
      if (rank.pidfd.valid()) entries.push_back({rank.pidfd.get(), POLLIN, 0});
      blind = blind || (rank.pid != 0 && !rank.pidfd.valid());
      for (const Stream& stream : rank.output) {
        if (stream.pipe.valid()) entries.push_back({stream.pipe.get(), POLLIN, 0});
      }
    }
    if (input_pipe_.valid() && !input_.empty()) {
      entries.push_back({input_pipe_.get(), POLLOUT, 0});
    } else if (input_pipe_.valid() && tcgetpgrp(STDIN_FILENO) == getpgrp()) {
      entries.push_back({STDIN_FILENO, POLLIN, 0});
    }
    if (poll(entries.data(), entries.size(), deadline.left_ms(blind ? kReapEveryMs : 60000)) < 0 &&
        errno != EINTR) {
      return fail(MEP_ERR_SYSTEM, "poll failed: %s", strerrordesc_np(errno));
    }
    for (size_t i = 0; i < ranks_.size(); ++i) {
      for (Stream& stream : ranks_[i].output) pass_output(static_cast<int32_t>(i), &stream);
    }
    pass_input();
    if (wake_fd >= 0 && entries[0].revents != 0) return MEP_SUCCESS;
    if (deadline.expired()) {
      *ended = reap(exit);
      return MEP_SUCCESS;
    }
  }
}

// Whole lines, each in one write, so that the ranks' lines do not mix.
void ProcessGroup::pass_output(int32_t rank, Stream* stream) {
  if (!stream->pipe.valid()) return;
  char chunk[8192];
  ssize_t count = 0;
  while ((count = read(stream->pipe.get(), chunk, sizeof chunk)) > 0 ||
         (count < 0 && errno == EINTR)) {
    if (count > 0) stream->partial.append(chunk, static_cast<size_t>(count));
    size_t end = 0;
    while ((end = stream->partial.find('\n')) != std::string::npos ||
           stream->partial.size() >= kMaxLineBytes) {
      if (end == std::string::npos) end = stream->partial.size() - 1;
      std::string line =
          "[" + std::to_string(world_rank(rank)) + "] " + stream->partial.substr(0, end + 1);
      if (line.back() != '\n') line += '\n';
      write_all(stream->target, line.data(), line.size());
      stream->partial.erase(0, end + 1);
    }
  }
  if (count == 0) {
    stream->pipe.reset();
    if (stream->partial.empty()) return;
    const std::string line = "[" + std::to_string(world_rank(rank)) + "] " + stream->partial + "\n";
    write_all(stream->target, line.data(), line.size());
    stream->partial.clear();
  }
}

void ProcessGroup::pass_input() {
  if (!input_pipe_.valid()) return;
  if (input_.empty()) {
    pollfd entry{STDIN_FILENO, POLLIN, 0};
    // Reading a terminal from the background would stop this process.
    if (tcgetpgrp(STDIN_FILENO) != getpgrp() || poll(&entry, 1, 0) != 1) return;
    char chunk[4096];
    const ssize_t count = read(STDIN_FILENO, chunk, sizeof chunk);
    if (count <= 0) {
      if (count == 0 || errno != EINTR) input_pipe_.reset();
      return;
    }
    input_.assign(chunk, static_cast<size_t>(count));
  }
  const ssize_t written = write(input_pipe_.get(), input_.data(), input_.size());
  if (written > 0) input_.erase(0, static_cast<size_t>(written));
  if (written < 0 && errno != EAGAIN && errno != EINTR) input_pipe_.reset();
}

void ProcessGroup::signal_rank(int32_t rank, int signal) {
  const pid_t pid = ranks_[static_cast<size_t>(rank)].pid;
  // Not reaped yet, so the number still means this child.
  if (pid > 0) kill(pid, signal);
}

void ProcessGroup::signal_all(int signal) {
  // The keeper ignores all signals but SIGKILL, which must not reach it before the ranks are gone.
  if (signal == SIGKILL) {
    for (size_t i = 0; i < ranks_.size(); ++i) signal_rank(static_cast<int32_t>(i), signal);
    return;
  }
  if (keeper_ > 0) killpg(keeper_, signal);
}

int32_t ProcessGroup::running() const {
  int32_t count = 0;
  for (const Rank& rank : ranks_) count += rank.pid != 0 ? 1 : 0;
  return count;
}

void ProcessGroup::finish() {
  if (keeper_ <= 0) return;
  keeper_pipe_.reset();
  while (waitpid(keeper_, nullptr, 0) < 0 && errno == EINTR) {
  }
  keeper_ = 0;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    if (rank.pid != 0) {
      while (waitpid(rank.pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
    rank.pid = 0;
    rank.pidfd.reset();
    for (Stream& stream : rank.output) pass_output(static_cast<int32_t>(i), &stream);
  }
  input_pipe_.reset();
}

}  // namespace mep
