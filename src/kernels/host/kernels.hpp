// Arithmetic of one rank on host memory. Every function gives the same bits on every processor that
// MEP runs on: the SIMD variants (portable, AVX2 + F16C, AVX-512) are interchangeable, no operation
// is fused, denormals are kept, and the caller's floating-point mode (rounding, flush to zero,
// unmasked exceptions; Fortran run times set them) is put aside for the length of a call.
//
// Rules for all functions:
//   - Pointers need no alignment. Nothing outside the named ranges is read or written.
//   - A floating-point result that is NaN is written as the type's positive canonical NaN, whatever
//     came in: 0x7fc00000, 0x7ff8000000000000, 0x7e00 (f16), 0x7fc0 (bf16), 0x7f (both fp8 types).
//   - Rounding is to nearest, ties to even. e4m3 saturates: beyond +-448, infinities too, gives
//     +-448. f16, bf16 and e5m2 overflow to infinity.
//   - `non_temporal` stores past the caches, for rows that this core will not read soon, such as
//     those in the memory of another rank. It takes effect for outputs that begin with a 64-byte
//     line (copy_row: any); others get plain stores. The function fences its own non-temporal
//     stores before it returns, so a signal stored after it is ordered as after plain stores.
//   - Types and operators are checked by the caller (reduce_supported, is_float16_or_32); a pair
//     that does not exist leaves the output untouched.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mep.h"
#include "protocol/row_formats.hpp"
#include "protocol/types.hpp"

namespace mep {

// The types of tokens: what quantise takes and combine works on.
constexpr bool is_float16_or_32(mep_dtype_t dtype) {
  return dtype == MEP_FLOAT16 || dtype == MEP_BFLOAT16 || dtype == MEP_FLOAT32;
}

// The one table of reductions. Integers: all but avg. Floating types: all but and, or, xor. Bool:
// logical and, or, xor, and min and max, which are and and or of truth values; a sum of truth
// values has no type to go to and does not exist.
constexpr bool reduce_supported(mep_dtype_t dtype, mep_op_t op) {
  constexpr unsigned kArithmetic = 1u << MEP_SUM | 1u << MEP_PROD | 1u << MEP_MIN | 1u << MEP_MAX;
  constexpr unsigned kLogical = 1u << MEP_AND | 1u << MEP_OR | 1u << MEP_XOR;
  const TypeClass kind = type_facts(dtype).kind;
  if (kind == TypeClass::kNone || op < MEP_SUM || op > MEP_XOR) return false;
  unsigned ops = kArithmetic | 1u << MEP_AVG;
  if (kind == TypeClass::kInteger) ops = kArithmetic | kLogical;
  if (kind == TypeClass::kBool) ops = kLogical | 1u << MEP_MIN | 1u << MEP_MAX;
  return (ops >> op & 1u) != 0;
}

// out[i] = inputs[0][i] op inputs[1][i] op ..., left to right; n_inputs >= 1. f16, bf16 and fp8 are
// accumulated in float32 and rounded once; f32 and f64 in their own type. Integers wrap. min and
// max: NaN if any input is NaN; -0 < +0. avg divides the sum by `divisor` (the number of
// contributors, below 2^24) before the rounding; other operators ignore it. Any byte of a bool that
// is not 0 is true; results are 0 or 1. `out` may be one of the inputs, in place; other overlaps
// are not allowed.
void reduce_rows(mep_dtype_t dtype, mep_op_t op, void* out, const void* const* inputs,
                 size_t n_inputs, size_t count, uint32_t divisor);

// f16, bf16, e4m3, e5m2 (or f32: a copy with canonical NaN) to float32 and back, one rounding.
void convert_to_f32(mep_dtype_t dtype, const void* in, float* out, size_t count);
void convert_from_f32(mep_dtype_t dtype, const float* in, void* out, size_t count);

// Quantises one row of `hidden` values of `dtype` (f16, bf16, f32) to the values and scales of
// `format`. For each group a = max(1e-4f, max|x|), NaN not counted. x NaN gives q NaN, 0x7f. A group
// with an infinity has a scale that is not finite, so that all of it is NaN when dequantised: an
// overflow is never hidden. For e4m3, whose largest value is 448:
//   float32  scale = a * (1.0f / 448); q = e4m3(x * (448 / a)). With an infinity the scale is +inf
//            and finite values become 0.
//   UE8M0    powers of two, stored as their biased exponent: e = ceil(log2(a * (1.0f / 448)));
//            q = e4m3(x * 2^-e); scale byte = e + 127. With e = 120 a magnitude that rounds to 256
//            becomes 240, since 2^128 is infinite: finite stays finite. With an infinity the scale
//            byte is 255, which is NaN.
// scales: format.scales(hidden) of them. x must not overlap the outputs.
void quantize_row(const RowFormat& format, mep_dtype_t dtype, const void* x, size_t hidden, void* q,
                  void* scales, bool non_temporal);

// acc = +0; for each row in order acc = acc + (weights[r] * rows[r][i]), product and sum each
// rounded to float32; out[i] = acc rounded once to `dtype` (f16, bf16, f32). weights NULL: all 1. A
// bias is one more row of weight 1. n_rows 0 gives zeros. `out` may be one of the rows. Rows up to
// 16 are streamed at memory speed; more are right, and slower.
void combine_rows(mep_dtype_t dtype, void* out, const void* const* rows, const float* weights,
                  size_t n_rows, size_t hidden, bool non_temporal);

// memcpy, past the caches when `non_temporal`. The ranges must not overlap.
void copy_row(void* destination, const void* source, size_t bytes, bool non_temporal);

}  // namespace mep
