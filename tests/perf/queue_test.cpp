// mep_perf queue with --nic, from the bring-up of the two queue pairs to the rows, against a model of an adapter's firmware.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "error.hpp"
#include "options.hpp"
#include "queue/adapter_ends.hpp"
#include "queue/session.hpp"
#include "support/cmocka_cpp.hpp"
#include "support/mlx5_firmware.hpp"
#include "support/temporary_folder.hpp"

namespace {

using mep::perf::Options;
using mep::test::Firmware;
using mep::test::ModelFabric;
using mep::test::ModelPort;

constexpr uint64_t kGenerousNs = 100'000'000'000;

enum class Link { kInfiniBand, kRouted, kRoce };
constexpr Link kLinks[] = {Link::kInfiniBand, Link::kRouted, Link::kRoce};

ModelPort port_of(Link link) {
  ModelPort port;
  port.is_ethernet = link == Link::kRoce;
  port.needs_global_header = link == Link::kRouted;
  port.lid = 0x101;
  port.gid.fill(0x41);
  port.mac.fill(0x61);
  return port;
}

Options small_options() {
  Options options;
  options.operation = "queue";
  options.nic = "model_0";
  options.warps = {1, 3};
  options.put_sizes = {8, 5000};
  options.iterations = 40;
  return options;
}

struct Adapter {
  explicit Adapter(Link link) : firmware(&fabric, port_of(link), 0x100) {}

  // The text of the error; empty: all went well.
  std::string run(const Options& options, uint64_t limit_ns = kGenerousNs) {
    try {
      const auto ends =
          mep::perf::make_adapter_ends(options.nic, firmware, mep::perf::queue_span(options));
      mep::perf::run_queue_session(options, *ends, limit_ns);
    } catch (const mep::perf::PerfError& error) {
      return error.what();
    }
    return "";
  }
  // Nothing is left on the adapter, and no part ended before what uses it.
  void check_end() {
    assert_int_equal(firmware.live, 0);
    assert_true(firmware.in_order);
    assert_true(fabric.pairs.is_empty());
  }

  ModelFabric fabric;
  Firmware firmware;
};

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}
size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

void all_rows_over_each_link(void**) {
  const mep_test::TemporaryFolder folder;
  for (const Link link : kLinks) {
    Adapter adapter(link);
    Options options = small_options();
    options.json_path = folder.path() + "/rows.json";
    assert_string_equal(adapter.run(options).c_str(), "");
    adapter.check_end();
    std::ifstream file(options.json_path);
    const std::string rows((std::istreambuf_iterator<char>(file)), {});
    assert_int_equal(count_of(rows, "\"nic\": \"model_0\""), 5);
    assert_int_equal(count_of(rows, "\"kind\": \"requests\""), 2);
    assert_int_equal(count_of(rows, "\"kind\": \"latency\""), 1);
    assert_int_equal(count_of(rows, "\"kind\": \"bandwidth\""), 2);
  }
}

// An error that names the adapter and what was refused, whichever step it is.
void each_step_is_refused(void**) {
  for (const Link link : kLinks) {
    uint32_t step = 0;
    for (;; ++step) {
      Adapter adapter(link);
      adapter.firmware.refuse_at = step;
      Options options = small_options();
      options.warps = {1};
      options.put_sizes = {8};
      options.iterations = 1;
      const std::string text = adapter.run(options);
      adapter.check_end();
      if (adapter.firmware.steps <= step) {
        assert_string_equal(text.c_str(), "");
        break;
      }
      assert_true(text.rfind("HCA model_0: ", 0) == 0);
      assert_true(has(text, "a fault") || has(text, "the adapter refused "));
    }
    assert_true(step >= 15);
  }
}

void an_adapter_that_lacks_something(void**) {
  Adapter adapter(Link::kRoce);
  adapter.firmware.capabilities.ignores_overrun = false;
  assert_true(has(adapter.run(small_options()), "cq_oi is 0"));
  adapter.check_end();
}

// Whichever request it is; one behind it may have overwritten it.
void a_completion_with_an_error(void**) {
  for (const uint64_t at : {0, 1, 30, 700}) {
    Adapter adapter(Link::kInfiniBand);
    adapter.fabric.faults.fails_at = at;
    adapter.fabric.faults.syndrome = 0x13;
    adapter.fabric.faults.vendor = 0x68;
    const std::string text = adapter.run(small_options());
    adapter.check_end();
    const bool first = has(text, "syndrome 0x13 (no access to the memory of the other end)") &&
                       has(text, "vendor's syndrome 0x68") &&
                       has(text, ("at request " + std::to_string(at) + ":").c_str());
    if (!first && !has(text, "syndrome 0x05 (flushed")) fail_msg("%s", text.c_str());
    assert_true(has(text, "the NIC reports an error at request "));
    assert_true(has(text, " completed"));
  }
}

// The adapter sends, and nobody answers: loops are blocked, say.
void packets_that_do_not_come_back(void**) {
  Adapter adapter(Link::kRoce);
  adapter.fabric.is_down = true;
  const std::string text = adapter.run(small_options());
  adapter.check_end();
  assert_true(has(text, "0x15 (the other end does not answer: ") || has(text, "0x05 (flushed"));
}

void a_completion_that_never_comes(void**) {
  Adapter adapter(Link::kInfiniBand);
  adapter.fabric.faults.never_completes = true;
  for (const uint32_t warps : {1u, 5u}) {
    Options options = small_options();
    options.warps = {warps};
    const std::string text = adapter.run(options, 200'000'000);
    adapter.check_end();
    const std::string begin = "requests of " + std::to_string(warps) +
                              (warps == 1 ? " warp" : " warps") + ": no end within 0.2 s; 0 of ";
    if (text.rfind(begin, 0) != 0) fail_msg("%s", text.c_str());
    assert_true(has(text, "requests completed: does the NIC see the doorbell?"));
  }
}

}  // namespace

int main() {
  setenv("MEP_LOG", "error", 0);  // each refusal of the software NIC is a warning
  const CMUnitTest tests[] = {
      cmocka_unit_test(all_rows_over_each_link),
      cmocka_unit_test(each_step_is_refused),
      cmocka_unit_test(an_adapter_that_lacks_something),
      cmocka_unit_test(a_completion_with_an_error),
      cmocka_unit_test(packets_that_do_not_come_back),
      cmocka_unit_test(a_completion_that_never_comes),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
