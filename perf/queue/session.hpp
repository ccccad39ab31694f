// mep_perf queue: its tables, rows and progress.
#pragma once

#include <cstdint>

#include "options.hpp"
#include "queue/ends.hpp"

namespace mep::perf {

// Limits of a run. An adapter tries for up to 18 s before it says that its peer does not answer.
constexpr uint64_t kQueueLimitNs = 20'000'000'000;
constexpr uint64_t kAdapterLimitNs = 60'000'000'000;

// Bytes of source and target that the ends need.
size_t queue_span(const Options& options);

// Throws PerfError; what was measured before is printed and in the file of --json.
void run_queue_session(const Options& options, Ends& ends, uint64_t limit_ns);

}  // namespace mep::perf
