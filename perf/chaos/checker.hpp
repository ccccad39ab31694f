// Compares what the ranks said about each operation, identified by (epoch, seq): two successes are the
// same bytes over the same contributors, and all that lived on got the same verdict.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "page.hpp"

namespace mep::chaos {

class Checker {
 public:
  // `process`: a number that no other process has.
  void take(uint32_t rank, uint32_t process, const Record& record);
  // Judges all that is left. Before, epochs long gone are judged and forgotten now and then.
  void finish();

  uint64_t operations() const { return operations_; }
  uint64_t compared() const { return compared_; }
  uint64_t wrong_results() const { return wrong_results_; }
  const std::vector<std::string>& findings() const { return findings_; }
  void report(std::string text);

 private:
  struct Entry {
    Kind kind = Kind::kSync;
    int32_t failure = 0;
    uint64_t succeeded = 0;  // ranks
    uint64_t failed = 0;
    uint64_t digest = 0;
    uint64_t contributors = 0;
  };
  struct Epoch {
    std::array<uint32_t, kMaxRanks> process{};  // of each rank, plus 1
    std::map<uint64_t, Entry> entries;          // by seq
  };
  void compare_kinds(uint32_t rank, const Record& record, const Entry& entry);
  void judge(uint64_t number, const Epoch& epoch);
  void judge_old();

  std::map<uint64_t, Epoch> epochs_;
  std::map<uint32_t, uint64_t> last_epoch_;  // by process
  uint64_t operations_ = 0;
  uint64_t compared_ = 0;
  uint64_t wrong_results_ = 0;
  std::vector<std::string> findings_;
};

}  // namespace mep::chaos
