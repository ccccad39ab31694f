// Ranks that are threads agree on numbers on the host, without the communicator that is measured: on a
// GPU an operation of a rank that waits would hold up what another one does there.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "team.hpp"

namespace mep::perf {

// Shared by the ranks.
class MeetingPoint {
 public:
  explicit MeetingPoint(int ranks) : ranks_(ranks) {}
  MeetingPoint(const MeetingPoint&) = delete;
  MeetingPoint& operator=(const MeetingPoint&) = delete;
  int ranks() const { return ranks_; }
  // Element by element over all ranks. Throws when a rank has given up.
  void combine(double* values, size_t count, bool is_sum);
  // This rank comes no more: whoever waits or will wait is told.
  void give_up();

 private:
  const int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  uint64_t meetings_ = 0;
  bool is_broken_ = false;
  std::vector<double> gathered_;
  std::vector<double> result_;
};

// `point` outlives the team.
std::unique_ptr<Team> make_thread_team(MeetingPoint& point, int rank);

}  // namespace mep::perf
