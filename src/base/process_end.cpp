#include "base/process_end.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/function_ref.hpp"

namespace mep {
namespace {

// PF_EXITING in Linux's sched.h; proc(5) gives the flags in field 9 of stat.
constexpr unsigned kExiting = 4;

// Linux lists this many threads in one piece (getdents64 of 32 KiB). Between pieces it may skip a thread.
constexpr uint32_t kMostThreads = 1000;

// True: `see` has returned true for each thread, and there is one. False also where the list may lack a thread.
bool each_thread(pid_t process, FunctionRef<bool(const char*)> see) {
  std::array<char, 64> path;
  std::snprintf(path.data(), path.size(), "/proc/%d/task", static_cast<int>(process));
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.data()), closedir);
  if (folder == nullptr) return false;
  for (uint32_t seen = 0;;) {
    errno = 0;
    // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this call's own
    const dirent* entry = readdir(folder.get());
    if (entry == nullptr) return errno == 0 && seen != 0;
    if (entry->d_name[0] == '.') continue;
    if (++seen > kMostThreads || !see(entry->d_name)) return false;
  }
}

// The bytes of a file of a thread; 0: the thread is gone, or the file cannot be read.
size_t read_of(pid_t process, const char* thread, const char* file, char* text, size_t bytes) {
  std::array<char, 320> path;
  std::snprintf(path.data(), path.size(), "/proc/%d/task/%s/%s", static_cast<int>(process), thread,
                file);
  const UniqueFd fd(open(path.data(), O_RDONLY | O_CLOEXEC));
  const ssize_t got = fd.valid() ? read(fd.get(), text, bytes - 1) : 0;
  text[got > 0 ? got : 0] = '\0';
  return got > 0 ? static_cast<size_t>(got) : 0;
}

// Whether the thread still has the process's memory, as far as Linux says. Unlike a read of its stat, the question does not keep that
// memory: if this process let it go last, it would have to tear it down.
bool has_memory(pid_t process, const char* thread) {
  std::array<char, 320> path;
  std::snprintf(path.data(), path.size(), "/proc/%d/task/%s/exe", static_cast<int>(process),
                thread);
  char byte = 0;
  return readlink(path.data(), &byte, 1) >= 0;
}

}  // namespace

UniqueFd open_pidfd(pid_t process) {
#ifdef SYS_pidfd_open
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));  // close-on-exec
#else
  (void)process;
  return {};
#endif
}

long pid_behind(int fd) {
  std::array<char, 64> path;
  std::snprintf(path.data(), path.size(), "/proc/self/fdinfo/%d", fd);
  std::FILE* file = std::fopen(path.data(), "re");
  if (file == nullptr) return -1;
  long pid = -1;
  std::array<char, 128> line;
  while (std::fgets(line.data(), line.size(), file) != nullptr) {
    if (std::strncmp(line.data(), "Pid:", 4) == 0) pid = std::strtol(line.data() + 4, nullptr, 10);
  }
  std::fclose(file);
  return pid;
}

bool all_threads_exit(pid_t process) {
  return each_thread(process, [process](const char* thread) {
    if (has_memory(process, thread)) return false;
    std::array<char, 512> stat;
    // Linux ends the list at a thread that ends while it is listed, so a thread that is gone proves nothing of the
    // others.
    if (read_of(process, thread, "stat", stat.data(), stat.size()) == 0) return false;
    // The name before it may hold anything.
    const char* behind_name = std::strrchr(stat.data(), ')');
    unsigned flags = 0;
    return behind_name != nullptr &&
           std::sscanf(behind_name, ") %*c %*d %*d %*d %*d %*d %u", &flags) == 1 &&
           (flags & kExiting) != 0;
  });
}

}  // namespace mep
