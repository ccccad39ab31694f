#include "core/staged/reach.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include "base/env.hpp"
#include "base/hash.hpp"
#include "base/status.hpp"

namespace mep {
namespace {

struct ReachSetting {
  const char* name;
  GpuReach least;
  uint32_t groups;  // of a host
};
constexpr ReachSetting kSettings[] = {
    {"auto", GpuReach::kDeviceWindows, 1},
    {"host", GpuReach::kHostWindows, 0},
    {"queues", GpuReach::kQueues, 0},
    {"mixed", GpuReach::kQueues, 2},
};

constexpr const char* kQueues[] = {"host", "adapter", "auto", "assisted"};  // by GpuQueues

const char* setting_of(const ReachFacts& facts) {
  const char* name = "?";
  for (const ReachSetting& setting : kSettings) {
    if (facts.least != static_cast<uint64_t>(setting.least)) continue;
    name = setting.name;
    if ((facts.group != 0) == (setting.groups != 0)) break;
  }
  return name;
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
    at_least(static_cast<GpuReach>(facts[i].least),
             rank + " has MEP_CUDA_REACH=" + setting_of(facts[i]));
    if (facts[i].host == facts[0].host) continue;
    at_least(GpuReach::kQueues, rank + " is on another host than rank " + std::to_string(ranks[0]));
  }
  return choice;
}

uint64_t group_number(const ReachFacts& facts) {
  if (facts.group == 0) return 0;
  Hash hash(facts.host);
  hash.word(facts.group);
  return hash.value() | 1;
}

std::vector<uint64_t> groups_of(std::span<const ReachFacts> facts, std::span<const uint32_t> ranks,
                                uint32_t size) {
  std::map<uint64_t, uint32_t> members;
  for (const ReachFacts& each : facts) ++members[group_number(each)];
  std::vector<uint64_t> groups(size);
  for (size_t i = 0; i < facts.size(); ++i) {
    const uint64_t number = group_number(facts[i]);
    if (members[number] > 1) groups[ranks[i]] = number;
  }
  return groups;
}

std::vector<bool> group_of(std::span<const uint64_t> groups, uint32_t own) {
  if (groups.empty() || groups[own] == 0) return {};
  std::vector<bool> found(groups.size());
  for (size_t rank = 0; rank < groups.size(); ++rank) found[rank] = groups[rank] == groups[own];
  return found;
}

uint32_t most_on_one_gpu(std::span<const ReachFacts> facts) {
  std::map<std::array<uint64_t, 3>, uint32_t> ranks_of;
  uint32_t most = 0;
  for (const ReachFacts& each : facts) {
    most = std::max(most, ++ranks_of[{each.host, each.device[0], each.device[1]}]);
  }
  return most;
}

uint32_t most_blocks_of(std::span<const ReachFacts> facts) {
  uint64_t least = 0;
  for (const ReachFacts& each : facts) {
    if (each.most_blocks != 0 && (least == 0 || each.most_blocks < least)) least = each.most_blocks;
  }
  return static_cast<uint32_t>(least);
}

mep_result_t check_queues(std::span<const ReachFacts> facts, std::span<const uint32_t> ranks) {
  for (size_t i = 1; i < facts.size(); ++i) {
    if (facts[i].queues == facts[0].queues) continue;
    return fail(MEP_ERR_MISMATCH,
                "ranks %u and %u have different MEP_GPU_QUEUES: set it alike on all ranks",
                ranks[0], ranks[i]);
  }
  return MEP_SUCCESS;
}

mep_result_t read_reach_setting(uint32_t rank, ReachFacts* facts) {
  std::string value;
  bool is_set = false;
  MEP_TRY(env_string("MEP_CUDA_REACH", &value, &is_set));
  if (!is_set) value = kSettings[0].name;
  std::string queues;
  MEP_TRY(env_string("MEP_GPU_QUEUES", &queues, &is_set));
  const auto* const found = std::find(std::begin(kQueues), std::end(kQueues), queues);
  if (is_set && found == std::end(kQueues)) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "MEP_GPU_QUEUES=%.64s: it is host, adapter, auto or assisted", queues.c_str());
  }
  facts->queues = is_set ? static_cast<uint64_t>(found - std::begin(kQueues)) : 0;
  for (const ReachSetting& setting : kSettings) {
    if (value != setting.name) continue;
    facts->least = static_cast<uint64_t>(setting.least);
    facts->group = setting.groups == 0 ? 0 : 1 + rank % setting.groups;
    return MEP_SUCCESS;
  }
  return fail(MEP_ERR_INVALID_ARGUMENT, "MEP_CUDA_REACH=%.64s: it is auto, host, queues or mixed",
              value.c_str());
}

}  // namespace mep
