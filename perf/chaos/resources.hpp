// The system objects that a process holds; growth is a leak.
#pragma once

#include <cstdint>

namespace mep::programs {

struct Resources {
  uint64_t fds = 0;  // that do not listen
  uint64_t listeners = 0;
  uint64_t threads = 0;
  uint64_t mappings = 0;  // windows, device memory, files
  uint64_t pages = 0;     // of anonymous memory
};

// This process counts.
Resources count_resources();

}  // namespace mep::programs
