// How much of the machine this process may use: cores and memory, by its affinity and the control groups that limit it, its
// own and all above it. Read afresh at each call (a few system calls): not for inner loops.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mep.h"

namespace mep {

// --- Cores ---

// Cores that this process may use: affinity, cgroup quota; at least 1.
int usable_cores();

// One bit a logical CPU of the system, bit c % 64 of word c / 64. Masks of several processes on one
// host can be united word by word; trailing zero words are cut off.
[[nodiscard]] mep_result_t affinity_mask(std::vector<uint64_t>* words);

// "0-3,8,10-11" of such a mask.
std::string cpu_list_text(const std::vector<uint64_t>& words);

// The whole cores that the cgroup quota leaves to this process, at least 1; 0: there is no quota.
int cgroup_core_limit();

// The same from given texts, for tests: the contents of /proc/self/cgroup and /proc/self/mountinfo,
// and a folder that stands before every mount point.
int cgroup_core_limit(const std::string& cgroup_text, const std::string& mountinfo_text,
                      const std::string& root);

// --- Memory ---

// Bytes: the machine's memory, or the least limit of the control groups; 0: unknown.
uint64_t usable_memory();

// The least limit of the control groups, bytes; 0: there is none. Arguments as cgroup_core_limit()
// has them.
uint64_t cgroup_memory_limit(const std::string& cgroup_text, const std::string& mountinfo_text,
                             const std::string& root);

}  // namespace mep
