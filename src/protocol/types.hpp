// The element types: what the table says of each (types.def). And operators, as texts name them: without the MEP_ of
// their constants, in small letters.
#pragma once

#include <array>
#include <cstdint>

#include "mep.h"
#include "protocol/types.def"

namespace mep {

enum class TypeClass : uint8_t { kNone, kInteger, kFloat, kBool };

struct TypeFacts {
  const char* name;
  uint32_t bytes;
  TypeClass kind;
};

constexpr TypeFacts type_facts(mep_dtype_t dtype) {
  switch (dtype) {
#define MEP_TYPE(with, number, constant, kind, element, arithmetic, name, ...) \
  case MEP_##constant:                                                         \
    return {#name, sizeof(element), TypeClass::k##kind};
    MEP_TYPES(MEP_TYPE, )
#undef MEP_TYPE
    default:
      return {dtype == 0 ? "no type" : "an unknown type", 0, TypeClass::kNone};
  }
}
inline constexpr mep_dtype_t kTypeSlots = MEP_TYPES_END;

// The name of an operator, or "an unknown operator".
constexpr const char* name_of_operator(mep_op_t op) {
  constexpr std::array<const char*, MEP_XOR + 1> kNames = {
      "no operator", "sum", "prod", "min", "max", "avg", "and", "or", "xor"};
  return op < kNames.size() ? kNames[op] : "an unknown operator";
}

}  // namespace mep
