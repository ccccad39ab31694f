// Dispatch and combine on one GPU: ep_gpu_test [matrix|faults|soak|signals|fences|all|notices] [SECONDS] [SEED].
// Exit status: 0 passed, 1 failed, 77 skipped because there is no GPU. notices: for builds that lack
// something; passed if the signals or the replays fail.
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "ep_rig.hpp"
#include "ep_tests.hpp"

namespace {

// Every rank's kernels and the load's must have a queue of their own, and be loaded before any waits.
void prepare_environment() {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
}

}  // namespace

int main(int argc, char** argv) {
  prepare_environment();
  const char* what = argc > 1 ? argv[1] : "all";
  const double seconds = argc > 2 ? std::atof(argv[2]) : 20;
  const uint64_t seed =
      argc > 3 ? std::strtoull(argv[3], nullptr, 10) : mep_reference::seed_of_run(1);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("SKIPPED: no GPU\n");
    return 77;
  }
  if (std::strcmp(what, "notices") == 0) {
    const bool noticed = run_signals(seconds / 4).failures != 0 ||
                         run_soak(seed, seconds, 100'000'000).failures != 0;
    std::printf("%s\n", noticed ? "noticed" : "NOT NOTICED");
    return noticed ? 0 : 1;
  }
  const auto wants = [&](const char* name) {
    return std::strcmp(what, name) == 0 || std::strcmp(what, "all") == 0;
  };
  std::printf("MEP_TEST_SEED=%" PRIu64 "\n", seed);
  std::vector<TestResult> results;
  if (wants("matrix")) results.push_back(run_matrix(seed, seconds));
  if (wants("faults")) results.push_back(run_faults(seed));
  if (wants("soak")) results.push_back(run_soak(seed, seconds, 100'000'000));
  if (wants("signals")) results.push_back(run_signals(seconds / 4));
  if (wants("fences")) results.push_back(run_fences(seed, seconds / 2));
  bool good = true;
  for (const TestResult& result : results) {
    std::printf("%-55s %10" PRIu64 " cases %5" PRIu64 " failed  %s\n", result.name, result.cases,
                result.failures, result.failures == 0 ? "ok" : "FAILED");
    good = good && result.failures == 0;
  }
  return good ? 0 : 1;
}
