// The table of one SIMD level, a constant of the including file (level_*.cpp). A constant on
// purpose: nothing compiled for AVX may run while the library is loaded.
#pragma once

#include <type_traits>

#include "kernels/host/generic_reduce.hpp"
#include "kernels/host/generic_rows.hpp"
#include "kernels/host/kernel_table.hpp"

namespace mep {
namespace {

// The arithmetics of types.def.
template <class F, class Math>
struct Arithmetic {};
template <class T>
using Whole = Arithmetic<IntegerFormat<T>, IntegerMath<T>>;
using Truth = Arithmetic<BoolFormat, IntegerMath<uint8_t>>;
template <class F>
using InFloat32 = Arithmetic<F, FloatMath<float, int32_t>>;
using Float16 = InFloat32<Float16Format>;
using Bfloat16 = InFloat32<Bfloat16Format>;
using Float32 = InFloat32<Float32Format>;
using Float64 = Arithmetic<NativeFloatFormat<double>, FloatMath<double, int64_t>>;
using Float8E4M3 = InFloat32<Float8Format<E4M3Format>>;
using Float8E5M2 = InFloat32<Float8Format<E5M2Format>>;

template <mep_dtype_t kDtype, class F, class Math>
constexpr void set_type(KernelTable* table, Arithmetic<F, Math>) {
  constexpr TypeClass kClass = type_facts(kDtype).kind;
  ReduceFunction* const row = table->reduce[kDtype];
  if constexpr (kClass == TypeClass::kFloat) {
    row[MEP_AVG] = reduce<F, AverageOp<Math>>;
  } else {
    row[MEP_AND] = reduce<F, AndOp<Math>>;
    row[MEP_OR] = reduce<F, OrOp<Math>>;
    row[MEP_XOR] = reduce<F, XorOp<Math>>;
  }
  if constexpr (kClass == TypeClass::kBool) {
    row[MEP_MIN] = row[MEP_AND];
    row[MEP_MAX] = row[MEP_OR];
  } else {
    row[MEP_SUM] = reduce<F, SumOp<Math>>;
    row[MEP_PROD] = reduce<F, ProductOp<Math>>;
    row[MEP_MIN] = reduce<F, MinOp<Math>>;
    row[MEP_MAX] = reduce<F, MaxOp<Math>>;
  }
  if constexpr (std::is_same_v<Arithmetic<F, Math>, InFloat32<F>>) {
    table->to_f32[kDtype] = to_f32<F>;
    table->from_f32[kDtype] = from_f32<F>;
  }
  if constexpr (is_float16_or_32(kDtype)) {
#define MEP_SET_QUANTIZE(name, value, bits, scale, group, last, element, codec) \
  table->quantize[static_cast<size_t>(RowFormatKind::k_##name)][kDtype] = quantize<F, codec, group>;
    MEP_SCALED_ROW_FORMATS(MEP_SET_QUANTIZE)
#undef MEP_SET_QUANTIZE
    table->combine[kDtype] = combine<F>;
  }
}

constexpr KernelTable make_kernel_table() {
  KernelTable table{};
#define MEP_SET(with, number, constant, kind, element, arithmetic, ...) \
  set_type<MEP_##constant>(&table, arithmetic());
  MEP_TYPES(MEP_SET, )
#undef MEP_SET
  table.copy_past_caches = copy_past_caches;
  return table;
}

}  // namespace
}  // namespace mep
