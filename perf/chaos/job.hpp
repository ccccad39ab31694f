// The processes of the job: started as mep_run starts them, watched, signalled and reaped.
//
// Nothing outlives this object's process: every child asks the kernel to kill it when its parent ends.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "options.hpp"
#include "page.hpp"

namespace mep::chaos {

struct Process {
  uint32_t rank = 0;
  uint32_t generation = 0;
  pid_t pid = 0;
  bool ended = false;
  bool stopped = false;  // by a signal, now
  bool end_checked = false;
  bool drained = false;  // all that it recorded has been read
  int wait_status = 0;
  uint64_t started_ns = 0;
  uint64_t ended_ns = 0;
  Page* page = nullptr;

  Process() = default;
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  bool killed() const;
  uint64_t iteration() const { return page->iteration.load(std::memory_order_acquire); }
  bool runs() const { return !ended && page->state.load() == WorkerState::kRunning; }
};

class Job {
 public:
  explicit Job(const Options& options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Starts rank's process number `generation` (0: of the first ones; else it joins). `environment`:
  // NAME=VALUE or empty. Throws std::runtime_error.
  Process& start(uint32_t rank, bool joins, const std::string& environment = {});
  void signal(const Process& process, int signal);
  // Reaps and notes stops.
  void look();

  // The latest process of the rank, or null.
  Process* of(uint32_t rank) const;
  const std::vector<std::unique_ptr<Process>>& all() const { return processes_; }
  uint32_t generations(uint32_t rank) const { return generations_[rank]; }
  const std::string& name() const { return name_; }

 private:
  const Options& options_;
  std::string name_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<uint32_t> generations_;
};

}  // namespace mep::chaos
