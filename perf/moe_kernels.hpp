// The arithmetic of the stand-in expert and of the MPI side: plain loops that the compiler
// vectorises, one copy for AVX-512, one for AVX2, one for the rest, chosen when the program starts.
// The loops round as MEP does (products and sums apart, one rounding at the end), so both sides
// give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moe_problem.hpp"

namespace mep::perf {

// y[rows][hidden] = x * factor, all bfloat16.
void scale_rows_bf16(const uint16_t* x, size_t rows, size_t hidden, float factor, uint16_t* y);

// The same from e4m3 values with one scale per 128; the strides are bytes from row to row.
void scale_rows_fp8(const uint8_t* x, size_t x_stride, const uint8_t* scales, size_t scales_stride,
                    size_t rows, size_t hidden, float factor, uint16_t* y);

// out[hidden] = sum over k of weights[k] * rows[k][hidden], in ascending k.
void weighted_sum_bf16(const uint16_t* const* rows, const float* weights, size_t count,
                       size_t hidden, uint16_t* out);

// High throughput: y[hidden] of one received row = sum over its local experts of weight * expert's output, in ascending
// k. The row has no expert where topk_idx is -1.
void run_local_experts(const MoeShape& shape, const void* x, const float* scales,
                       const int32_t* topk_idx, const float* topk_weights, uint16_t* y);

// values[hidden] and scales[ceil(hidden / 128)] of a bfloat16 row.
void quantize_row(const uint16_t* x, size_t hidden, uint8_t* values, float* scales);

// result[i] += input[i], each sum rounded.
void add_bf16(const uint16_t* input, uint16_t* result, size_t count);

}  // namespace mep::perf
