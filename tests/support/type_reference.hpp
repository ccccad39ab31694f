// Types as the references have them, of the tests, of mep_perf --check and of mep_chaos: what is common to references
// that each reduce in their own way. A list and the C types come from the library's table; arithmetic does not.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "mep.h"
#include "protocol/types.def"

namespace mep_reference {

#define MEP_TYPE_NUMBER(with, number, constant, ...) MEP_##constant,
inline constexpr mep_dtype_t kAllTypes[] = {MEP_TYPES(MEP_TYPE_NUMBER, )};
#undef MEP_TYPE_NUMBER

// 0: no type.
constexpr size_t element_bytes(mep_dtype_t dtype) {
  switch (dtype) {
#define MEP_TYPE_SIZE(with, number, constant, kind, element, ...) \
  case MEP_##constant:                                            \
    return sizeof(element);
    MEP_TYPES(MEP_TYPE_SIZE, )  // NOLINT(bugprone-branch-clone): a line a type
#undef MEP_TYPE_SIZE
    default:
      return 0;
  }
}

enum class Class { Integer, Float, Bool, None };

constexpr Class class_of(mep_dtype_t dtype) {
  switch (dtype) {
#define MEP_TYPE_CLASS(with, number, constant, kind, ...) \
  case MEP_##constant:                                    \
    return Class::kind;
    MEP_TYPES(MEP_TYPE_CLASS, )  // NOLINT(bugprone-branch-clone): a line a type
#undef MEP_TYPE_CLASS
    default:
      return Class::None;
  }
}
constexpr bool is_float(mep_dtype_t dtype) {
  return class_of(dtype) == Class::Float;
}

// Calls visit with a 0 of the C type of an integer.
template <class Visit>
void with_integer(mep_dtype_t dtype, Visit&& visit) {
  switch (dtype) {
#define MEP_TYPE_VISIT(with, number, constant, kind, element, ...)  \
  case MEP_##constant:                                              \
    if constexpr (Class::kind == Class::Integer) visit(element{0}); \
    break;
    MEP_TYPES(MEP_TYPE_VISIT, )  // NOLINT(bugprone-branch-clone): a line a type
#undef MEP_TYPE_VISIT
    default:
      break;
  }
}

// One step of a reduction of integers.
template <class Int>
Int combine_integers(mep_dtype_t, mep_op_t op, Int a, Int b) {
  // Bits beyond the type's are cut off again; a sign that fills them is wanted.
  const auto x = static_cast<uint64_t>(static_cast<int64_t>(a));
  const auto y = static_cast<uint64_t>(static_cast<int64_t>(b));
  switch (op) {
    case MEP_SUM:
      return static_cast<Int>(x + y);
    case MEP_PROD:
      return static_cast<Int>(x * y);
    case MEP_MIN:
      return std::min(a, b);
    case MEP_MAX:
      return std::max(a, b);
    case MEP_AND:
      return static_cast<Int>(x & y);
    case MEP_OR:
      return static_cast<Int>(x | y);
    default:
      return static_cast<Int>(x ^ y);
  }
}

// A float of 8 or 16 bits; of no other type: bits is 0.
struct FloatFormat {
  int bits;
  int mantissa;
  int bias;
  bool infinities;  // else the largest codes are values and 0x7f.. is the only NaN
  uint32_t nan;
};

constexpr FloatFormat float_format(mep_dtype_t dtype) {
  switch (dtype) {
    case MEP_FLOAT16:
      return {16, 10, 15, true, 0x7e00};
    case MEP_BFLOAT16:
      return {16, 7, 127, true, 0x7fc0};
    case MEP_FLOAT8_E4M3:
      return {8, 3, 7, false, 0x7f};
    case MEP_FLOAT8_E5M2:
      return {8, 2, 15, true, 0x7f};
    default:
      return {};
  }
}

}  // namespace mep_reference
