// labels: gate threads tsan
// Every transport that reaches ranks as threads.
#include "support/transport_conformance.hpp"

int main() {
  using namespace mep::test;  // NOLINT(google-build-using-namespace)
  const CMUnitTest tests[] = {MEP_CONFORMANCE_TESTS(RankKind::kThreads)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
