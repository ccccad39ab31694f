// The operations that the ranks of one job wait in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "recorder_file.hpp"

namespace mep {

// An operation that has not ended. Ranks are masks.
struct Wait {
  const flight::Record* record = nullptr;  // of the first rank that has begun it
  const RecorderFile* file = nullptr;
  uint64_t ranks = 0;    // have begun it, and not ended
  uint64_t late = 0;     // have not begun it
  uint64_t unknown = 0;  // have no records here
  size_t place = 0;  // among those of its communicator's channel, or messages, that have not ended
};

class JobWaits {
 public:
  // All of one job, and outlive this object.
  explicit JobWaits(std::span<const RecorderFile> files);

  std::span<const RecorderFile> files() const { return files_; }
  const std::vector<Wait>& waits() const { return waits_; }
  // The ranks to look at: those that are late; if none is, those that wait.
  uint64_t suspects() const;
  uint64_t unknown() const;
  // The records of that rank, of its living process if there is one. Null: there are none.
  const RecorderFile* file_of(uint32_t rank) const;

 private:
  // Ranks make the operations of one channel in one order.
  using Channel = std::pair<uint64_t, uint64_t>;
  using Place = std::pair<uint64_t, uint64_t>;  // epoch, number
  using Key = std::pair<Channel, Place>;

  static Key key_of(const flight::Record& record);
  void find_waits();
  void find_late(Wait* wait) const;

  std::span<const RecorderFile> files_;
  std::vector<Wait> waits_;
  // By rank: the furthest record of each channel.
  std::map<uint32_t, std::map<Channel, const flight::Record*>> latest_;
};

// In order of jobs and ranks, as JobWaits wants them.
std::vector<std::span<const RecorderFile>> by_job(std::vector<RecorderFile>* files);

}  // namespace mep
