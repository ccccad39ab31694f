// Standard output as what a tool is for: the last step of main().
#pragma once

#include <cstdio>

namespace mep::perf {

// `status`, or 1 with a text if something that was printed is lost.
inline int status_of_output(const char* tool, int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  (void)std::fprintf(stderr, "%s: standard output cannot be written; what was printed is lost\n",
                     tool);
  return status != 0 ? status : 1;
}

}  // namespace mep::perf
