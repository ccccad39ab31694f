// labels: quick
// Which HCA is chosen where, on the topologies of tests/topologies. The expected results were worked out by
// hand from the XML files; the test shares nothing with the code that judges.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/device_filter.hpp"
#include "base/status.hpp"
#include "core/topo/hca_choice.hpp"
#include "core/topo/hca_topology.hpp"
#include "support/cmocka_cpp.hpp"
#include "support/temporary_folder.hpp"

namespace {

using mep::HcaChoice;
using mep::HcaTopology;

std::string xml_path(const std::string& name) {
  return (std::filesystem::path(MEP_TEST_TOPOLOGIES) / name).string();
}

HcaTopology load(const std::string& name) {
  HcaTopology topology;
  if (mep::read_hca_topology(xml_path(name), &topology) != MEP_SUCCESS) {
    fail_msg("%s: %s", name.c_str(), mep::last_error_text());
  }
  return topology;
}

// All cores of a range as a mask; at most 64.
std::vector<uint64_t> cores(int first, int last) {
  uint64_t word = 0;
  for (int cpu = first; cpu <= last; ++cpu) word |= uint64_t{1} << cpu;
  return {word};
}

struct Question {
  std::string location;
  std::vector<uint64_t> bound_to;
  uint32_t local_rank = 0;
  std::string list;  // MEP_HCA
};

HcaChoice ask(const HcaTopology& topology, const Question& question) {
  mep::HcaLocation location;
  const std::vector<uint64_t>& bound =
      question.bound_to.empty() ? topology.cpus : question.bound_to;
  if (mep::find_location(topology, question.location, bound, &location) != MEP_SUCCESS) {
    fail_msg("%s: %s", question.location.c_str(), mep::last_error_text());
  }
  mep::DeviceFilter filter;
  if (mep::DeviceFilter::parse(question.list, "MEP_HCA", &filter) != MEP_SUCCESS) {
    fail_msg("%s: %s", question.list.c_str(), mep::last_error_text());
  }
  return mep::choose_hca(topology, location, filter, question.local_rank);
}

std::string usable_names(const HcaChoice& choice) {
  std::string names;
  for (size_t i = 0; i < choice.usable; ++i) names += (i == 0 ? "" : " ") + choice.ports[i].name();
  return names;
}

void expect_order(const HcaTopology& topology, const Question& question, const char* names,
                  size_t equals) {
  const HcaChoice choice = ask(topology, question);
  if (usable_names(choice) != names || choice.equals != equals) {
    fail_msg("%s, local rank %u, MEP_HCA=%s: got '%s' with %zu equals, expected '%s' with %zu\n%s",
             question.location.c_str(), question.local_rank, question.list.c_str(),
             usable_names(choice).c_str(), choice.equals, names, equals, choice.summary.c_str());
  }
}

const mep::RankedPort& port_of(const HcaChoice& choice, const std::string& name) {
  for (const mep::RankedPort& ranked : choice.ports) {
    if (ranked.name() == name) return ranked;
  }
  fail_msg("%s is not in the choice", name.c_str());
  return choice.ports[0];
}

void expect_has(const std::string& text, const char* part) {
  if (text.find(part) == std::string::npos) fail_msg("'%s' lacks '%s'", text.c_str(), part);
}

// --- Topologies -----------------------------------------------------------------------------------

// mlx5_0 stands below the root port 84 of package 1, beside cuda0; eth0 and another GPU elsewhere.
void real_machine(void**) {
  const HcaTopology topology = load("32em64t-2n8c2t-pci-wholeio.xml");
  assert_false(topology.is_this_host);
  assert_int_equal(topology.hcas.size(), 1);
  assert_int_equal(topology.gpus.size(), 1);
  assert_string_equal(topology.gpus[0].pci.c_str(), "0000:84:00.0");
  const HcaChoice choice = ask(topology, {.location = "gpu:0", .bound_to = {}, .list = ""});
  assert_string_equal(usable_names(choice).c_str(), "mlx5_0:1");
  assert_int_equal(choice.ports[0].nearness, mep::Nearness::kSwitch);
  expect_has(choice.summary, "mlx5_0:1 for gpu:0 (cuda0 at PCI 0000:84:00.0)");
  expect_has(choice.summary, "behind the same PCIe port; link active, rate unknown");
  expect_has(choice.summary, "the only one");
  const auto nearness = [&](const char* location, std::vector<uint64_t> bound) {
    return ask(topology, {.location = location, .bound_to = std::move(bound), .list = ""})
        .ports[0]
        .nearness;
  };
  // GPU 83 hangs at another port of the same host bridge, GPU 03 at the other package.
  assert_int_equal(nearness("0000:83:00.0", {}), mep::Nearness::kRootComplex);
  assert_int_equal(nearness("0000:03:00.0", {}), mep::Nearness::kFar);
  assert_int_equal(nearness("numa:1", {}), mep::Nearness::kNode);
  assert_int_equal(nearness("numa:0", {}), mep::Nearness::kFar);
  // Package 1 has the logical CPUs 8-15 and 24-31.
  assert_int_equal(nearness("cpu", cores(8, 15)), mep::Nearness::kNode);
  assert_int_equal(nearness("cpu", cores(0, 7)), mep::Nearness::kFar);
  assert_int_equal(nearness("cpu", cores(7, 8)), mep::Nearness::kSomeCores);
  assert_int_equal(nearness("cpu", {}), mep::Nearness::kNode);
}

// Each switch has GPUs 2i, 2i+1 and HCAs 2i, 2i+1; switches 0 and 1 are at package 0 (cores 0-7).
void eight_gpus_eight_hcas(void**) {
  const HcaTopology topology = load("8gpu-8hca-switches.xml");
  assert_int_equal(topology.gpus.size(), 8);
  const char* first[8] = {"mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1",
                          "mlx5_4:1", "mlx5_5:1", "mlx5_6:1", "mlx5_7:1"};
  for (uint32_t gpu = 0; gpu < 8; ++gpu) {
    const std::string location = "gpu:" + std::to_string(gpu);
    const HcaChoice choice = ask(topology, {location, {}, gpu, ""});
    assert_string_equal(choice.ports[0].name().c_str(), first[gpu]);
    assert_int_equal(choice.equals, 2);
    assert_int_equal(choice.ports[0].nearness, mep::Nearness::kSwitch);
    assert_int_equal(choice.ports[0].distance, 2);
    // The partner of the same switch is equal; the second switch of the package comes next.
    assert_string_equal(choice.ports[1].name().c_str(), first[gpu ^ 1]);
    assert_int_equal(choice.ports[2].nearness, mep::Nearness::kNode);
    assert_int_equal(choice.ports[4].nearness, mep::Nearness::kFar);
    assert_int_equal(choice.ports[4].distance, 21);
  }
  expect_order(topology, {"gpu:5", {}, 0, ""},
               "mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1 mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1", 2);
  // Cores of package 0: four equal ones, dealt out; of both packages: all are equal.
  expect_order(topology, {"cpu", cores(2, 3), 6, ""},
               "mlx5_2:1 mlx5_3:1 mlx5_0:1 mlx5_1:1 mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1", 4);
  expect_order(topology, {"cpu", cores(0, 15), 5, ""},
               "mlx5_5:1 mlx5_6:1 mlx5_7:1 mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1 mlx5_4:1", 8);
  expect_order(topology, {"numa:1", {}, 1, ""},
               "mlx5_5:1 mlx5_6:1 mlx5_7:1 mlx5_4:1 mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1", 4);
  // By address, also one that hwloc has no device for: bus 14 is a port of switch 0.
  expect_order(topology, {"0000:54:00.0", {}, 0, "mlx5_[345]"}, "mlx5_4:1 mlx5_5:1 mlx5_3:1", 2);
  expect_order(topology, {"14:1f.7", {}, 0, "mlx5_0,mlx5_1"}, "mlx5_0:1 mlx5_1:1", 2);
  const HcaChoice choice = ask(topology, {"gpu:0", {}, 1, "^mlx5_7"});
  assert_string_equal(choice.ports[0].name().c_str(), "mlx5_1:1");
  assert_string_equal(port_of(choice, "mlx5_0:1").outcome.c_str(),
                      "equally good; for local rank 0");
  assert_string_equal(port_of(choice, "mlx5_2:1").outcome.c_str(), "farther");
  assert_string_equal(port_of(choice, "mlx5_7:1").outcome.c_str(), "excluded by MEP_HCA");
  expect_has(choice.summary,
             "behind the same PCIe switch, 2 bridges between; link active, 400 Gb/s "
             "InfiniBand; one of 2 that are equally good, dealt to local rank 1");
}

void two_sockets_one_hca(void**) {
  const HcaTopology topology = load("2sockets-1hca.xml");
  // Without CUDA's numbers the GPU is found by its PCI class.
  assert_int_equal(topology.gpus.size(), 1);
  for (const char* location : {"cpu", "gpu:0", "numa:0", "numa:1", "0000:11:00.0"}) {
    expect_order(topology, {location, cores(0, 3), 3, ""}, "mlx5_0:1", 1);
  }
  const HcaChoice far = ask(topology, {"gpu:0", {}, 0, ""});
  assert_int_equal(far.ports[0].nearness, mep::Nearness::kFar);
  expect_has(far.summary, "at another package (NUMA distance 20)");
  assert_int_equal(ask(topology, {"cpu", cores(4, 7), 0, ""}).ports[0].nearness,
                   mep::Nearness::kNode);
}

void no_hca(void**) {
  const HcaTopology topology = load("no-hca.xml");
  for (const char* location : {"cpu", "gpu:0", "numa:0"}) {
    const HcaChoice choice = ask(topology, {location, {}, 0, ""});
    assert_int_equal(choice.usable, 0);
    assert_int_equal(choice.ports.size(), 0);
    assert_string_equal(choice.summary.c_str(), "this machine has no HCA");
  }
}

// mlx5_0 shares a switch with the GPU, port 1 is down; mlx5_1 has 100 and 200 Gb/s; mlx5_2 is not up
// on any port; mlx5_10 has two ports of 200 Gb/s.
void links_differ(void**) {
  const HcaTopology topology = load("multi-port-link-down.xml");
  // Near the GPU the slower one wins, by its second port; then speed decides.
  expect_order(topology, {"gpu:0", {}, 0, ""}, "mlx5_0:2 mlx5_1:2 mlx5_10:1 mlx5_10:2 mlx5_1:1", 1);
  // From the cores all are equally near: speed decides; one port of each HCA before second ports.
  expect_order(topology, {"cpu", {}, 0, ""}, "mlx5_1:2 mlx5_10:1 mlx5_10:2 mlx5_0:2 mlx5_1:1", 3);
  expect_order(topology, {"cpu", {}, 1, ""}, "mlx5_10:1 mlx5_10:2 mlx5_1:2 mlx5_0:2 mlx5_1:1", 3);
  expect_order(topology, {"cpu", {}, 2, ""}, "mlx5_10:2 mlx5_1:2 mlx5_10:1 mlx5_0:2 mlx5_1:1", 3);
  const HcaChoice choice = ask(topology, {"cpu", {}, 0, ""});
  assert_string_equal(port_of(choice, "mlx5_0:1").outcome.c_str(), "link down");
  assert_string_equal(port_of(choice, "mlx5_2:1").outcome.c_str(), "link initializing");
  assert_string_equal(port_of(choice, "mlx5_2:2").outcome.c_str(), "link armed, not active");
  assert_string_equal(port_of(choice, "mlx5_1:1").outcome.c_str(),
                      "slower: 100 Gb/s, not 200 Gb/s");
  assert_string_equal(port_of(choice, "mlx5_10:2").outcome.c_str(),
                      "equally good; for local rank 2");
  // Nothing is left: the text says why of each.
  const HcaChoice none = ask(topology, {"cpu", {}, 0, "mlx5_0:1,mlx5_2"});
  assert_int_equal(none.usable, 0);
  expect_has(none.summary, "no HCA can be used:");
  expect_has(none.summary, "mlx5_0:1: link down");
  expect_has(none.summary, "mlx5_1:2: excluded by MEP_HCA");
}

// Package 0 has the nodes 0 (with mlx5_0) and 1; mlx5_1 is at package 1 (node 2), mlx5_2 at package 2
// (node 3), mlx5_3 at the machine. From node 2 node 3 is farther than the nodes of package 0.
void numa_distances(void**) {
  const HcaTopology topology = load("numa-nodes.xml");
  expect_order(topology, {"numa:0", {}, 0, ""}, "mlx5_0:1 mlx5_3:1 mlx5_2:1 mlx5_1:1", 1);
  expect_order(topology, {"numa:1", {}, 0, ""}, "mlx5_0:1 mlx5_3:1 mlx5_2:1 mlx5_1:1", 1);
  expect_order(topology, {"numa:2", {}, 0, ""}, "mlx5_1:1 mlx5_3:1 mlx5_0:1 mlx5_2:1", 1);
  expect_order(topology, {"cpu", cores(12, 15), 0, ""}, "mlx5_2:1 mlx5_3:1 mlx5_0:1 mlx5_1:1", 1);
  expect_order(topology, {"cpu", cores(0, 5), 0, ""}, "mlx5_0:1 mlx5_3:1 mlx5_2:1 mlx5_1:1", 1);
  const auto nearness = [&](const char* location, const char* name) {
    return port_of(ask(topology, {location, {}, 0, ""}), name).nearness;
  };
  assert_int_equal(nearness("numa:1", "mlx5_0:1"), mep::Nearness::kPackage);
  assert_int_equal(nearness("numa:1", "mlx5_3:1"), mep::Nearness::kMachine);
  // From the place of mlx5_0 itself, and from a device without a package.
  expect_order(topology, {"0000:11:00.0", {}, 0, ""}, "mlx5_0:1 mlx5_3:1 mlx5_2:1 mlx5_1:1", 1);
  expect_order(topology, {"0000:81:00.0", {}, 0, ""}, "mlx5_3:1 mlx5_0:1 mlx5_1:1 mlx5_2:1", 1);
}

// --- Locations, filters, link states ----------------------------------------------------------------

void wrong_locations(void**) {
  const HcaTopology topology = load("8gpu-8hca-switches.xml");
  mep::HcaLocation location;
  for (const char* text :
       {"", "gpu", "gpu:", "gpu:x", "gpu:1x", "gpu:-1", "numa:", "CPU", "cpu:0", "18:00",
        "0000:18:00.8", "0000:18:20.0", "0000:118:00.0", "18:00.0 ", "zz:00.0", "1:2:3:4.0"}) {
    if (mep::find_location(topology, text, {1}, &location) != MEP_ERR_INVALID_ARGUMENT) {
      fail_msg("'%s' was not refused", text);
    }
  }
  for (const char* text : {"gpu:8", "numa:2", "0000:ff:00.0", "0001:13:00.0"}) {
    if (mep::find_location(topology, text, {1}, &location) != MEP_ERR_NOT_FOUND) {
      fail_msg("'%s' was found", text);
    }
  }
  mep::PciAddress address;
  assert_true(mep::parse_pci_address("00000000:18:0A.1", &address));  // as CUDA writes it
  assert_string_equal(mep::pci_text(address).c_str(), "0000:18:0a.1");
}

bool allows(const char* list, const char* device, int port) {
  mep::DeviceFilter filter;
  assert_int_equal(mep::DeviceFilter::parse(list, "MEP_HCA", &filter), MEP_SUCCESS);
  return filter.allows(device, port);
}

void filters(void**) {
  assert_true(allows("", "mlx5_0", 1));
  assert_true(allows(" ", "mlx5_0", 1));
  assert_true(allows("mlx5_*:1", "mlx5_11", 1));
  assert_false(allows("mlx5_*:1", "mlx5_11", 2));
  assert_false(allows("mlx5_*", "irdma0", 1));
  assert_false(allows("mlx5_1", "mlx5_11", 1));
  // Only exclusions: all the rest is in. Their place in the list means nothing.
  assert_true(allows("^mlx5_2", "mlx5_1", 1));
  assert_false(allows("^mlx5_2", "mlx5_2", 2));
  assert_false(allows("^mlx5_2:2, mlx5_*", "mlx5_2", 2));
  assert_false(allows("mlx5_*,^mlx5_2:2", "mlx5_2", 2));
  assert_true(allows("mlx5_*,^mlx5_2:2", "mlx5_2", 1));
  assert_true(allows("mlx5_[0-3]:*,mlx5_?8", "mlx5_18", 7));
  mep::DeviceFilter filter;
  for (const char* list : {",", "mlx5_0,", "^", "^:1", ":1", "mlx5_0:", "mlx5_0:0", "mlx5_0:256",
                           "mlx5_0:1:1", "mlx5_0:x", "mlx5_0:1x", "mlx5 0", "mlx5/0", "^^mlx5_0"}) {
    if (mep::DeviceFilter::parse(list, "MEP_HCA", &filter) != MEP_ERR_INVALID_ARGUMENT) {
      fail_msg("'%s' was not refused", list);
    }
    expect_has(mep::last_error_text(), "MEP_HCA");
  }
  const std::string long_list(5000, 'm');
  assert_int_equal(mep::DeviceFilter::parse(long_list, "MEP_HCA", &filter),
                   MEP_ERR_INVALID_ARGUMENT);
}

// A folder like /sys/class/infiniband: known HCAs get its states, unknown ones come in without a place.
void kernel_link_states(void**) {
  const mep_test::TemporaryFolder folder;
  const auto write = [&](const std::string& file, const char* text) {
    const std::filesystem::path path = folder.path() + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  };
  write("mlx5_0/ports/1/state", "1: DOWN");
  write("mlx5_0/ports/1/rate", "2.5 Gb/sec (1X SDR)");
  write("mlx5_0/ports/2/state", "4: ACTIVE");
  write("mlx5_0/ports/2/rate", "100 Gb/sec (4X EDR)");
  write("mlx5_0/ports/2/link_layer", "Ethernet");
  write("mlx5_0/ports/x/state", "4: ACTIVE");
  write("rxe0/ports/1/state", "4: ACTIVE");
  write("rxe0/ports/1/rate", "400 Gb/sec");
  write("broken/ports/1/state", "nonsense");
  write("broken/ports/1/rate", "-3");
  write("empty/node_guid", "0");
  HcaTopology topology = load("2sockets-1hca.xml");
  mep::read_link_states(folder.path(), &topology);
  assert_int_equal(topology.hcas.size(), 3);
  assert_int_equal(topology.hcas[0].ports.size(), 2);
  assert_true(topology.hcas[0].ports[1].rate_gbit == 100);
  // An HCA whose place nobody knows comes last, however fast it is.
  expect_order(topology, {"cpu", {}, 0, ""}, "mlx5_0:2 rxe0:1 broken:1", 1);
  const HcaChoice choice = ask(topology, {"cpu", {}, 0, ""});
  expect_has(port_of(choice, "rxe0:1").properties,
             "where it is attached is unknown; link active, 400 Gb/s");
  expect_has(port_of(choice, "broken:1").properties, "link state unknown, rate unknown");
  mep::read_link_states("/nowhere", &topology);  // no such folder: nothing changes
  assert_int_equal(topology.hcas.size(), 3);
}

void from_the_environment(void**) {
  HcaChoice choice;
  mep::HcaQuestion question;
  question.xml_file = xml_path("8gpu-8hca-switches.xml");
  question.location = "gpu:2";
  question.fallback_rank = 1;
  for (const char* name : {"MEP_LOCAL_RANK", "MEP_HCA", "OMPI_COMM_WORLD_LOCAL_RANK"})
    unsetenv(name);
  assert_int_equal(mep::choose_preferred_hca(question, &choice), MEP_SUCCESS);
  assert_string_equal(choice.ports[0].name().c_str(), "mlx5_3:1");
  setenv("OMPI_COMM_WORLD_LOCAL_RANK", "2", 1);
  assert_int_equal(mep::choose_preferred_hca(question, &choice), MEP_SUCCESS);
  assert_string_equal(choice.ports[0].name().c_str(), "mlx5_2:1");
  setenv("MEP_LOCAL_RANK", "3", 1);
  setenv("MEP_HCA", "^mlx5_3", 1);
  assert_int_equal(mep::choose_preferred_hca(question, &choice), MEP_SUCCESS);
  assert_string_equal(choice.ports[0].name().c_str(), "mlx5_2:1");
  setenv("MEP_HCA", "mlx5_3:", 1);
  assert_int_equal(mep::choose_preferred_hca(question, &choice), MEP_ERR_INVALID_ARGUMENT);
  for (const char* name : {"MEP_LOCAL_RANK", "MEP_HCA", "OMPI_COMM_WORLD_LOCAL_RANK"})
    unsetenv(name);
  question.xml_file = xml_path("missing.xml");
  assert_int_equal(mep::choose_preferred_hca(question, &choice), MEP_ERR_INVALID_ARGUMENT);
  expect_has(mep::last_error_text(), "missing.xml");
  question.xml_file = xml_path("README.md");
  assert_int_equal(mep::choose_preferred_hca(question, &choice), MEP_ERR_INVALID_ARGUMENT);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(real_machine),        cmocka_unit_test(eight_gpus_eight_hcas),
      cmocka_unit_test(two_sockets_one_hca), cmocka_unit_test(no_hca),
      cmocka_unit_test(links_differ),        cmocka_unit_test(numa_distances),
      cmocka_unit_test(wrong_locations),     cmocka_unit_test(filters),
      cmocka_unit_test(kernel_link_states),  cmocka_unit_test(from_the_environment),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
