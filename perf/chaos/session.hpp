// Runs one program: starts its ranks, as processes or threads, wakes up those that stopped themselves,
// starts replacements, and ends what does not end.
#pragma once

#include <string>
#include <vector>

#include "oracle.hpp"
#include "player.hpp"
#include "program.hpp"

namespace mep::programs {

struct Outcome {
  std::vector<Finding> findings;
  std::string story;     // if there are findings, or it was asked for
  bool refused = false;  // the kernels of its ranks do not fit on a GPU together: nothing was run
};

Outcome run_program(const Program& program, const Sabotage& sabotage, uint32_t hang_ms,
                    bool wants_story);

}  // namespace mep::programs
