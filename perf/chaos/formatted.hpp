#pragma once

#include <cstdio>
#include <string>

namespace mep::programs {

// One line of snprintf.
template <typename... Values>
std::string formatted(const char* format, Values... values) {
  char line[512];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

}  // namespace mep::programs
