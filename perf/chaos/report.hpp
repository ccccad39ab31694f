// The results, for people and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options.hpp"

namespace mep::chaos {

struct Report {
  uint64_t seed = 0;
  uint32_t ranks = 0;
  std::string workload;
  std::string load;              // of the machine at the start and the end
  uint64_t faults = 0;           // injected and settled
  uint64_t not_reached = 0;      // failpoints that nobody passed in time
  uint64_t evictions = 0;        // of stopped or slowed ranks
  uint64_t false_evictions = 0;  // of those that were silent for less than the threshold
  uint64_t joins = 0;
  uint64_t failed_joins = 0;
  uint64_t operations = 0;
  uint64_t compared = 0;
  uint64_t wrong_results = 0;
  uint64_t hangs = 0;
  int64_t leaked_fds = 0;
  int64_t leaked_threads = 0;
  int64_t leaked_mappings = 0;
  int64_t leaked_pages = 0;
  uint64_t leaked_children = 0;
  uint64_t leaked_files = 0;  // in /dev/shm and /tmp, sockets of the job
  double seconds = 0;
  // Microseconds.
  std::vector<double> detect;
  std::vector<double> freeze;
  std::vector<double> agree;
  std::vector<double> fence;
  std::vector<double> install;
  std::vector<double> resume;
  std::vector<double> first_success;
  std::vector<double> all_succeeded;
  std::vector<double> rejoin;
  std::vector<std::string> findings;

  bool clean(const Options& options) const;
  std::string text(const Options& options) const;
  std::string json(const Options& options) const;
};

}  // namespace mep::chaos
