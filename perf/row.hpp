// One line of the result: one operation of one size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "timing.hpp"

namespace mep::perf {

// A row of dispatch, combine or moe has this too.
struct Layer {
  const char* mode = "ll";
  std::string routing;
  std::string preset;  // empty: none
  uint32_t tokens = 0;
  uint32_t hidden = 0;
  uint32_t experts = 0;
  uint32_t top_k = 0;
  // Rows that the busiest rank received / the mean of all; none: there were no rows.
  std::optional<double> imbalance;
};

struct Row {
  std::string operation;
  int ranks = 0;
  uint64_t bytes = 0;  // of one rank: its block, or the rows that it sends
  std::string dtype;
  std::optional<Layer> layer;
  std::optional<Statistics> mep;
  std::optional<Statistics> peer;  // the same by MPI or NCCL
  const char* peer_name = "MPI";
  double data_bytes = 0;                // algorithm bandwidth is this / time
  double bus_factor = 1;                // bus bandwidth / algorithm bandwidth
  double moved_bytes = 0;               // that all ranks together must copy at least once
  double floor_us = 0;                  // on a GPU, where it was measured; else 0
  std::optional<uint64_t> errors;       // of MEP, with --check
  std::optional<uint64_t> peer_errors;  // of the other library, with --check

  // MEP's, or the other library's when it runs alone.
  const Statistics& main() const { return mep ? *mep : *peer; }
  std::optional<double> ratio() const {
    if (!mep || !peer) return std::nullopt;
    return mep->p50_us / peer->p50_us;
  }
  double algbw_gbps() const { return data_bytes / main().p50_us / 1e3; }
  double busbw_gbps() const { return algbw_gbps() * bus_factor; }
};

}  // namespace mep::perf
