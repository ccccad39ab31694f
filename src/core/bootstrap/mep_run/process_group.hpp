// The ranks of one job as child processes of this one.
//
// Invariants
//   - All ranks, and what they start in turn, are in one process group whose leader is a keeper: a
//     child that does nothing but kill the group when this process has ended, however it ended. So
//     nothing outlives the owner, not even its SIGKILL.
//   - The end of one rank does nothing to the others.
//   - One thread uses an object: the one that made it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "core/bootstrap/launch_page.hpp"
#include "mep.h"

namespace mep {

class ProcessGroup {
 public:
  struct Options {
    std::vector<std::string> command;  // program (searched in PATH) and arguments
    int32_t size = 1;
    // In a world over several hosts rank 0 here is `first_rank` there, of world_size (0: of size).
    int32_t first_rank = 0;
    int32_t world_size = 0;
    std::string job;          // empty: a new one that no other job has
    bool tag_output = false;  // "[RANK] " before each line of output
    // Variables of the ranks: what the owner's environment has, `defaults` where it lacks the name, `environment`.
    std::vector<std::pair<std::string, std::string>> defaults;
    std::vector<std::pair<std::string, std::string>> environment;
  };
  struct Exit {
    int32_t rank = -1;
    pid_t pid = 0;
    int wait_status = 0;  // for WIFEXITED() and friends
  };

  ProcessGroup() = default;
  // Kills what still runs.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // Starts the keeper and ranks 0..size-1. Once for an object.
  [[nodiscard]] mep_result_t start(const Options& options);
  // Starts `rank` again after its end; its environment says that it is a replacement.
  [[nodiscard]] mep_result_t start_replacement(int32_t rank);

  // Passes output on until a rank ends (*ended is set), `wake_fd` (or -1) is readable, or the
  // deadline.
  [[nodiscard]] mep_result_t wait(Deadline deadline, int wake_fd, Exit* exit, bool* ended);

  void signal_rank(int32_t rank, int signal);
  void signal_all(int signal);
  // Kills what the ranks left behind and passes on the last output.
  void finish();

  // In the world.
  int32_t world_rank(int32_t rank) const { return options_.first_rank + rank; }
  pid_t pid(int32_t rank) const { return ranks_[static_cast<size_t>(rank)].pid; }  // 0: has ended
  int32_t running() const;
  const std::string& job() const { return options_.job; }

 private:
  struct Stream {
    UniqueFd pipe;
    int target = 1;  // where its lines go
    std::string partial;
  };
  struct Rank {
    pid_t pid = 0;
    UniqueFd pidfd;
    Stream output[2];
  };

  mep_result_t start_keeper();
  mep_result_t start_rank(int32_t rank, bool is_replacement);
  [[noreturn]] void become_rank(int32_t rank, bool is_replacement, int error_pipe,
                                const int output[2], int input);
  mep_result_t make_input(int32_t rank, UniqueFd* input);
  bool reap(Exit* exit);
  void pass_output(int32_t rank, Stream* stream);
  void pass_input();

  Options options_;
  pid_t parent_ = 0;
  pid_t keeper_ = 0;
  UniqueFd keeper_pipe_;
  std::vector<Rank> ranks_;
  LaunchPage page_;
  UniqueFd input_pipe_;  // to rank 0 when standard input is a terminal
  std::string input_;
};

}  // namespace mep
