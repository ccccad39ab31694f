#include "resources.hpp"

#include <dirent.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace mep::programs {
namespace {

// "." and ".." are none.
std::vector<int> entries_of(const char* folder) {
  std::vector<int> numbers;
  DIR* dir = opendir(folder);
  if (dir == nullptr) return numbers;
  while (const dirent* entry = readdir(dir)) {
    if (entry->d_name[0] != '.') numbers.push_back(std::atoi(entry->d_name));
  }
  closedir(dir);
  return numbers;
}

bool listens(int fd) {
  int yes = 0;
  socklen_t size = sizeof yes;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &size) == 0 && yes != 0;
}

// The allocator decides how many pieces anonymous memory is in; its growth shows in resident_pages.
uint64_t count_mappings() {
  std::ifstream maps("/proc/self/maps");
  uint64_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('/') != std::string::npos) ++count;
  }
  return count;
}

// Anonymous memory alone: calls decide what a window has resident, and a window that is left over shows in
// count_mappings.
uint64_t resident_pages() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word && word != "RssAnon:") {
  }
  uint64_t kib = 0;
  status >> kib;
  return kib / 4;
}

}  // namespace

Resources count_resources() {
  Resources held;
  const std::vector<int> fds = entries_of("/proc/self/fd");
  held.listeners = static_cast<uint64_t>(std::count_if(fds.begin(), fds.end(), listens));
  held.fds = fds.size() - held.listeners;
  held.threads = entries_of("/proc/self/task").size();
  held.mappings = count_mappings();
  held.pages = resident_pages();
  return held;
}

}  // namespace mep::programs
