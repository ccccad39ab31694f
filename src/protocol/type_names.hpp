// Types and operators as texts name them: without the MEP_ of their constants, in small letters.
#pragma once

#include <array>
#include <cstdint>

#include "mep.h"

namespace mep {

// The name of a type, or "an unknown type".
constexpr const char* name_of_type(mep_dtype_t dtype) {
  constexpr std::array<const char*, MEP_FLOAT8_E5M2 + 1> kNames = {
      "no type", "int8",  "uint8",       "int16",      "uint16",   "int32",
      "uint32",  "int64", "uint64",      "float16",    "bfloat16", "float32",
      "float64", "bool",  "float8_e4m3", "float8_e5m2"};
  return dtype < kNames.size() ? kNames[dtype] : "an unknown type";
}

// The name of an operator, or "an unknown operator".
constexpr const char* name_of_operator(mep_op_t op) {
  constexpr std::array<const char*, MEP_XOR + 1> kNames = {
      "no operator", "sum", "prod", "min", "max", "avg", "and", "or", "xor"};
  return op < kNames.size() ? kNames[op] : "an unknown operator";
}

}  // namespace mep
