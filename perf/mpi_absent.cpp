#include "error.hpp"
#include "mpi_side.hpp"

namespace mep::perf {
namespace {

[[noreturn]] void refuse_mpi() {
  throw PerfError("this mep_perf was built without MPI (configure with MEP_MPI=ON)");
}

}  // namespace

bool mpi_is_built() {
  return false;
}
void mpi_start() {
  refuse_mpi();
}
void mpi_finish() {}
void mpi_abort(int) {}
mep_comm_t mpi_make_comm() {
  refuse_mpi();
}
std::unique_ptr<Team> make_mpi_team() {
  refuse_mpi();
}
std::unique_ptr<Case> make_mpi_collective(const CollectiveCall&) {
  refuse_mpi();
}
std::unique_ptr<MessageSide> make_mpi_messages() {
  refuse_mpi();
}
std::unique_ptr<MoeSide> make_mpi_moe(const MoeProblem&) {
  refuse_mpi();
}
std::unique_ptr<MoeSide> make_mpi_throughput_moe(const MoeProblem&) {
  refuse_mpi();
}

}  // namespace mep::perf
