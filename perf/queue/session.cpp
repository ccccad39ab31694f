#include "queue/session.hpp"

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/build_info.hpp"
#include "mep.h"
#include "progress.hpp"
#include "queue/bench.hpp"
#include "records.hpp"
#include "types.hpp"

namespace mep::perf {
namespace {

constexpr uint64_t kRequests = 200'000;
constexpr uint64_t kRounds = 5'000;
constexpr uint64_t kPutBytes = uint64_t{64} << 20;
constexpr uint64_t kLeastPuts = 16;

class QueueSession {
 public:
  QueueSession(const Options& options, Ends& ends, uint64_t limit_ns)
      : options_(options),
        ends_(ends),
        progress_(true),
        bench_(ends, limit_ns, [this](uint32_t run) { progress_.show_step(run, kQueueRuns + 1); }) {
  }

  void run() {
    write_records(options_, {});
    heading();
    for (const uint32_t warps : options_.warps) requests(warps);
    latency();
    (void)std::printf("%10s %10s %10s\n", "bytes", "GB/s", "worst");
    for (const uint64_t bytes : options_.put_sizes) bandwidth(bytes);
  }

 private:
  void heading() const {
    const unsigned cores = std::thread::hardware_concurrency();
    (void)std::printf("# mep_perf %d.%d.%d: queue of %u entries over the %s, %u %s, %s\n",
                      MEP_VERSION_MAJOR, MEP_VERSION_MINOR, MEP_VERSION_PATCH, kQueueEntries,
                      ends_.description().c_str(), cores, cores == 1 ? "core" : "cores",
                      "threads as warps, median and worst of 5");
    (void)std::printf("%10s %10s %10s %10s %10s %6s\n", "warps", "Mreq/s", "worst", "mutex",
                      "worst", "ratio");
    (void)std::fflush(stdout);
  }

  void requests(uint32_t warps) {
    const uint64_t all = options_.iterations > 0 ? options_.iterations : kRequests;
    const uint64_t each = (all + warps - 1) / warps;
    const auto count = static_cast<double>(each * warps);
    progress_.set_subject("queue, warps " + std::to_string(warps));
    const auto [free, locked] = bench_.requests(warps, each);
    progress_.clear();
    const double ratio = locked.median_s / free.median_s;
    (void)std::printf("%10u %10s %10s %10s %10s %6.2f\n", warps,
                      figure_text(count / free.median_s / 1e6).c_str(),
                      figure_text(count / free.worst_s / 1e6).c_str(),
                      figure_text(count / locked.median_s / 1e6).c_str(),
                      figure_text(count / locked.worst_s / 1e6).c_str(), ratio);
    Record row = begin_row("requests", warps, sizeof(uint64_t));
    row.number("per_second", count / free.median_s);
    row.number("per_second_worst", count / free.worst_s);
    row.number("mutex_per_second", count / locked.median_s);
    row.number("mutex_per_second_worst", count / locked.worst_s);
    row.number("ratio", ratio);
    end_row(std::move(row));
  }

  void latency() {
    const uint64_t rounds = options_.iterations > 0 ? options_.iterations : kRounds;
    progress_.set_subject("queue, latency");
    const RunTimes times = bench_.round_trips(rounds);
    progress_.clear();
    const double us = 1e6 / static_cast<double>(2 * rounds);
    (void)std::printf("%10s %10s %10s\n%10s %10s %10s\n", "bytes", "us", "worst", "8+signal",
                      figure_text(times.median_s * us).c_str(),
                      figure_text(times.worst_s * us).c_str());
    Record row = begin_row("latency", 1, sizeof(uint64_t));
    row.number("us", times.median_s * us);
    row.number("us_worst", times.worst_s * us);
    end_row(std::move(row));
  }

  void bandwidth(uint64_t bytes) {
    const uint64_t count = options_.iterations > 0
                               ? options_.iterations
                               : std::clamp(kPutBytes / bytes, kLeastPuts, kRequests);
    progress_.set_subject("queue, " + bytes_text(static_cast<double>(bytes)));
    const RunTimes times = bench_.puts(bytes, count);
    progress_.clear();
    const double gigabytes = static_cast<double>(bytes) * static_cast<double>(count) / 1e9;
    (void)std::printf("%10llu %10s %10s\n", static_cast<unsigned long long>(bytes),
                      figure_text(gigabytes / times.median_s).c_str(),
                      figure_text(gigabytes / times.worst_s).c_str());
    Record row = begin_row("bandwidth", 1, bytes);
    row.number("gbps", gigabytes / times.median_s);
    row.number("gbps_worst", gigabytes / times.worst_s);
    end_row(std::move(row));
  }

  Record begin_row(const char* kind, uint32_t warps, uint64_t bytes) const {
    Record row;
    row.text("op", "queue");
    add_origin(&row, {build_info().version, {host_name()}});
    row.text("nic", ends_.name());
    row.text("kind", kind);
    row.whole("warps", warps);
    row.whole("bytes", bytes);
    return row;
  }
  void end_row(Record row) {
    (void)std::fflush(stdout);
    rows_.push_back(std::move(row));
    write_records(options_, rows_);
  }

  const Options& options_;
  Ends& ends_;
  Progress progress_;
  QueueBench bench_;
  std::vector<Record> rows_;
};

}  // namespace

size_t queue_span(const Options& options) {
  return QueueBench::span_for(
      *std::max_element(options.put_sizes.begin(), options.put_sizes.end()));
}

void run_queue_session(const Options& options, Ends& ends, uint64_t limit_ns) {
  QueueSession(options, ends, limit_ns).run();
}

}  // namespace mep::perf
