// The records that processes of this host keep in memory.
#pragma once

#include <string>
#include <vector>

#include "recorder_file.hpp"

namespace mep {

// A process that may have records, for all that this one can see.
struct Unreadable {
  int pid = 0;
  std::string name;
  std::string problem;
};

struct RecorderSearch {
  std::vector<RecorderFile> files;
  std::vector<Unreadable> unreadable;
};

bool is_of_job(const RecorderFile& file, const std::string& job);
// Among the processes of this user, or all if it is root. `job` empty: of any job.
RecorderSearch find_recorders(const std::string& job);

}  // namespace mep
