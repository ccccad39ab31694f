// Affinity comes from sched_getaffinity. The quota is the smallest one of this process's control group and of
// all groups above it: cpu.max (cgroup v2) or cpu.cfs_*_us (v1). A quota of 1.5 cores counts as 1, because a second
// spinning thread would eat the time of the first. Limits of memory are memory.max and memory.high (v2) or
// memory.limit_in_bytes (v1). v1 shows "no limit" as a number that no machine has; "max" (v2) and whatever cannot be
// read are no limit.
#include "core/topo/usable.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/function_ref.hpp"
#include "base/status.hpp"
#include "base/system_error.hpp"

namespace mep {
namespace {

// --- Control groups ---

constexpr size_t kMaxFileBytes = 1 << 20;

bool list_has(const std::string& list, const std::string& item) {
  std::istringstream parts(list);
  std::string part;
  while (std::getline(parts, part, ',')) {
    if (part == item) return true;
  }
  return false;
}

// Where the hierarchy is mounted, and which of its groups is the root of that mount.
struct CgroupMount {
  std::string group;
  std::string folder;
};

bool find_mount(const std::string& mountinfo_text, bool is_v2, const char* controller,
                CgroupMount* mount) {
  std::istringstream lines(mountinfo_text);
  std::string line;
  while (std::getline(lines, line)) {
    const size_t separator = line.find(" - ");
    if (separator == std::string::npos) continue;
    std::string id, parent, device, type, source, options;
    CgroupMount found;
    std::istringstream(line) >> id >> parent >> device >> found.group >> found.folder;
    std::istringstream(line.substr(separator + 3)) >> type >> source >> options;
    if (is_v2 ? type != "cgroup2" : (type != "cgroup" || !list_has(options, controller))) continue;
    *mount = found;
    return true;
  }
  return false;
}

// The group's path below the mount point; a group outside of what is mounted counts as its root.
std::string path_below(const CgroupMount& mount, const std::string& group) {
  if (mount.group == "/") return group == "/" ? "" : group;
  if (group.compare(0, mount.group.size(), mount.group) != 0) return "";
  const std::string rest = group.substr(mount.group.size());
  return rest.empty() || rest[0] == '/' ? rest : "";
}

// At most 1 MiB; a missing file is an empty text.
std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  char block[4096];
  while (file && text.size() < kMaxFileBytes) {
    file.read(block, sizeof block);
    text.append(block, static_cast<size_t>(file.gcount()));
  }
  return text;
}

// The folders of the groups that `controller` ("cpu", "memory") acts through, v2 and v1, from the
// contents of /proc/self/cgroup and /proc/self/mountinfo; `root` stands before every mount point.
void visit_cgroups(const char* controller, const std::string& cgroup_text,
                   const std::string& mountinfo_text, const std::string& root,
                   FunctionRef<void(const std::string& folder, bool is_v2)> visit) {
  std::istringstream lines(cgroup_text);
  std::string line;  // "id:controllers:/group"; v2 has id 0 and no controllers
  while (std::getline(lines, line)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_v2 = controllers.empty();
    CgroupMount mount;
    if (!is_v2 && !list_has(controllers, controller)) continue;
    if (!find_mount(mountinfo_text, is_v2, controller, &mount)) continue;
    const std::string top = root + mount.folder;
    std::string path = path_below(mount, line.substr(second + 1));
    while (true) {
      visit(top + path, is_v2);
      if (path.empty()) break;
      const size_t slash = path.rfind('/');
      path.resize(slash == std::string::npos ? 0 : slash);
    }
  }
}

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

constexpr uint64_t kNoLimitV1 = uint64_t{1} << 62;

void lower_bytes(const std::string& text, uint64_t* limit) {
  uint64_t bytes = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (error != std::errc() || bytes >= kNoLimitV1) return;
  // memory.max of 0 lets nothing live: it is not read while this process does.
  if (bytes != 0 && (*limit == 0 || bytes < *limit)) *limit = bytes;
}

}  // namespace

// --- Cores ---

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

// --- Memory ---

uint64_t cgroup_memory_limit(const std::string& cgroup_text, const std::string& mountinfo_text,
                             const std::string& root) {
  uint64_t limit = 0;
  visit_cgroups("memory", cgroup_text, mountinfo_text, root,
                [&](const std::string& folder, bool is_v2) {
                  if (!is_v2)
                    return lower_bytes(read_file(folder + "/memory.limit_in_bytes"), &limit);
                  for (const char* file : {"/memory.max", "/memory.high"}) {
                    lower_bytes(read_file(folder + file), &limit);
                  }
                });
  return limit;
}

uint64_t usable_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  const uint64_t machine = pages > 0 && page_bytes > 0
                               ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes)
                               : 0;
  const uint64_t limit =
      cgroup_memory_limit(read_file("/proc/self/cgroup"), read_file("/proc/self/mountinfo"), "");
  if (limit == 0 || machine == 0) return std::max(limit, machine);
  return std::min(limit, machine);
}

}  // namespace mep
