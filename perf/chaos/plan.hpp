// The faults of a job, one step after the other. A step begins when the one before has settled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options.hpp"

namespace mep::chaos {

struct Step {
  enum class Kind { kKill, kStop, kSlow, kRejoin, kGrow, kWait, kArm };
  Kind kind = Kind::kKill;
  std::vector<uint32_t> ranks;  // of rejoin: none
  double seconds = 0;           // stop, slow
  uint32_t factor = 0;          // slow
  uint64_t count = 0;  // grow: ranks; wait: iterations; kill: iterations from now, 0: by time
  std::string point;   // kill, stop: the failpoint; rejoin: where the joiner dies;
                       // arm: the whole text of MEP_FAILPOINT
  uint64_t nth = 1;

  std::string text() const;
};

// Points that are passed only while the view changes: another rank has to die for them.
bool is_view_point(const std::string& point);
// All that a generated plan draws from.
const std::vector<std::string>& member_points();

// Throws std::runtime_error with the step that was not understood.
std::vector<Step> parse_plan(const std::string& text, uint32_t ranks);
std::vector<Step> generate_plan(const Options& options);

}  // namespace mep::chaos
