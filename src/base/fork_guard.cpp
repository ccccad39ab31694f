#include "base/fork_guard.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

namespace mep {
namespace {

// A number may have been closed and given to something else since: the kernel's name of the socket tells.
using FileName = std::pair<dev_t, ino_t>;

struct KeptBack {
  std::mutex mutex;  // taken inside a ForkHold only, so it is free while a fork goes on
  std::map<int, FileName> sockets;
};

// Never destroyed: a process may fork while it ends.
KeptBack& kept_back() {
  static auto* const kept = new KeptBack;
  return *kept;
}

bool name_of(int fd, FileName* out) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return false;
  *out = {status.st_dev, status.st_ino};
  return true;
}

// Only calls that are allowed in the child of a process with threads. The number stays taken: what this
// process's copy of the library still does with it must not hit a descriptor of the child's own.
void drop_in_child() {
  KeptBack& kept = kept_back();
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const auto& [fd, name] : kept.sockets) {
    FileName now;
    if (!name_of(fd, &now) || now != name) continue;
    if (nothing < 0 || dup3(nothing, fd, O_CLOEXEC) < 0) close(fd);
  }
  if (nothing >= 0) close(nothing);
}

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, drop_in_child); });
}

}  // namespace

ForkGuard::ForkGuard() {
  watch_forks();
  kept_back().mutex.lock();
}

ForkGuard::~ForkGuard() {
  kept_back().mutex.unlock();
}

void ForkGuard::keep_back(int socket) const {
  const int error = errno;
  FileName name;
  if (socket >= 0 && name_of(socket, &name)) kept_back().sockets[socket] = name;
  errno = error;
}

}  // namespace mep
