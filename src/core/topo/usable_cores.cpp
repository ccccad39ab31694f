// Affinity comes from sched_getaffinity. The quota is the smallest one of this process's control group and of
// all groups above it: cpu.max (cgroup v2) or cpu.cfs_*_us (v1). A quota of 1.5 cores counts as 1, because a second
// spinning thread would eat the time of the first. A file that cannot be read is no limit.
#include "core/topo/usable_cores.hpp"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <sstream>

#include "base/status.hpp"
#include "base/system_error.hpp"
#include "core/topo/cgroups.hpp"

namespace mep {
namespace {

// *limit: the smallest quota so far, in whole cores; 0: none so far.
void lower_limit(int64_t quota_us, int64_t period_us, int* limit) {
  if (quota_us <= 0 || period_us <= 0) return;
  const int64_t cores = std::clamp<int64_t>(quota_us / period_us, 1, INT_MAX);
  if (*limit == 0 || cores < *limit) *limit = static_cast<int>(cores);
}

void lower_limit_by_folder(const std::string& folder, bool is_v2, int* limit) {
  if (is_v2) {
    std::istringstream words(read_file(folder + "/cpu.max"));
    std::string quota;  // "max" or microseconds
    int64_t period_us = 0;
    if (words >> quota >> period_us && quota != "max") {
      lower_limit(std::strtoll(quota.c_str(), nullptr, 10), period_us, limit);
    }
    return;
  }
  int64_t quota_us = -1;
  int64_t period_us = 0;
  std::istringstream(read_file(folder + "/cpu.cfs_quota_us")) >> quota_us;
  std::istringstream(read_file(folder + "/cpu.cfs_period_us")) >> period_us;
  lower_limit(quota_us, period_us, limit);
}

}  // namespace

int cgroup_core_limit(const std::string& cgroup_text, const std::string& mountinfo_text,
                      const std::string& root) {
  int limit = 0;
  visit_cgroups(
      "cpu", cgroup_text, mountinfo_text, root,
      [&](const std::string& folder, bool is_v2) { lower_limit_by_folder(folder, is_v2, &limit); });
  return limit;
}

int cgroup_core_limit() {
  return cgroup_core_limit(read_file("/proc/self/cgroup"), read_file("/proc/self/mountinfo"), "");
}

mep_result_t affinity_mask(std::vector<uint64_t>* words) {
  // The kernel refuses a buffer shorter than its own mask, whose length is not known beforehand.
  for (size_t count = 16; count <= (1u << 16); count *= 2) {
    words->assign(count, 0);
    const size_t bytes = count * sizeof(uint64_t);
    if (sched_getaffinity(0, bytes, reinterpret_cast<cpu_set_t*>(words->data())) == 0) {
      while (!words->empty() && words->back() == 0) words->pop_back();
      return MEP_SUCCESS;
    }
    if (errno != EINVAL) break;
  }
  const int error = errno;
  words->clear();
  return fail_call("the cores that this process may use", "sched_getaffinity", error);
}

std::string cpu_list_text(const std::vector<uint64_t>& words) {
  std::string text;
  const size_t end = words.size() * 64;
  const auto has = [&](size_t cpu) {
    return cpu < end && ((words[cpu / 64] >> (cpu % 64)) & 1) != 0;
  };
  for (size_t cpu = 0; cpu < end; ++cpu) {
    if (!has(cpu)) continue;
    const size_t first = cpu;
    while (has(cpu + 1)) ++cpu;
    if (!text.empty()) text += ',';
    text += std::to_string(first);
    if (cpu > first) text += "-" + std::to_string(cpu);
  }
  return text;
}

int usable_cores() {
  std::vector<uint64_t> words;
  int cores = 0;
  if (affinity_mask(&words) == MEP_SUCCESS) {
    for (const uint64_t word : words) cores += std::popcount(word);
  }
  const int limit = cgroup_core_limit();
  if (limit > 0) cores = std::min(cores, limit);
  return std::max(cores, 1);
}

}  // namespace mep
