#include "table.hpp"

#include <cstdarg>
#include <cstdio>

#include "types.hpp"

namespace mep::perf {
namespace {

constexpr const char* kMissing = "-";

std::string text_of(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string text_of(const char* format, ...) {
  char text[64];
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

// Share of the copy rate of as many cores as there are ranks, for pieces of the size that one core
// copies.
std::string copy_share(const Machine& machine, const Row& row) {
  if (row.moved_bytes <= 0 || machine.cores == 0) return kMissing;
  const int cores = row.ranks < machine.cores ? row.ranks : machine.cores;
  const double limit = copy_gbps(machine, cores, row.moved_bytes / cores);
  if (limit <= 0) return kMissing;
  return text_of("%.0f", 100 * row.moved_bytes / row.main().p50_us / 1e3 / limit);
}

// One hop of a cache line as a share of the time: what no exchange between two cores can undercut.
std::string line_share(const Machine& machine, const Row& row) {
  if (machine.line_ns <= 0 || row.ranks < 2) return kMissing;
  const double share = 100 * machine.line_ns / 1e3 / row.main().p50_us;
  return share < 0.5 ? "<1" : text_of("%.0f", share);
}

// The part of the operation's time that nothing can undercut.
std::string floor_share(const Row& row) {
  if (row.floor_us <= 0) return kMissing;
  return text_of("%.0f", 100 * row.floor_us / row.main().p50_us);
}

// Voluntary and involuntary context switches of a rank in one operation.
std::string switches_text(const Statistics& statistics) {
  if (!statistics.switches) return kMissing;
  return figure_text(statistics.switches->voluntary) + "+" +
         figure_text(statistics.switches->involuntary);
}

void print_phases(const char* side, const Statistics& statistics) {
  if (statistics.phases.empty()) return;
  std::string line = std::string("#   ") + side + ", mean of the ranks:";
  for (const Phase& phase : statistics.phases) {
    line += "  " + phase.name + " " + figure_text(1e6 * phase.seconds) + " us";
  }
  (void)std::puts(line.c_str());
}

}  // namespace

std::string library_version() {
  return text_of("%u.%u.%u", mep_version() / 10000, mep_version() / 100 % 100, mep_version() % 100);
}

void print_heading(const Options& options, const Machine& machine, const std::string& subject) {
  (void)std::printf("# mep_perf %s: %s\n", library_version().c_str(), subject.c_str());
  (void)std::fputs(describe(machine).c_str(), stdout);
  (void)std::printf("%10s %10s %10s %10s %9s %9s", "bytes", "p50 us", "p99 us", "min us",
                    "alg GB/s", "bus GB/s");
  if (is_expert_operation(options.operation)) (void)std::printf(" %8s", "max/mean");
  if (options.measure_machine) {
    options.on_device ? (void)std::printf(" %9s %7s", "floor us", "floor %")
                      : (void)std::printf(" %6s %6s", "copy %", "line %");
  }
  if (options.run_mep && options.run_mpi) (void)std::printf(" %10s %6s", "MPI p50", "ratio");
  if (options.run_nccl) (void)std::printf(" %10s %6s", "NCCL p50", "ratio");
  if (options.show_switches) {
    (void)std::printf(" %15s", "switches");
    if (options.run_mep && (options.run_mpi || options.run_nccl)) {
      (void)std::printf(" %15s", options.run_mpi ? "MPI switches" : "NCCL switches");
    }
  }
  if (options.check) (void)std::printf(" %7s", "errors");
  (void)std::putchar('\n');
  (void)std::fflush(stdout);
}

void print_row(const Options& options, const Machine& machine, const Row& row) {
  const Statistics& main = row.main();
  (void)std::printf("%10llu %10s %10s %10s", static_cast<unsigned long long>(row.bytes),
                    figure_text(main.p50_us).c_str(), figure_text(main.p99_us).c_str(),
                    figure_text(main.min_us).c_str());
  const bool has_data = row.data_bytes > 0;
  (void)std::printf(" %9s %9s", has_data ? figure_text(row.algbw_gbps()).c_str() : kMissing,
                    has_data ? figure_text(row.busbw_gbps()).c_str() : kMissing);
  if (row.layer) {
    const auto& imbalance = row.layer->imbalance;
    (void)std::printf(" %8s", imbalance ? figure_text(*imbalance).c_str() : kMissing);
  }
  if (options.measure_machine && options.on_device) {
    (void)std::printf(" %9s %7s", figure_text(row.floor_us).c_str(), floor_share(row).c_str());
  } else if (options.measure_machine) {
    (void)std::printf(" %6s %6s", copy_share(machine, row).c_str(),
                      line_share(machine, row).c_str());
  }
  if (const auto ratio = row.ratio()) {
    (void)std::printf(" %10s %6.2f", figure_text(row.peer->p50_us).c_str(), *ratio);
  }
  if (options.show_switches) {
    (void)std::printf(" %15s", switches_text(main).c_str());
    if (row.mep && row.peer) (void)std::printf(" %15s", switches_text(*row.peer).c_str());
  }
  if (options.check) {
    const auto errors = row.mep ? row.errors : row.peer_errors;
    (void)std::printf(" %7llu", static_cast<unsigned long long>(errors.value_or(0)));
  }
  (void)std::putchar('\n');
  if (row.mep) print_phases("MEP", *row.mep);
  if (row.peer) print_phases(row.peer_name, *row.peer);
  if (row.mep && row.peer_errors.value_or(0) > 0) {
    (void)std::printf("#   the %s side had %llu wrong values\n", row.peer_name,
                      static_cast<unsigned long long>(*row.peer_errors));
  }
  (void)std::fflush(stdout);
}

}  // namespace mep::perf
