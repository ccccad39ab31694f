// labels: quick
// A tool that a process is started with sees a range for each host call, in builds with CUDA; else none is begun.
#include <dlfcn.h>

#include <string>

#include "base/tool_range.hpp"
#include "support/coll_ranks.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

#ifdef MEP_FAKE_TOOL
// All ranges that have begun, a name and a space each; '.' where one ended.
std::string seen_ranges() {
  void* const tool = dlopen(MEP_FAKE_TOOL, RTLD_NOW | RTLD_NOLOAD);
  assert_non_null(tool);
  const auto seen = reinterpret_cast<const char* (*)()>(dlsym(tool, "fake_tool_seen"));
  assert_non_null(reinterpret_cast<void*>(seen));
  return seen();
}
#endif

void calls_are_ranges(void**) {
#ifdef MEP_FAKE_TOOL
  setenv("NVTX_INJECTION64_PATH", MEP_FAKE_TOOL, 1);
#endif
  mep_comm_t comm = nullptr;
  const mep_comm_config_t config = patient_config(0);
  assert_int_equal(mep_comm_init_all(1, &config, &comm), MEP_SUCCESS);
  int32_t in = 1;
  int32_t out = 0;
  assert_int_equal(mep_allreduce(&in, &out, 1, MEP_INT32, MEP_SUM, comm, nullptr), MEP_SUCCESS);
  mep_request_t request = nullptr;
  assert_int_equal(mep_ibroadcast(&in, &out, 1, MEP_INT32, 0, comm, nullptr, &request),
                   MEP_SUCCESS);
  assert_int_equal(mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, nullptr, nullptr), MEP_SUCCESS);
  assert_int_equal(mep_sendrecv(&in, 1, 0, 0, &out, 1, 0, 0, MEP_INT32, comm, nullptr, nullptr),
                   MEP_SUCCESS);
  assert_int_equal(mep_comm_destroy(comm), MEP_SUCCESS);
#ifdef MEP_FAKE_TOOL
  assert_true(mep::has_tool.load());
  assert_string_equal(seen_ranges().c_str(), "MEP: allreduce .broadcast .sendrecv .");
#else
  assert_false(mep::has_tool.load());
#endif
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(calls_are_ranges)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
