// The input of ranks and the result that must come out: types and operators as mep.h describes them, computed plainly,
// one element at a time, in rank order. Nothing here is the library's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mep.h"
#include "support/random_numbers.hpp"

namespace mep::programs {

using mep_reference::mix;
using mep_reference::RandomStream;
using mep_reference::scrambled;

size_t bytes_of(mep_dtype_t dtype);
bool is_float(mep_dtype_t dtype);
// Whether mep.h has this pair.
bool is_pair(mep_dtype_t dtype, mep_op_t op);

// Element `index` of the contribution that `key` names, at `to`.
void make_element(mep_dtype_t dtype, uint64_t key, uint64_t index, uint8_t* to);
void make_elements(mep_dtype_t dtype, uint64_t key, size_t count, uint8_t* to);

// One element of the result of the contributions at inputs[i], in their order.
void reduce_element(mep_dtype_t dtype, mep_op_t op, const uint8_t* const* inputs,
                    size_t inputs_count, uint8_t* to);

// The same bits; any NaN is as good as another.
bool same_element(mep_dtype_t dtype, const uint8_t* a, const uint8_t* b);

// For rows of expert parallelism: the nearest value, ties to even.
void store_number(mep_dtype_t dtype, float value, uint8_t* to);
float load_number(mep_dtype_t dtype, const uint8_t* from);

uint64_t digest_of(const void* bytes, size_t count);

}  // namespace mep::programs
