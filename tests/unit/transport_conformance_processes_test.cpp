// labels: gate processes
// Every transport that reaches ranks as processes.
#include "support/transport_conformance.hpp"

int main() {
  using namespace mep::test;  // NOLINT(google-build-using-namespace)
  const CMUnitTest tests[] = {MEP_CONFORMANCE_TESTS(RankKind::kProcesses)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
