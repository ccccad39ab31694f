// Overlap: a sum over all ranks runs while this rank computes; errors become exceptions.
//
//   mep_run -n 4 ./allreduce_cpp    (or mpirun -n 4 ./allreduce_cpp, or ./allreduce_cpp alone)
#include <mep.h>

#include <iostream>
#include <memory>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

void must(mep_result_t result) {
  if (result >= 0) return;
  throw std::runtime_error(std::string(mep_result_string(result)) + ": " + mep_last_error());
}

struct DestroyComm {
  void operator()(mep_comm_t comm) const {
    if (mep_comm_destroy(comm) < 0) std::cerr << mep_last_error() << "\n";
  }
};
using Comm = std::unique_ptr<mep_comm, DestroyComm>;

Comm join_world() {
  mep_comm_t comm = nullptr;
  must(mep_comm_init(nullptr, &comm));
  return Comm(comm);
}

int run() {
  const Comm comm = join_world();
  int32_t rank = 0, size = 0;
  must(mep_comm_rank(comm.get(), &rank));
  must(mep_comm_size(comm.get(), &size));

  std::vector<int64_t> values(100000);
  std::iota(values.begin(), values.end(), rank);  // rank, rank + 1, ...
  mep_request_t request = nullptr;
  must(mep_iallreduce(values.data(), values.data(), values.size(), MEP_INT64, MEP_SUM, comm.get(),
                      nullptr, &request));

  double work = 0;  // something else to do meanwhile; `values` belongs to the request
  for (int i = 1; i < 100000; ++i) work += 1.0 / i;
  must(mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, nullptr, nullptr));

  const int64_t sum_of_ranks = int64_t{size} * (size - 1) / 2;
  bool right = work > 12.0;
  for (size_t i = 0; i < values.size(); ++i) {
    right = right && values[i] == int64_t(i) * size + sum_of_ranks;
  }
  std::ostringstream line;  // one write, so that the lines of the ranks do not mix
  line << "rank " << rank << " of " << size << ": values[1] = " << values[1] << ", "
       << (right ? "right" : "WRONG") << "\n";
  std::cout << line.str() << std::flush;
  return right ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
