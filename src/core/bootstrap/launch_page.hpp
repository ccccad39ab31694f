// Which ranks of a host have ended, as their launcher sees it: a page of memory that mep_run writes and its ranks
// read. A rank that still waits for others at the start learns of an end that no connection shows.
//
//   u64 magic, u64 hash of the job's name, u32 first rank, u32 ranks, u64 ends[ranks]
//   end: 0 while the process runs, else pid << 32 | 0x10000 | its wait status
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/unique_fd.hpp"
#include "mep.h"
#include "transport/memfd.hpp"

namespace mep {

// "was killed by signal 9 (SIGKILL)", "exited with status 3"
std::string text_of_wait_status(int wait_status);

class LaunchPage {
 public:
  // --- The launcher, of `ranks` ranks of the world from `first_rank` on ---
  [[nodiscard]] mep_result_t create(int32_t first_rank, int32_t ranks, const std::string& job);
  // Ranks inherit it under this number, see kVariable. Closed by exec unless the child says otherwise.
  int fd() const { return fd_.get(); }
  // `rank` of this host, from 0. Nothing where the page could not be made.
  void note_started(int32_t rank);
  void note_ended(int32_t rank, pid_t pid, int wait_status);

  // --- A rank ---
  static constexpr const char* kVariable = "MEP_LAUNCH_FD";
  // Finds nothing where no mep_run has started this process for that job, or where the descriptor was closed on the way.
  void find(const std::string& job);
  bool found() const { return page_.data() != nullptr; }
  // How that rank of the world ended; empty: it runs, or nothing is known.
  std::string end_of(int32_t world_rank) const;

 private:
  UniqueFd fd_;  // the launcher's
  Mapping page_;
};

}  // namespace mep
