// The duties of every transport, by verbs over soft-RoCE. Runs in the lab's guest: ./dev lab rdma.
#include "support/transport_conformance.hpp"
#include "verbs_rig.hpp"

namespace mep::test {
namespace {

template <Devices devices>
void put_then_signal_here(void**) {
  run_verbs(devices, 3, put_signal_body);
}
template <Devices devices>
void threads_here(void**) {
  run_verbs(devices, 2, threads_body);
}
template <Devices devices>
void signals_here(void**) {
  run_verbs(devices, 4, concurrent_signals_body);
}
template <Devices devices>
void wakes_here(void**) {
  run_verbs(devices, 2, wake_body);
}
template <Devices devices>
void bad_arguments_here(void**) {
  run_verbs(devices, 2, bad_arguments_body);
}
template <Devices devices>
void renewed_here(void**) {
  run_verbs(devices, 2, renew_body);
}
template <Devices devices>
void bad_imports_here(void**) {
  run_verbs(devices, 2, bad_imports_body);
}
template <Devices devices>
void fenced_here(void**) {
  run_verbs(devices, 2, fenced_body);
}
template <Devices devices>
void many_windows_here(void**) {
  run_verbs(devices, 2, many_windows_body);
}
void ranks_as_threads(void**) {
  run_verbs(Devices::kBoth, 3, put_signal_body, RankKind::kThreads);
}

}  // namespace
}  // namespace mep::test

// verbs_conformance_test [slice | PATTERN]: all, the part that CI has time for, or those of that name.
int main(int argc, char** argv) {
  using namespace mep::test;
  const CMUnitTest slice[] = {
      cmocka_unit_test(bad_arguments_here<Devices::kAlternating>),
      cmocka_unit_test(put_then_signal_here<Devices::kBoth>),
      cmocka_unit_test(fenced_here<Devices::kAlternating>),
      cmocka_unit_test(renewed_here<Devices::kBoth>),
  };
  const CMUnitTest rest[] = {
      cmocka_unit_test(put_then_signal_here<Devices::kAlternating>),
      cmocka_unit_test(ranks_as_threads),
      cmocka_unit_test(threads_here<Devices::kAlternating>),
      cmocka_unit_test(bad_imports_here<Devices::kBoth>),
      cmocka_unit_test(many_windows_here<Devices::kAlternating>),
      cmocka_unit_test(signals_here<Devices::kAlternating>),
      cmocka_unit_test(wakes_here<Devices::kAlternating>),
  };
  const bool only_slice = argc > 1 && std::string(argv[1]) == "slice";
  if (argc > 1 && !only_slice) cmocka_set_test_filter(argv[1]);
  int failed = cmocka_run_group_tests(slice, nullptr, nullptr);
  if (!only_slice) failed += cmocka_run_group_tests(rest, nullptr, nullptr);
  return failed;
}
