// Every environment variable that MEP reads stands in the one table in env.cpp (name, default,
// help): mep_info prints it. Reading a variable that is not in the table is an internal error.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mep.h"

namespace mep {

struct EnvVariable {
  const char* name;
  const char* default_text;  // as shown to people
  const char* help;
};

// Constant data: threads of the library may read it while the process ends.
std::span<const EnvVariable> env_table();

// The variables that no field of mep_comm_config_t overrides and that a start may never read: a
// value that is malformed or out of range is an error that names variable, value and what is
// allowed.
[[nodiscard]] mep_result_t check_environment();

// One text for each variable of the environment that begins with MEP_ and that nothing reads.
std::vector<std::string> unknown_variables();

// Unset or empty: false, *value untouched. Malformed text is an error that names variable and text.
[[nodiscard]] mep_result_t env_string(const char* name, std::string* value, bool* is_set);
[[nodiscard]] mep_result_t env_uint(const char* name, uint64_t min, uint64_t max, uint64_t* value,
                                    bool* is_set);
// The range stands in env.cpp.
[[nodiscard]] mep_result_t env_number(const char* name, uint64_t* value, bool* is_set);
// 0/1, true/false, yes/no, on/off.
[[nodiscard]] mep_result_t env_bool(const char* name, bool* value, bool* is_set);
// False: none of these words, *value untouched.
bool is_flag_word(const char* text, bool* value);

}  // namespace mep
