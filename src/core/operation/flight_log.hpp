// The operations of one communicator, as they go to the flight recorder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/operation/rank_bits.hpp"
#include "core/world/flight_recorder.hpp"
#include "protocol/operations.hpp"

namespace mep {

namespace flight {
constexpr Kind kind_of(Collective kind) {
  return static_cast<Kind>(static_cast<uint32_t>(Kind::kCollectives) + static_cast<uint32_t>(kind));
}
}  // namespace flight

// Any thread.
class FlightLog {
 public:
  // `recorder` null: nothing is recorded. It and `slots`, by rank, outlive this object.
  FlightLog(FlightRecorder* recorder, uint64_t comm, const std::string& name,
            const std::vector<uint32_t>& slots);

  bool is_on() const { return recorder_ != nullptr; }
  // Returns the ticket for the following calls; 0 if nothing is recorded.
  uint64_t begin(const FlightCall& call) const { return is_on() ? record(call) : 0; }
  // See FlightRecorder.
  bool again(uint64_t ticket, uint64_t epoch, uint64_t number) const {
    return ticket != 0 && recorder_->again(ticket, epoch, number);
  }
  void end(uint64_t ticket, mep_result_t result, const RankBits* missing = nullptr) const {
    if (ticket != 0) recorder_->end(ticket, result, missing == nullptr ? 0 : slots_of(*missing));
  }
  void note_late(uint64_t ticket, const RankBits& missing) const {
    if (ticket != 0) recorder_->note_late(ticket, slots_of(missing));
  }

 private:
  uint64_t record(const FlightCall& call) const;
  uint64_t slots_of(const RankBits& ranks) const;

  FlightRecorder* const recorder_;
  const std::vector<uint32_t>& slots_;
  const FlightLabel label_;  // the name is the one that the comm was made with
};

}  // namespace mep
