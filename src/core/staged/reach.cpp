#include "core/staged/reach.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/env.hpp"
#include "base/status.hpp"

namespace mep {

ReachChoice choose_reach(std::span<const ReachFacts> facts, std::span<const uint32_t> ranks) {
  ReachChoice choice;
  std::set<uint64_t> processes;
  for (const ReachFacts& each : facts) processes.insert(each.process);
  choice.one_process = processes.size() <= 1;
  const auto stage = [&](const ReachFacts& culprit, const std::string& why) {
    choice.staged = true;
    choice.why =
        "rank " + std::to_string(ranks[static_cast<size_t>(&culprit - facts.data())]) + why;
  };
  for (const ReachFacts& each : facts) {
    if (each.forced == 0) continue;
    stage(each, " has MEP_CUDA_REACH=host");
    return choice;
  }
  for (const ReachFacts& each : facts) {
    if (each.host == facts[0].host) continue;
    stage(each, " is on another host than rank " + std::to_string(ranks[0]));
    return choice;
  }
  if (!choice.one_process && processes.size() < facts.size()) {
    choice.staged = true;
    choice.why = "some ranks are threads of one process and others are not";
  }
  return choice;
}

uint32_t most_on_one_gpu(std::span<const ReachFacts> facts) {
  std::map<std::array<uint64_t, 3>, uint32_t> ranks_of;
  uint32_t most = 0;
  for (const ReachFacts& each : facts) {
    most = std::max(most, ++ranks_of[{each.host, each.device[0], each.device[1]}]);
  }
  return most;
}

mep_result_t read_reach_setting(bool* forced) {
  std::string value;
  bool is_set = false;
  MEP_TRY(env_string("MEP_CUDA_REACH", &value, &is_set));
  *forced = is_set && value == "host";
  if (!is_set || *forced || value == "auto") return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT, "MEP_CUDA_REACH=%.64s: it is auto or host", value.c_str());
}

}  // namespace mep
