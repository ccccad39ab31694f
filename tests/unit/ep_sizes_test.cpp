// The table of docs/reference/limits.md is what mep_ep_buffer_size answers on a host communicator.
// labels: quick
#include <fstream>
#include <iterator>
#include <string>

#include "core/ep/host/host_buffers.hpp"
#include "support/cmocka_cpp.hpp"

namespace {

constexpr uint64_t kMebibyte = uint64_t{1} << 20;

std::string row(mep_ep_layout_t layout, uint32_t tokens, mep_dtype_t wire, uint32_t ranks) {
  mep_ep_config_t config;
  mep_moe_defaults(&config, tokens, 7168, 8, 256);
  config.layout = layout;
  config.wire_type = wire;
  mep::EpShape shape;
  assert_int_equal(mep::resolve_ep_config(0, ranks, config, &shape), MEP_SUCCESS);
  mep_ep_size_t size;
  mep_ep_size_defaults(&size);
  mep::estimate_host_buffers(shape, &size);
  std::string text = layout == MEP_EP_LOW_LATENCY ? "| low latency, " : "| high throughput, ";
  text += std::to_string(tokens) + " | ";
  text += wire == 0 ? "bf16" : "fp8";
  text += " | " + std::to_string(ranks);
  for (const uint64_t bytes : {size.window_bytes, size.resident_bytes, size.private_bytes}) {
    text += " | " + std::to_string((bytes + kMebibyte - 1) / kMebibyte);
  }
  return text + " |\n";
}

void table_of_the_limits(void**) {
  std::string table =
      "| mode, tokens of a rank | rows | ranks | windows | resident | private |\n"
      "|---|---|---|---|---|---|\n";
  const struct {
    uint32_t mode;
    uint32_t tokens;
  } modes[] = {{MEP_EP_LOW_LATENCY, 128}, {MEP_EP_HIGH_THROUGHPUT, 4096}};
  for (const auto& [mode, tokens] : modes) {
    for (const mep_dtype_t wire : {mep_dtype_t{0}, mep_dtype_t{MEP_FLOAT8_E4M3}}) {
      for (const uint32_t ranks : {8, 64, 256}) table += row(mode, tokens, wire, ranks);
    }
  }
  std::ifstream file(MEP_TEST_LIMITS);
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  if (page.find("\n\n" + table + "\n") == std::string::npos) {
    fail_msg("%s has not this table:\n%s", MEP_TEST_LIMITS, table.c_str());
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(table_of_the_limits)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
