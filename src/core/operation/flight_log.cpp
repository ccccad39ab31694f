#include "core/operation/flight_log.hpp"

namespace mep {

namespace {

flight::Label label_of(uint64_t comm, const std::string& name, const std::vector<uint32_t>& slots) {
  flight::Label label{};
  label.comm = comm;
  name.copy(label.name, sizeof label.name - 1);
  for (const uint32_t slot : slots) {
    if (slot < 64) label.members |= uint64_t{1} << slot;
  }
  return label;
}

}  // namespace

FlightLog::FlightLog(FlightRecorder* recorder, uint64_t comm, const std::string& name,
                     const std::vector<uint32_t>& slots)
    : recorder_(recorder), slots_(slots), label_(label_of(comm, name, slots)) {}

uint64_t FlightLog::record(const FlightCall& call) const {
  const bool has_peer = call.peer >= 0 && static_cast<size_t>(call.peer) < slots_.size();
  const uint32_t slot = has_peer ? slots_[static_cast<size_t>(call.peer)] : flight::kNoPeer;
  return recorder_->begin(label_, call, slot);
}

uint64_t FlightLog::slots_of(const RankBits& ranks) const {
  uint64_t mask = 0;
  for (uint32_t rank = 0; rank < slots_.size(); ++rank) {
    if (has_rank(ranks, rank) && slots_[rank] < 64) mask |= uint64_t{1} << slots_[rank];
  }
  return mask;
}

}  // namespace mep
