// MEP_FLIGHT_RECORDER: the last operations of this rank in a mapped file, which outlives the process. Written by the
// threads that carry them out, without a system call or a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/unique_fd.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "core/world/flight_record.hpp"

namespace mep {

class FlightRecorder {
 public:
  // Null: none is wanted, or it cannot be made, which is warned of.
  static std::unique_ptr<FlightRecorder> open(const ResolvedConfig& config, uint32_t rank);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // --- Any thread, also for one record ---
  // Adds it with its ticket, which is returned, and the time.
  uint64_t begin(const flight::Record& record);
  // Begins it anew with another number. False: it is not in the ring any more.
  bool again(uint64_t ticket, uint64_t epoch, uint64_t number);
  // `missing`: a mask of world ranks.
  void end(uint64_t ticket, mep_result_t result, uint64_t missing);
  // Still waits, over its time.
  void note_late(uint64_t ticket, uint64_t missing);

 private:
  // Relaxed words: a reader trusts a record's check alone.
  using Place = std::array<std::atomic<uint64_t>, flight::kWords>;

  FlightRecorder() = default;
  // 0, or errno.
  int make(const std::string& path, const std::string& job, uint32_t rank);
  Place& place_of(uint64_t ticket) { return places_[(ticket - 1) % flight::kRecords]; }
  // Null: the ring has it no more.
  Place* find(uint64_t ticket);
  static void put(Place* place, size_t at, uint64_t word);
  static void put_state(Place* place, uint8_t flags, uint8_t without, mep_result_t result);

  UniqueFd file_;  // its lock says that the process lives
  flight::Header* header_ = nullptr;
  Place* places_ = nullptr;
  // Relaxed: it publishes nothing. On a line of its own, for all threads write it.
  alignas(64) std::atomic<uint64_t> last_ticket_{0};
};

}  // namespace mep
