// The command line of mep_chaos.
#pragma once

#include <cstdint>
#include <string>

#include "mep.h"

namespace mep::chaos {

struct Options {
  uint32_t ranks = 4;
  uint64_t seed = 1;
  uint64_t faults = 20;      // of the generated plan
  uint64_t seconds = 0;      // no new fault after this; 0: no limit
  std::string plan;          // text of a given plan; empty: generated
  std::string mix = "kill";  // of a generated plan: comma list of kill, stop, slow, two, point
  std::string workload = "mixed";  // allreduce, mixed, moe or moe-throughput
  uint32_t timeout_ms = 20000;     // of operations
  uint32_t suspect_ms = 0;         // 0: the library's
  uint32_t heartbeat_ms = 0;
  uint32_t hang_ms = 60000;  // without progress for so long: a hang
  // Growth of a rank's anonymous memory in the second half of the run that is still no leak.
  uint32_t leak_pages = 256;
  std::string starter;  // program that becomes each rank: STARTER mep_chaos ARGUMENT...
  std::string json_path;
  bool verbose = false;
  // Internal: this process is a worker.
  int worker_fd = -1;
  uint32_t generation = 0;

  bool has_moe() const { return workload == "moe" || workload == "moe-throughput"; }
  uint32_t ep_mode() const {
    return workload == "moe" ? MEP_EP_LOW_LATENCY : MEP_EP_HIGH_THROUGHPUT;
  }
};

// Whether --job, or an option that only such a job has, was given: else random programs are meant.
bool is_about_a_job(int argc, char** argv);

enum class ParseResult { kRun, kLeave, kBad };
ParseResult parse_options(int argc, char** argv, Options* options, std::string* message);

}  // namespace mep::chaos
