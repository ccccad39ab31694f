// The kernels of one SIMD level. kernels.cpp calls through the table of the level that this
// processor has; tests call every level that it has. The functions trust the floating-point mode.
#pragma once

#include "base/cpu_features.hpp"
#include "kernels/host/kernels.hpp"

namespace mep {

using ReduceFunction = void (*)(void* out, const void* const* inputs, size_t n_inputs, size_t count,
                                uint32_t divisor);
using ToF32Function = void (*)(const void* in, float* out, size_t count);
using FromF32Function = void (*)(const float* in, void* out, size_t count);
using QuantizeFunction = void (*)(const void* x, size_t hidden, uint8_t* q, void* scales,
                                  bool non_temporal);
using CombineFunction = void (*)(void* out, const void* const* rows, const float* weights,
                                 size_t n_rows, size_t hidden, bool non_temporal);

inline constexpr size_t kDtypeSlots = kTypeSlots;  // indexed by mep_dtype_t; NULL: no kernel
inline constexpr size_t kOpSlots = MEP_XOR + 1;    // indexed by mep_op_t
inline constexpr size_t kRowFormatSlots = static_cast<size_t>(RowFormatKind::kEnd);

struct KernelTable {
  ReduceFunction reduce[kDtypeSlots][kOpSlots];
  ToF32Function to_f32[kDtypeSlots];
  FromF32Function from_f32[kDtypeSlots];
  QuantizeFunction quantize[kRowFormatSlots][kDtypeSlots];
  CombineFunction combine[kDtypeSlots];
  void (*copy_past_caches)(void* destination, const void* source, size_t bytes);
};

// NULL where this processor or this build does not have the level.
const KernelTable* kernels_for(SimdLevel level);

}  // namespace mep
