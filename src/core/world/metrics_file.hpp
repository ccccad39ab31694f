// MEP_METRICS_FILE: a rank's counters in Prometheus' text format, for node_exporter's textfile collector.
#pragma once

#include <cstdint>
#include <string>

#include "core/bootstrap/bootstrap.hpp"
#include "core/world/world_participants.hpp"

namespace mep {

// The control thread's alone.
class MetricsFile {
 public:
  explicit MetricsFile(const ResolvedConfig& config) : config_(config) {}
  // Nothing is written before, or without MEP_METRICS_FILE.
  void open(uint32_t rank);
  bool is_wanted() const { return !path_.empty(); }
  bool is_due(uint64_t now_ns) const { return now_ns >= next_ns_; }
  // Replaces the file as a whole. Never throws: what cannot be written is warned of once, and tried again when it is due.
  void write(const WorldParticipants& comms, uint64_t now_ns) noexcept;

 private:
  std::string text_of(const WorldParticipants& comms) const;
  bool replace(const std::string& text) const;

  const ResolvedConfig& config_;
  uint32_t rank_ = 0;  // in the world
  std::string path_;   // empty: none is wanted
  uint64_t next_ns_ = 0;
  bool has_warned_ = false;
};

}  // namespace mep
