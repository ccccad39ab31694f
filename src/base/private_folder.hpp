// A folder of this user's in a directory that others may write to.
#pragma once

#include <string>

#include "mep.h"

namespace mep {

// Makes `folder`, in the existing `directory`, or takes the one that is there if it is this user's.
// `purpose` is what the directory is called in errors: NOT_FOUND, DENIED, SYSTEM.
[[nodiscard]] mep_result_t make_private_folder(const std::string& directory,
                                               const std::string& folder, const char* purpose);

}  // namespace mep
