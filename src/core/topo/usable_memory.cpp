// Limits are memory.max and memory.high (v2) or memory.limit_in_bytes (v1). v1 shows "no limit" as
// a number that no machine has; "max" (v2) and whatever cannot be read are no limit.
#include "core/topo/usable_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "core/topo/cgroups.hpp"

namespace mep {
namespace {

constexpr uint64_t kNoLimitV1 = uint64_t{1} << 62;

void lower_limit(const std::string& text, uint64_t* limit) {
  uint64_t bytes = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (error != std::errc() || bytes >= kNoLimitV1) return;
  // memory.max of 0 lets nothing live: it is not read while this process does.
  if (bytes != 0 && (*limit == 0 || bytes < *limit)) *limit = bytes;
}

}  // namespace

uint64_t cgroup_memory_limit(const std::string& cgroup_text, const std::string& mountinfo_text,
                             const std::string& root) {
  uint64_t limit = 0;
  visit_cgroups("memory", cgroup_text, mountinfo_text, root,
                [&](const std::string& folder, bool is_v2) {
                  if (!is_v2)
                    return lower_limit(read_file(folder + "/memory.limit_in_bytes"), &limit);
                  for (const char* file : {"/memory.max", "/memory.high"}) {
                    lower_limit(read_file(folder + file), &limit);
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
