// Types and operators as mep.h describes them, for the references of the tests, of mep_perf --check and of mep_chaos.
// Nothing here is the library's, not even the sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "mep.h"

namespace mep_reference {

inline constexpr mep_dtype_t kAllTypes[] = {
    MEP_INT8,    MEP_UINT8,   MEP_INT16,  MEP_UINT16,      MEP_INT32,
    MEP_UINT32,  MEP_INT64,   MEP_UINT64, MEP_FLOAT16,     MEP_BFLOAT16,
    MEP_FLOAT32, MEP_FLOAT64, MEP_BOOL,   MEP_FLOAT8_E4M3, MEP_FLOAT8_E5M2};
inline constexpr mep_op_t kAllOps[] = {MEP_SUM, MEP_PROD, MEP_MIN, MEP_MAX,
                                       MEP_AVG, MEP_AND,  MEP_OR,  MEP_XOR};

// 0: no type.
constexpr size_t element_bytes(mep_dtype_t dtype) {
  constexpr uint8_t kBytes[] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 1};
  return dtype < std::size(kBytes) ? kBytes[dtype] : 0;
}

constexpr bool is_float(mep_dtype_t dtype) {
  return (dtype >= MEP_FLOAT16 && dtype <= MEP_FLOAT64) || dtype == MEP_FLOAT8_E4M3 ||
         dtype == MEP_FLOAT8_E5M2;
}

// Whether mep.h has this pair.
constexpr bool pair_exists(mep_dtype_t dtype, mep_op_t op) {
  if (op == MEP_AND || op == MEP_OR || op == MEP_XOR) return !is_float(dtype);
  if (dtype == MEP_BOOL) return op == MEP_MIN || op == MEP_MAX;
  return op != MEP_AVG || is_float(dtype);
}

// Calls visit with a 0 of the C type of an integer.
template <class Visit>
void with_integer(mep_dtype_t dtype, Visit&& visit) {
  switch (dtype) {
    case MEP_INT8:
      return visit(int8_t{0});
    case MEP_UINT8:
      return visit(uint8_t{0});
    case MEP_INT16:
      return visit(int16_t{0});
    case MEP_UINT16:
      return visit(uint16_t{0});
    case MEP_INT32:
      return visit(int32_t{0});
    case MEP_UINT32:
      return visit(uint32_t{0});
    case MEP_INT64:
      return visit(int64_t{0});
    case MEP_UINT64:
      return visit(uint64_t{0});
    default:
      return;
  }
}

}  // namespace mep_reference
