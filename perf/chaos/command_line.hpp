// The command line of mep_chaos as a runner of programs.
#pragma once

#include <string>

#include "campaign.hpp"

namespace mep::programs {

enum class Parsed { kRun, kLeave, kBad };
Parsed parse_command_line(int argc, char** argv, Campaign* campaign, std::string* message);

}  // namespace mep::programs
