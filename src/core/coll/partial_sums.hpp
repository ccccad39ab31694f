// A reduction in rank order that goes on from host to host: each adds its ranks' inputs to what the
// hosts before have made. Partial sums are kept in the type in which reduce_rows() accumulates: float32
// for floats of 8 and 16 bits, else the type itself. So the last host's result has the bits that one
// reduce_rows() over all inputs gives.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mep.h"

namespace mep {

// Bytes of one element's partial sum.
size_t partial_sum_bytes(mep_dtype_t dtype);

// sums[i] = before[i] op inputs[0][i] op inputs[1][i] ...; before null: there is none, and at least one
// input. `sums` may be `before`.
void reduce_partly(mep_dtype_t dtype, mep_op_t op, const void* before, const void* const* inputs,
                   size_t n_inputs, size_t count, void* sums);

// The same with the last inputs: divides for MEP_AVG, and rounds to `dtype`. At least one input, and
// `before`.
void reduce_finally(mep_dtype_t dtype, mep_op_t op, const void* before, const void* const* inputs,
                    size_t n_inputs, size_t count, uint32_t divisor, void* result);

}  // namespace mep
