// How the parts of mep_info print.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace mep {

inline void print_title(const char* title) {
  (void)std::printf("\n%s\n", title);
}

inline void print_line(const char* name, const std::string& value) {
  (void)std::printf("  %-22s %s\n", name, value.c_str());
}

inline std::string size_text(uint64_t bytes) {
  constexpr uint64_t kKib = 1024;
  if (bytes >= 10 * kKib * kKib * kKib) return std::to_string(bytes >> 30) + " GiB";
  if (bytes >= 10 * kKib * kKib) return std::to_string(bytes >> 20) + " MiB";
  return std::to_string(bytes >> 10) + " KiB";
}

}  // namespace mep
