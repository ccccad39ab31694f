#include "core/operation/flight_log.hpp"

namespace mep {

FlightLog::FlightLog(FlightRecorder* recorder, uint64_t comm, const std::string& name,
                     const std::vector<uint32_t>& slots)
    : recorder_(recorder), slots_(slots) {
  label_.comm = comm;
  name.copy(label_.name, sizeof label_.name - 1);
  for (const uint32_t slot : slots) {
    if (slot < 64) label_.members |= uint64_t{1} << slot;
  }
}

uint64_t FlightLog::record(const FlightCall& call) const {
  flight::Record record{};
  record.label = label_;
  record.channel = call.channel;
  record.epoch = call.epoch;
  record.number = call.number;
  record.bytes = call.bytes;
  record.kind = call.kind;
  record.dtype = static_cast<uint8_t>(call.dtype);
  record.flags = call.flags;
  const bool has_peer = call.peer >= 0 && static_cast<size_t>(call.peer) < slots_.size();
  record.peer = has_peer ? static_cast<int32_t>(slots_[static_cast<size_t>(call.peer)]) : -1;
  return recorder_->begin(record);
}

uint64_t FlightLog::slots_of(const RankBits& ranks) const {
  uint64_t mask = 0;
  for (uint32_t rank = 0; rank < slots_.size(); ++rank) {
    if (has_rank(ranks, rank) && slots_[rank] < 64) mask |= uint64_t{1} << slots_[rank];
  }
  return mask;
}

}  // namespace mep
