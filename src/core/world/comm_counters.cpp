#include "core/world/comm_counters.hpp"

#include <cstring>

namespace mep {

namespace {

constexpr const char* kCallsHelp = "Calls on the communicator.";
constexpr const char* kBytesHelp = "Payload bytes of calls that ended without an error.";
constexpr const char* kErrorsHelp = "Calls that ended with an error.";

}  // namespace

constexpr std::array<CounterText, kCounters> kCounterTexts = {{
    {"mep_calls_total", kCallsHelp, "kind=\"collective\""},
    {"mep_calls_total", kCallsHelp, "kind=\"send\""},
    {"mep_calls_total", kCallsHelp, "kind=\"receive\""},
    {"mep_calls_total", kCallsHelp, "kind=\"dispatch\""},
    {"mep_calls_total", kCallsHelp, "kind=\"combine\""},
    {"mep_bytes_total", kBytesHelp, "kind=\"collective\""},
    {"mep_bytes_total", kBytesHelp, "kind=\"send\""},
    {"mep_bytes_total", kBytesHelp, "kind=\"receive\""},
    {"mep_bytes_total", kBytesHelp, "kind=\"dispatch\""},
    {"mep_bytes_total", kBytesHelp, "kind=\"combine\""},
    {"mep_partial_results_total", "Calls that ended without the contribution of a rank.", ""},
    {"mep_errors_total", kErrorsHelp, "error=\"peer_failed\""},
    {"mep_errors_total", kErrorsHelp, "error=\"peer_left\""},
    {"mep_errors_total", kErrorsHelp, "error=\"timeout\""},
    {"mep_errors_total", kErrorsHelp, "error=\"mismatch\""},
    {"mep_errors_total", kErrorsHelp, "error=\"other\""},
    {"mep_view_changes_total", "Changes of the communicator's members.", ""},
    {"mep_ranks_lost_total", "Members that went.", ""},
    {"mep_ranks_admitted_total", "Members that came.", ""},
}};

void CommCounters::note_result(mep_result_t result) {
  const Counter counter = result == MEP_PARTIAL           ? Counter::kPartial
                          : result == MEP_ERR_PEER_FAILED ? Counter::kPeerFailed
                          : result == MEP_ERR_PEER_LEFT   ? Counter::kPeerLeft
                          : result == MEP_ERR_TIMEOUT     ? Counter::kTimeout
                          : result == MEP_ERR_MISMATCH    ? Counter::kMismatch
                                                          : Counter::kOtherError;
  add(static_cast<size_t>(counter), 1);
}

void CommCounters::fill(mep_comm_stats_t* stats) const {
  static_assert(sizeof *stats == offsetof(mep_comm_stats_t, collectives) + kCounters * 8);
  static_assert(offsetof(mep_comm_stats_t, ranks_admitted) == sizeof *stats - 8);
  stats->flags = 0;
  std::array<uint64_t, kCounters> values;
  for (size_t i = 0; i < kCounters; ++i) values[i] = value(i);
  std::memcpy(reinterpret_cast<std::byte*>(stats) + offsetof(mep_comm_stats_t, collectives),
              values.data(), sizeof values);
}

}  // namespace mep
