// Many programs, some at a time, each batch in a process of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "player.hpp"
#include "program.hpp"

namespace mep::programs {

struct Campaign {
  uint64_t programs = 100;
  uint64_t seconds = 0;  // no new program after so many; 0: no limit
  uint64_t seed = 1;
  uint32_t jobs = 2;
  uint32_t batch = 1;  // programs of a process, one after the other
  uint32_t hang_ms = 180000;
  Limits limits;
  std::string folder = "mep_chaos_findings";
  Sabotage sabotage;
  std::vector<std::string> ignored;  // a finding with one of these texts is none
  bool prints = false;               // the program, and nothing is run
  bool verbose = false;              // the story of each
  uint32_t max_findings = 20;        // programs with findings after which it ends; 0: no limit
};

// The exit status: 0 when nothing was wrong.
int run_campaign(const Campaign& campaign);

}  // namespace mep::programs
