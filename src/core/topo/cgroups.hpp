// The control groups that limit this process: its own, and all above it.
#pragma once

#include <string>

#include "base/function_ref.hpp"

namespace mep {

// At most 1 MiB; a missing file is an empty text.
std::string read_file(const std::string& path);

// The folders of the groups that `controller` ("cpu", "memory") acts through, v2 and v1, from the
// contents of /proc/self/cgroup and /proc/self/mountinfo; `root` stands before every mount point.
void visit_cgroups(const char* controller, const std::string& cgroup_text,
                   const std::string& mountinfo_text, const std::string& root,
                   FunctionRef<void(const std::string& folder, bool is_v2)> visit);

}  // namespace mep
