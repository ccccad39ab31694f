#include <mpi.h>

#include <chrono>
#include <thread>

#include "error.hpp"
#include "mep_mpi.h"
#include "mpi_side.hpp"

// MPI's default error handler ends the job with a message of its own, so results are not looked at.
namespace mep::perf {
namespace {

class MpiTeam : public Team {
 public:
  MpiTeam() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
  void wait_quietly() override {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    int is_done = 0;
    while (true) {
      MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
      if (is_done != 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void maximum(double* values, size_t count) override { combine(values, count, MPI_MAX); }
  void sum(double* values, size_t count) override { combine(values, count, MPI_SUM); }

 private:
  static void combine(double* values, size_t count, MPI_Op op) {
    MPI_Allreduce(MPI_IN_PLACE, values, static_cast<int>(count), MPI_DOUBLE, op, MPI_COMM_WORLD);
  }
  int rank_ = 0;
  int size_ = 0;
};

}  // namespace

bool mpi_is_built() {
  return true;
}
void mpi_start() {
  MPI_Init(nullptr, nullptr);
}
void mpi_finish() {
  MPI_Finalize();
}
void mpi_abort(int status) {
  MPI_Abort(MPI_COMM_WORLD, status);
}

mep_comm_t mpi_make_comm() {
  mep_comm_t comm = nullptr;
  require(mep_comm_init_mpi(MPI_COMM_WORLD, nullptr, &comm), "mep_comm_init_mpi");
  return comm;
}

std::unique_ptr<Team> make_mpi_team() {
  return std::make_unique<MpiTeam>();
}

}  // namespace mep::perf
