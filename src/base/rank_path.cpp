#include "base/rank_path.hpp"

#include <unistd.h>

#include "base/status.hpp"

namespace mep {

mep_result_t rank_path(const char* variable, const std::string& pattern,
                       std::optional<uint32_t> rank, bool may_share, std::string* path) {
  bool has_rank = false;
  path->clear();
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      *path += pattern[i];
      continue;
    }
    const char kind = ++i < pattern.size() ? pattern[i] : '\0';
    if (kind == 'r') {
      if (!rank.has_value()) {
        return fail(MEP_ERR_INVALID_ARGUMENT,
                    "%s=%.200s has %%r, but neither MEP_RANK nor a launcher says the rank of this "
                    "process; use %%p, its pid",
                    variable, pattern.c_str());
      }
      has_rank = true;
      *path += std::to_string(*rank);
    } else if (kind == 'p') {
      *path += std::to_string(getpid());
    } else if (kind == '%') {
      *path += '%';
    } else {
      return fail(MEP_ERR_INVALID_ARGUMENT, "%s=%.200s has a %% that is not %%r, %%p or %%%%",
                  variable, pattern.c_str());
    }
  }
  if (pattern.empty() || has_rank || may_share) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "%s=%.200s names one file for all ranks; put %%r, the rank, into it", variable,
              pattern.c_str());
}

}  // namespace mep
