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
  uint32_t batch = 0;  // programs of a process, one after the other; 0: batch_of()
  uint32_t hang_ms = 180000;
  Limits limits;
  std::string folder = "mep_chaos_findings";
  Sabotage sabotage;
  std::vector<std::string> ignored;  // a finding with one of these texts is none
  bool prints = false;               // the program, and nothing is run
  bool verbose = false;              // the story of each
  uint32_t max_findings = 20;        // programs with findings after which it ends; 0: no limit
};

// Opening GPUs takes some seconds, which ranks that are threads need once in a process only.
constexpr uint32_t kDeviceBatch = 25;
inline uint32_t batch_of(const Campaign& campaign) {
  if (campaign.batch != 0) return campaign.batch;
  return campaign.limits.device && campaign.limits.mode == Mode::kThreads ? kDeviceBatch : 1;
}

// The exit status: 0 when nothing was wrong.
int run_campaign(const Campaign& campaign);

}  // namespace mep::programs
