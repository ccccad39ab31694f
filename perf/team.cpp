#include "team.hpp"

#include <chrono>
#include <thread>

#include "error.hpp"

namespace mep::perf {
namespace {

class MepTeam : public Team {
 public:
  explicit MepTeam(mep_comm_t comm) : comm_(comm) {
    require(mep_comm_rank(comm, &rank_), "mep_comm_rank");
    require(mep_comm_size(comm, &size_), "mep_comm_size");
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void barrier() override { require(mep_barrier(comm_, nullptr), "mep_barrier"); }
  void wait_quietly() override {
    mep_request_t request = nullptr;
    require(mep_ibarrier(comm_, nullptr, &request), "mep_ibarrier");
    int32_t is_done = 0;
    while (true) {
      require(mep_request_test(&request, &is_done, nullptr), "mep_request_test");
      if (is_done != 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void maximum(double* values, size_t count) override { combine(values, count, MEP_MAX); }
  void sum(double* values, size_t count) override { combine(values, count, MEP_SUM); }

 private:
  void combine(double* values, size_t count, mep_op_t op) {
    require(mep_allreduce(values, values, count, MEP_FLOAT64, op, comm_, nullptr), "mep_allreduce");
  }
  mep_comm_t comm_;
  int32_t rank_ = 0;
  int32_t size_ = 0;
};

}  // namespace

std::unique_ptr<Team> make_mep_team(mep_comm_t comm) {
  return std::make_unique<MepTeam>(comm);
}

}  // namespace mep::perf
