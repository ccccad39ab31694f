#include "thread_team.hpp"

#include <algorithm>

#include "error.hpp"

namespace mep::perf {

// The result stays until all have come to the next meeting, hence have read this one's.
void MeetingPoint::combine(double* values, size_t count, bool is_sum) {
  std::unique_lock lock(mutex_);
  if (arrived_ == 0) {
    gathered_.assign(values, values + count);
  } else {
    for (size_t i = 0; i < count; ++i) {
      gathered_[i] = is_sum ? gathered_[i] + values[i] : std::max(gathered_[i], values[i]);
    }
  }
  const uint64_t meeting = meetings_;
  if (++arrived_ == ranks_) {
    result_.swap(gathered_);
    arrived_ = 0;
    ++meetings_;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return is_broken_ || meetings_ != meeting; });
  if (meetings_ == meeting) throw PerfError("another rank has given up");
  std::copy_n(result_.begin(), count, values);
}

void MeetingPoint::give_up() {
  const std::lock_guard lock(mutex_);
  is_broken_ = true;
  changed_.notify_all();
}

namespace {

class ThreadTeam : public Team {
 public:
  ThreadTeam(MeetingPoint& point, int rank) : point_(point), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return point_.ranks(); }
  void barrier() override { point_.combine(nullptr, 0, true); }
  void wait_quietly() override { barrier(); }
  void maximum(double* values, size_t count) override { point_.combine(values, count, false); }
  void sum(double* values, size_t count) override { point_.combine(values, count, true); }

 private:
  MeetingPoint& point_;
  int rank_;
};

}  // namespace

std::unique_ptr<Team> make_thread_team(MeetingPoint& point, int rank) {
  return std::make_unique<ThreadTeam>(point, rank);
}

}  // namespace mep::perf
