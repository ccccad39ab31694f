// MEP_FLIGHT_RECORDER: the last operations of this rank in a mapped file, which outlives the process, or in a memfd, which
// others find in /proc. Written by the threads that carry them out, without a system call or a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "core/world/flight_record.hpp"

namespace mep {

// The part of a record that says what was called; see flight::Record.
struct FlightCall {
  uint64_t channel = 0;
  uint64_t epoch = 0;
  uint64_t number = 0;
  uint64_t bytes = 0;
  flight::Kind kind{};
  mep_dtype_t dtype = MEP_UINT8;
  uint8_t flags = 0;
  int32_t peer = -1;  // of the communicator
};

// A label, ready to be stored.
struct FlightLabel {
  explicit FlightLabel(const flight::Label& label);
  static constexpr size_t kAt = offsetof(flight::Record, label) / 8;
  std::array<uint64_t, sizeof(flight::Label) / 8> words;
  uint64_t check = flight::kMagic;  // of a record, its part
};

class FlightRecorder {
 public:
  // Null: none is wanted, or it cannot be made; of a file that is warned of.
  static std::unique_ptr<FlightRecorder> open(const ResolvedConfig& config, uint32_t rank);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // --- Any thread, also for one record ---
  // Adds a record with its ticket, which is returned, and the time. `peer`: that of `call` in the world, or flight::kNoPeer.
  uint64_t begin(const FlightLabel& label, const FlightCall& call, uint32_t peer);
  // Begins it again with another number. False: it is not in the ring any more.
  bool again(uint64_t ticket, uint64_t epoch, uint64_t number);
  // `missing`: a mask of world ranks.
  void end(uint64_t ticket, mep_result_t result, uint64_t missing);
  // Still waits, over its time.
  void note_late(uint64_t ticket, uint64_t missing);

 private:
  // Relaxed words: a reader trusts a record's check, and the words that it does not cover one by one.
  using Place = std::array<std::atomic<uint64_t>, flight::kWords>;

  explicit FlightRecorder(bool is_file)
      : is_exact_(is_file), records_(is_file ? flight::kFileRecords : flight::kMemoryRecords) {}
  size_t bytes() const { return flight::bytes_of(records_); }
  // 0, or errno.
  int make_file(const std::string& path);
  mep_result_t make_memory(const std::string& job, uint32_t rank);
  void fill_header(const std::string& job, uint32_t rank);
  Place& place_of(uint64_t ticket) { return places_[(ticket - 1) & (records_ - 1)]; }
  // Null: the ring has it no more.
  Place* find(uint64_t ticket);
  static void put(Place* place, size_t offset, uint64_t word);
  static void put_flags(Place* place, uint8_t flags, mep_result_t result);
  uint64_t time() const { return is_exact_ ? now_ns() : tick_ns(); }

  // A file has the times to the nanosecond; a memfd, which is there by default, those that cost little.
  const bool is_exact_;
  const uint32_t records_;  // of the ring; a power of two
  UniqueFd file_;           // its lock says that the process lives
  flight::Header* header_ = nullptr;
  Place* places_ = nullptr;
  // Relaxed: it publishes nothing. On a line of its own, for all threads write it.
  alignas(64) std::atomic<uint64_t> last_ticket_{0};
};

}  // namespace mep
