// mep_info: what this copy of the library is and what it finds on this machine. It starts no job
// and changes nothing.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "../standard_output.hpp"
#include "base/build_info.hpp"
#include "base/cpu_features.hpp"
#include "base/env.hpp"
#include "base/status.hpp"
#include "core/topo/host_topology.hpp"
#include "core/topo/usable.hpp"
#include "gpu_report.hpp"
#include "hca_report.hpp"
#include "queue_report.hpp"
#include "recorder_report.hpp"
#include "report.hpp"
#include "transport/transport.hpp"

namespace mep {
namespace {

std::string part_text(bool is_there, const char* note) {
  return std::string(is_there ? "yes, " : "no: ") + note;
}

void print_build() {
  const BuildInfo& build = build_info();
  print_version(build.version);
  print_title("build", "Build");
  print_line("compiler", build.compiler);
  print_line("build type", build.build_type);
  print_line("sanitizers", build.sanitizers[0] == '\0' ? "none" : build.sanitizers);
  print_line("hwloc", build.hwloc_version);
  print_line("libsodium", build.sodium_version);
  print_line("CUDA", part_text(build.have_cuda, build.cuda_note));
  print_line("RDMA verbs", part_text(build.have_verbs, build.verbs_note));
  print_line("OpenSSL", part_text(build.have_openssl, build.openssl_note));
  print_line("MPI", part_text(build.have_mpi, build.mpi_note));
}

void print_transports() {
  print_title("transports", "Transports, the preferred one first");
  for (const TransportEntry& entry : transport_table()) {
    const std::unique_ptr<Transport> transport = entry.make({});
    std::vector<std::byte> offer;
    if (transport == nullptr) {
      print_line(entry.name, "not usable: out of memory");
    } else if (is_error(transport->open(&offer))) {
      print_line(entry.name, std::string("not usable: ") + last_error_text());
    } else {
      print_line(entry.name, "usable");
    }
  }
  const BuildInfo& build = build_info();
  if (!build.have_verbs) print_line("verbs", std::string("not built: ") + build.verbs_note);
  if (!build.have_cuda) print_line("cuda", std::string("not built: ") + build.cuda_note);
}

void print_topology() {
  print_title("topology", "Topology");
  HostTopology host;
  if (is_error(read_host_topology(&host))) {
    print_line("unknown", last_error_text());
    return;
  }
  if (!host.cpu_model.empty()) print_line("CPU", host.cpu_model);
  print_line("packages", std::to_string(host.packages));
  print_line("cores", std::to_string(host.cores) + " with " +
                          std::to_string(host.hardware_threads) + " hardware threads");
  print_line("NUMA nodes", std::to_string(host.numa_nodes));
  print_line("memory", size_text(host.memory_bytes));
  for (const CacheKind& cache : host.caches) {
    print_line((cache.name + " cache").c_str(),
               std::to_string(cache.count) + " of " + size_text(cache.bytes));
  }
  for (const HostDevice& device : host.devices) {
    std::string text = device.name;
    if (!device.model.empty()) text += ", " + device.model;
    if (device.numa_node >= 0) text += ", at NUMA node " + std::to_string(device.numa_node);
    print_line(device.kind.c_str(), text);
  }
}

void print_cores() {
  print_title("cores", "Cores of this process");
  std::vector<uint64_t> words;
  const bool is_known = !is_error(affinity_mask(&words));
  print_line("affinity",
             is_known ? cpu_list_text(words) : std::string("unknown: ") + last_error_text());
  const int limit = cgroup_core_limit();
  print_line("cgroup quota", limit == 0 ? "none" : std::to_string(limit) + " whole cores");
  print_line("usable", std::to_string(usable_cores()));
  print_line("instruction set", simd_level_name(simd_level()));
}

std::string limit_text(rlim_t value, bool is_memory) {
  if (value == RLIM_INFINITY) return "unlimited";
  return is_memory ? size_text(value) : std::to_string(value);
}

void print_limit(const char* name, __rlimit_resource resource, bool is_memory) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0) {
    print_line(name, "unknown");
    return;
  }
  print_line(name, limit_text(limit.rlim_cur, is_memory) + ", at most " +
                       limit_text(limit.rlim_max, is_memory));
}

// Whether ranks of this user may read each other's memory, so that large messages are copied once.
std::string reading_text() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  int scope = 0;
  if (!(file >> scope) || scope == 0) return "allowed: large messages are copied once";
  return "forbidden (kernel.yama.ptrace_scope is " + std::to_string(scope) +
         "): large messages are copied twice";
}

void print_limits() {
  print_title("limits", "Limits");
  print_limit("locked memory", RLIMIT_MEMLOCK, true);
  print_limit("open files", RLIMIT_NOFILE, false);
  print_limit("processes, threads", RLIMIT_NPROC, false);
  print_limit("address space", RLIMIT_AS, true);
  print_line("reading of ranks", reading_text());
}

void print_environment() {
  print_title("environment", "Environment variables, * marks those that are set");
  for (const EnvVariable& variable : env_table()) {
    const char* value = secure_getenv(variable.name);
    const bool is_set = value != nullptr && *value != '\0';
    const std::string shown = is_set ? value : variable.default_text;
    print_variable(variable, is_set, shown);
  }
}

}  // namespace
}  // namespace mep

namespace {

// mep_info --topology [--xml FILE] [--location X]
int topology_report(int argc, char** argv) {
  std::string xml_file;
  std::string location;
  for (int i = 2; i < argc; i += 2) {
    const std::string option = argv[i];
    if ((option != "--xml" && option != "--location") || i + 1 == argc || argv[i + 1][0] == '\0') {
      (void)std::fprintf(stderr, "mep_info: '%s' is unknown here or lacks its value; try --help\n",
                         argv[i]);
      return 2;
    }
    (option == "--xml" ? xml_file : location) = argv[i + 1];
  }
  if (xml_file.empty()) mep::print_topology();
  return mep::print_hca_report(xml_file, location);
}

void print_help() {
  (void)std::puts(
      "Usage: mep_info [--version | --json | --queues]\n"
      "       mep_info --topology [--xml FILE] [--location X]\n"
      "       mep_info --recorder [--job NAME] [--all | --json] [FILE...]\n\n"
      "Prints the library's version and build options, the transports that work here\n"
      "and why others do not, the machine, the process's limits, and the environment\n"
      "variables.\n\n"
      "  --json        the same as one JSON object\n"
      "  --topology    the machine alone, and which HCA is chosen and why: for the\n"
      "                cores of this process and for every GPU\n"
      "  --xml FILE    another machine: a file that lstopo or hwloc wrote\n"
      "  --location X  for this one alone: cpu, gpu:0, numa:0 or a PCI address\n"
      "  --queues      which adapters can execute queues that a GPU posts to, or what\n"
      "                they lack\n"
      "  --recorder    which operations of this user's jobs on this host have not\n"
      "                ended, which ranks have not begun them, and what to type to\n"
      "                look at those\n"
      "  --job NAME    of that job alone\n"
      "  --all         the files and the last records too; --json has all of them\n"
      "  FILE...       what files of MEP_FLIGHT_RECORDER say, not the running processes");
}

int run(int argc, char** argv) {
  const std::string argument = argc > 1 ? argv[1] : "";
  if (argument == "--version") {
    (void)std::printf("mep_info %s\n", mep::build_info().version);
    return 0;
  }
  if (argument == "--help" || argument == "-h") {
    print_help();
    return 0;
  }
  const bool asks_queues = argument == "--queues" && argc == 2;
  const bool asks_json = argument == "--json" && argc == 2;
  if (argc > 1 && argument != "--topology" && argument != "--recorder" && !asks_queues &&
      !asks_json) {
    (void)std::fprintf(stderr, "mep_info: unknown argument '%s'; try mep_info --help\n", argv[1]);
    return 2;
  }
  try {
    if (argument == "--topology") return topology_report(argc, argv);
    if (argument == "--recorder") {
      return mep::recorder_report({argv + 2, static_cast<size_t>(argc - 2)});
    }
    if (asks_queues) {
      mep::print_queues();
      return 0;
    }
    if (asks_json) mep::print_as_json();
    mep::print_build();
    mep::print_transports();
    mep::print_topology();
    mep::print_gpus();
    mep::print_cores();
    mep::print_limits();
    mep::print_environment();
    mep::print_unknown_variables(mep::unknown_variables());
    mep::end_report();
    if (mep::is_error(mep::check_environment())) {
      (void)std::fprintf(stderr, "mep_info: %s\n", mep::last_error_text());
      return 1;
    }
  } catch (const std::exception& error) {
    (void)std::fprintf(stderr, "mep_info: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return mep::perf::status_of_output("mep_info", run(argc, argv));
}
