#include "recorder_search.hpp"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <utility>

namespace mep {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { (void)closedir(directory); }
};
using Directory = std::unique_ptr<DIR, CloseDirectory>;

// Name and real user, as everybody sees them. False: it has ended.
bool read_status(const std::string& folder, std::string* name, uid_t* user) {
  std::ifstream status(folder + "/status");
  std::string key;
  while (status >> key) {
    if (key == "Name:") {
      status >> std::ws;
      std::getline(status, *name);
      std::replace_if(
          name->begin(), name->end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    } else if (key == "Uid:") {
      return static_cast<bool>(status >> *user);
    } else {
      std::getline(status, key);
    }
  }
  return false;
}

class Search {
 public:
  explicit Search(const std::string& job) : job_(job) {}

  void look_at(int pid) {
    const std::string folder = "/proc/" + std::to_string(pid);
    Unreadable process{pid, {}, {}};
    uid_t user = 0;
    if (!read_status(folder, &process.name, &user)) return;
    if (geteuid() != 0 && user != geteuid()) return;
    const Directory descriptors(opendir((folder + "/fd").c_str()));
    if (descriptors == nullptr) note(&process, std::strerror(errno), errno);
    while (const dirent* const entry = descriptors ? readdir(descriptors.get()) : nullptr) {
      if (entry->d_name[0] != '.') look_at(folder + "/fd/" + entry->d_name, &process);
    }
    if (!process.problem.empty()) result.unreadable.push_back(std::move(process));
  }

  RecorderSearch result;

 private:
  // A process or descriptor that is gone by now is none that cannot be read.
  static void note(Unreadable* process, const std::string& problem, int error) {
    if (error != ENOENT && error != ESRCH) process->problem = problem;
  }

  void look_at(const std::string& path, Unreadable* process) {
    const std::string wanted = std::string("/memfd:") + flight::kMemoryName;
    std::array<char, 512> target;
    const ssize_t length = readlink(path.c_str(), target.data(), target.size());
    if (length < 0) {
      note(process, std::strerror(errno), errno);
      return;
    }
    if (!std::string_view(target.data(), static_cast<size_t>(length)).starts_with(wanted)) return;
    struct stat about {};
    RecorderFile file;
    std::string problem;
    if (stat(path.c_str(), &about) != 0 || !read_recorder(path, &file, &problem)) {
      if (access(path.c_str(), F_OK) == 0) process->problem = path + " " + problem;
      return;
    }
    // Children have it from their parents.
    if (!seen_.emplace(about.st_dev, about.st_ino).second || !is_of_job(file, job_)) return;
    result.files.push_back(std::move(file));
  }

  const std::string job_;
  std::set<std::pair<dev_t, ino_t>> seen_;
};

}  // namespace

bool is_of_job(const RecorderFile& file, const std::string& job) {
  return job.empty() || job.substr(0, sizeof file.header.job - 1) == file.header.job;
}

RecorderSearch find_recorders(const std::string& job) {
  Search search(job);
  const Directory processes(opendir("/proc"));
  while (const dirent* const entry = processes ? readdir(processes.get()) : nullptr) {
    const char* const end = entry->d_name + std::strlen(entry->d_name);
    int pid = 0;
    const auto [stop, error] = std::from_chars(entry->d_name, end, pid);
    if (error == std::errc() && stop == end && pid > 0) search.look_at(pid);
  }
  return std::move(search.result);
}

}  // namespace mep
