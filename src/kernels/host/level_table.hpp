// The table of one SIMD level, a constant of the including file (level_*.cpp). A constant on
// purpose: nothing compiled for AVX may run while the library is loaded.
#pragma once

#include "kernels/host/generic_reduce.hpp"
#include "kernels/host/generic_rows.hpp"
#include "kernels/host/kernel_table.hpp"

namespace mep {
namespace {

template <class F, class Math>
constexpr void set_arithmetic(KernelTable* table, mep_dtype_t dtype) {
  table->reduce[dtype][MEP_SUM] = reduce<F, SumOp<Math>>;
  table->reduce[dtype][MEP_PROD] = reduce<F, ProductOp<Math>>;
  table->reduce[dtype][MEP_MIN] = reduce<F, MinOp<Math>>;
  table->reduce[dtype][MEP_MAX] = reduce<F, MaxOp<Math>>;
}

template <class F, class Math>
constexpr void set_logical(KernelTable* table, mep_dtype_t dtype) {
  table->reduce[dtype][MEP_AND] = reduce<F, AndOp<Math>>;
  table->reduce[dtype][MEP_OR] = reduce<F, OrOp<Math>>;
  table->reduce[dtype][MEP_XOR] = reduce<F, XorOp<Math>>;
}

template <class T>
constexpr void set_integer(KernelTable* table, mep_dtype_t dtype) {
  set_arithmetic<IntegerFormat<T>, IntegerMath<T>>(table, dtype);
  set_logical<IntegerFormat<T>, IntegerMath<T>>(table, dtype);
}

template <class F, class Math>
constexpr void set_floating(KernelTable* table, mep_dtype_t dtype) {
  set_arithmetic<F, Math>(table, dtype);
  table->reduce[dtype][MEP_AVG] = reduce<F, AverageOp<Math>>;
}

// float32 and all that is computed in it.
template <class F>
constexpr void set_float32_based(KernelTable* table, mep_dtype_t dtype) {
  set_floating<F, FloatMath<float, int32_t>>(table, dtype);
  table->to_f32[dtype] = to_f32<F>;
  table->from_f32[dtype] = from_f32<F>;
}

template <class F>
constexpr void set_token_type(KernelTable* table, mep_dtype_t dtype) {
  set_float32_based<F>(table, dtype);
  table->quantize[dtype] = quantize<F, FloatScale>;
  table->quantize_ue8m0[dtype] = quantize<F, Ue8m0Scale>;
  table->dequantize[dtype] = dequantize<F, FloatScale>;
  table->dequantize_ue8m0[dtype] = dequantize<F, Ue8m0Scale>;
  table->combine[dtype] = combine<F>;
}

constexpr KernelTable make_kernel_table() {
  KernelTable table{};
  set_integer<int8_t>(&table, MEP_INT8);
  set_integer<uint8_t>(&table, MEP_UINT8);
  set_integer<int16_t>(&table, MEP_INT16);
  set_integer<uint16_t>(&table, MEP_UINT16);
  set_integer<int32_t>(&table, MEP_INT32);
  set_integer<uint32_t>(&table, MEP_UINT32);
  set_integer<int64_t>(&table, MEP_INT64);
  set_integer<uint64_t>(&table, MEP_UINT64);
  set_token_type<Float16Format>(&table, MEP_FLOAT16);
  set_token_type<Bfloat16Format>(&table, MEP_BFLOAT16);
  set_token_type<Float32Format>(&table, MEP_FLOAT32);
  set_floating<NativeFloatFormat<double>, FloatMath<double, int64_t>>(&table, MEP_FLOAT64);
  set_float32_based<Float8Format<E4M3Format>>(&table, MEP_FLOAT8_E4M3);
  set_float32_based<Float8Format<E5M2Format>>(&table, MEP_FLOAT8_E5M2);
  set_logical<BoolFormat, IntegerMath<uint8_t>>(&table, MEP_BOOL);
  table.reduce[MEP_BOOL][MEP_MIN] = table.reduce[MEP_BOOL][MEP_AND];
  table.reduce[MEP_BOOL][MEP_MAX] = table.reduce[MEP_BOOL][MEP_OR];
  table.copy_past_caches = copy_past_caches;
  return table;
}

}  // namespace
}  // namespace mep
