#include "error.hpp"
#include "mpi_side.hpp"

namespace mep::perf {
namespace {

[[noreturn]] void refuse() {
  throw PerfError("this mep_perf was built without MPI (configure with MEP_MPI=ON)");
}

}  // namespace

bool mpi_is_built() {
  return false;
}
void mpi_start() {
  refuse();
}
void mpi_finish() {}
void mpi_abort(int) {}
mep_comm_t mpi_make_comm() {
  refuse();
}
std::unique_ptr<Team> make_mpi_team() {
  refuse();
}
std::unique_ptr<Case> make_mpi_collective(const CollectiveCall&) {
  refuse();
}
std::unique_ptr<MessageSide> make_mpi_messages() {
  refuse();
}
std::unique_ptr<MoeSide> make_mpi_moe(const MoeProblem&) {
  refuse();
}
std::unique_ptr<MoeSide> make_mpi_throughput_moe(const MoeProblem&) {
  refuse();
}

}  // namespace mep::perf
