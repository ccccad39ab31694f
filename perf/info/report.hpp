// How the parts of mep_info print: as text at once, or as one JSON object at the end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/env.hpp"

namespace mep {

// The parts print JSON from here on. Called before any part prints.
void print_as_json();
// Ends the JSON object; nothing where the report is text.
void end_report();

void print_version(const std::string& version);
// `key` names the section in JSON, `title` in text.
void print_title(const char* key, const char* title);
void print_line(const char* name, const std::string& value);
void print_variable(const EnvVariable& variable, bool is_set, const std::string& value);
void print_unknown_variables(const std::vector<std::string>& texts);

inline std::string size_text(uint64_t bytes) {
  constexpr uint64_t kKib = 1024;
  if (bytes >= 10 * kKib * kKib * kKib) return std::to_string(bytes >> 30) + " GiB";
  if (bytes >= 10 * kKib * kKib) return std::to_string(bytes >> 20) + " MiB";
  return std::to_string(bytes >> 10) + " KiB";
}

}  // namespace mep
