// Ranks whose pending operations a progress thread carries on: they start requests and make no call of the library
// until the requests' descriptors say that they have ended.
#pragma once

#include <dirent.h>
#include <poll.h>

#include <fstream>

#include "support/coll_sequence.hpp"

namespace mep_test {

inline mep_comm_config_t progress_config(uint32_t flags = 0) {
  return patient_config(flags | MEP_COMM_PROGRESS_THREAD);
}

// A nonblocking call and its descriptor.
class Watched {
 public:
  Watched(const Case& c, mep_comm_t comm, int rank, int size, Report& report)
      : run_(c, rank, size), report_(report), what_(describe(c)) {
    COLL_OK(report_, run_.start(comm, &request_));
    if (request_ == nullptr) return;
    COLL_OK(report_, mep_request_event_fd(request_, &event_));
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  // Makes no call of the library. False: the descriptor was not readable within the time.
  bool await(int limit_ms = 60'000) {
    if (request_ == nullptr) return false;
    pollfd event{event_, POLLIN, 0};
    if (poll(&event, 1, limit_ms) == 1) return true;
    report_.add("%s: its descriptor said nothing for %d ms", what_.c_str(), limit_ms);
    return false;
  }
  // The result of the first test after await(); one that is not done is a finding.
  mep_result_t end(mep_op_info_t* info = nullptr) {
    int32_t done = 0;
    const mep_result_t result = mep_request_test(&request_, &done, info);
    if (done == 0) report_.add("%s: the descriptor was readable, test is not done", what_.c_str());
    return result;
  }
  // Both, and the data.
  void succeed() {
    if (!await()) return;
    COLL_OK(report_, end());
    run_.check(report_);
  }

 private:
  CaseRun run_;
  Report& report_;
  std::string what_;
  mep_request_t request_ = nullptr;
  int32_t event_ = -1;
};

// Nanoseconds that the threads of this process that bear the name have had a core, by what the kernel counts.
inline uint64_t core_time_of(const char* name) {
  uint64_t sum = 0;
  DIR* const tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return 0;
  while (const dirent* task = readdir(tasks)) {
    const std::string folder = std::string("/proc/self/task/") + task->d_name;
    std::string comm;
    std::ifstream(folder + "/comm") >> comm;
    uint64_t ns = 0;
    if (comm == name) std::ifstream(folder + "/schedstat") >> ns;
    sum += ns;
  }
  closedir(tasks);
  return sum;
}

}  // namespace mep_test
