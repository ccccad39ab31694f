// How much memory this process and those beside it in its control groups can have together. Read
// afresh at each call (a few system calls): not for inner loops.
#pragma once

#include <cstdint>
#include <string>

namespace mep {

// Bytes: the machine's memory, or the least limit of the control groups; 0: unknown.
uint64_t usable_memory();

// The least limit of the control groups, bytes; 0: there is none. Arguments as visit_cgroups() has
// them.
uint64_t cgroup_memory_limit(const std::string& cgroup_text, const std::string& mountinfo_text,
                             const std::string& root);

}  // namespace mep
