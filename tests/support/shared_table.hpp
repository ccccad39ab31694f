// For models whose parts lie in several processes: a mutex and tables in shared memory, and memory of another process.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "base/process_end.hpp"
#include "base/unique_fd.hpp"
#include "transport/memfd.hpp"

namespace mep::test {

// Also of a process that nobody has waited for yet.
inline bool has_ended(pid_t process) {
  if (process == getpid()) return false;
  const UniqueFd fd = open_pidfd(process);
  pollfd end{fd.get(), POLLIN, 0};
  return !fd.valid() || poll(&end, 1, 0) != 0;
}

// Lies in shared memory. A process that ends while it holds the mutex leaves half an entry of its own at most.
class SharedMutex {
 public:
  SharedMutex() {
    pthread_mutexattr_t kind;
    (void)pthread_mutexattr_init(&kind);
    (void)pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    (void)pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    (void)pthread_mutex_init(&mutex_, &kind);
    (void)pthread_mutexattr_destroy(&kind);
  }
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void lock() {
    if (pthread_mutex_lock(&mutex_) == EOWNERDEAD) (void)pthread_mutex_consistent(&mutex_);
  }
  void unlock() { (void)pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_;
};

// Entries by their `number`, which is not 0, each of a `process`. Zeros are an empty table.
template <typename Entry, uint32_t kMost>
struct SharedTable {
  Entry* find(uint32_t number) {
    Entry* const found =
        std::find_if(begin(), end(), [&](const Entry& entry) { return entry.number == number; });
    return number != 0 && found != end() ? found : nullptr;
  }
  // Those of processes that have ended make room when there is none.
  void add(const Entry& entry) {
    Entry* place = find(entry.number);
    if (place == nullptr) {
      place = std::find_if(begin(), end(), [](const Entry& other) { return other.number == 0; });
    }
    if (place == entries + kMost) {
      place =
          std::find_if(begin(), end(), [](const Entry& other) { return has_ended(other.process); });
    }
    if (place == entries + kMost) {
      std::fprintf(stderr, "a shared table of %u entries is full\n", kMost);
      std::abort();
    }
    used = std::max(used, static_cast<uint32_t>(place - entries) + 1);
    *place = entry;
  }
  void remove(uint32_t number) {
    Entry* const found = find(number);
    if (found != nullptr) *found = Entry{};
  }

  bool is_empty() {
    return std::all_of(begin(), end(), [](const Entry& entry) { return entry.number == 0; });
  }

  Entry* begin() { return entries; }
  Entry* end() { return entries + used; }

  uint32_t used;  // none behind it
  Entry entries[kMost];
};

// Memory of this process that others may map, with a descriptor of its own: it stays when the memory gets other pages.
struct SharedFile {
  UniqueFd fd;  // invalid: the memory is private
  uint64_t offset = 0;

  static SharedFile of(const void* address, size_t bytes) {
    const auto place = reinterpret_cast<uint64_t>(address);
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      unsigned long begin = 0, end = 0, offset = 0, inode = 0;
      unsigned major_number = 0, minor_number = 0;
      char rights[5] = {};
      if (std::sscanf(line.c_str(), "%lx-%lx %4s %lx %x:%x %lu", &begin, &end, rights, &offset,
                      &major_number, &minor_number, &inode) != 7) {
        continue;
      }
      if (place < begin || place + bytes > end || rights[3] != 's') continue;
      return {open_own(makedev(major_number, minor_number), inode), offset + (place - begin)};
    }
    return {};
  }

 private:
  // Other threads close descriptors meanwhile, so only paths name those of others.
  static UniqueFd open_own(dev_t device, ino_t inode) {
    const auto is_file = [&](const struct stat& about) {
      return about.st_dev == device && about.st_ino == inode;
    };
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
    while (const dirent* entry = folder == nullptr ? nullptr : readdir(folder.get())) {
      const std::string path = std::string("/proc/self/fd/") + entry->d_name;
      struct stat about {};
      if (stat(path.c_str(), &about) != 0 || !is_file(about)) continue;
      UniqueFd copy(open(path.c_str(), O_RDWR | O_CLOEXEC));
      if (copy.valid() && fstat(copy.get(), &about) == 0 && is_file(about)) return copy;
    }
    return {};
  }
};

// Such memory of another process, up to `bytes` behind its file's begin. Empty: the process has ended.
inline Mapping map_file_of(pid_t process, int fd, size_t bytes) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(fd);
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  Mapping mapping;
  if (file.valid()) (void)Mapping::of(file.get(), bytes, true, &mapping);
  return mapping;
}

}  // namespace mep::test
