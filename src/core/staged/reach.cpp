#include "core/staged/reach.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "base/env.hpp"
#include "base/status.hpp"

namespace mep {
namespace {

const char* reach_setting(GpuReach least) {
  switch (least) {
    case GpuReach::kDeviceWindows:
      return "auto";
    case GpuReach::kHostWindows:
      return "host";
    case GpuReach::kQueues:
      return "queues";
  }
  return "?";
}

}  // namespace

ReachChoice choose_reach(std::span<const ReachFacts> facts, std::span<const uint32_t> ranks) {
  ReachChoice choice;
  const auto at_least = [&](GpuReach reach, const std::string& why) {
    if (choice.reach >= reach) return;
    choice.reach = reach;
    choice.why = why;
  };
  for (size_t i = 0; i < facts.size(); ++i) {
    const std::string rank = "rank " + std::to_string(ranks[i]);
    const auto least = static_cast<GpuReach>(facts[i].least);
    at_least(least, rank + " has MEP_CUDA_REACH=" + reach_setting(least));
    if (facts[i].host == facts[0].host) continue;
    at_least(GpuReach::kQueues, rank + " is on another host than rank " + std::to_string(ranks[0]));
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

mep_result_t read_reach_setting(GpuReach* least) {
  std::string value;
  bool is_set = false;
  MEP_TRY(env_string("MEP_CUDA_REACH", &value, &is_set));
  if (!is_set) value = reach_setting(GpuReach::kDeviceWindows);
  for (const GpuReach reach :
       {GpuReach::kDeviceWindows, GpuReach::kHostWindows, GpuReach::kQueues}) {
    *least = reach;
    if (value == reach_setting(reach)) return MEP_SUCCESS;
  }
  return fail(MEP_ERR_INVALID_ARGUMENT, "MEP_CUDA_REACH=%.64s: it is auto, host or queues",
              value.c_str());
}

}  // namespace mep
