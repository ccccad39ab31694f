#include "core/coll/partial_sums.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/host/kernels.hpp"
#include "protocol/types.hpp"

namespace mep {
namespace {

// Converted inputs are worked on in pieces that stay in the first cache.
constexpr size_t kPiece = 1024;

bool is_accumulated_wider(mep_dtype_t dtype) {
  const TypeFacts facts = type_facts(dtype);
  return facts.kind == TypeClass::kFloat && facts.bytes < sizeof(float);
}

// A partial average is a sum.
mep_op_t partial_op(mep_op_t op) {
  return op == MEP_AVG ? mep_op_t{MEP_SUM} : op;
}

struct Piece {
  const void* const* inputs;
  size_t n_inputs;
  size_t first;  // element
  size_t count;
};

// *total* = before op inputs, in float32; `last_op` combines the last input.
void reduce_piece(mep_dtype_t dtype, mep_op_t op, mep_op_t last_op, const float* before,
                  const Piece& piece, uint32_t divisor, float* total) {
  alignas(64) float next[kPiece];
  const size_t element = mep_dtype_size(dtype);
  const auto convert = [&](size_t input, float* out) {
    const auto* from = static_cast<const std::byte*>(piece.inputs[input]);
    convert_to_f32(dtype, from + piece.first * element, out, piece.count);
  };
  size_t input = 0;
  if (before != nullptr) {
    std::memcpy(total, before + piece.first, piece.count * sizeof(float));
  } else {
    convert(input++, total);
  }
  for (; input < piece.n_inputs; ++input) {
    convert(input, next);
    const void* const rows[] = {total, next};
    reduce_rows(MEP_FLOAT32, input + 1 == piece.n_inputs ? last_op : op, total, rows, 2,
                piece.count, divisor);
  }
}

// In its own type `before` is one more row, the first.
void reduce_plain(mep_dtype_t dtype, mep_op_t op, const void* before, const void* const* inputs,
                  size_t n_inputs, size_t count, uint32_t divisor, void* out) {
  if (before == nullptr) {
    reduce_rows(dtype, op, out, inputs, n_inputs, count, divisor);
    return;
  }
  // Not kept for the thread: a destructor there needs memory that glibc ends the process without.
  std::vector<const void*> rows;
  rows.reserve(n_inputs + 1);
  rows.push_back(before);
  rows.insert(rows.end(), inputs, inputs + n_inputs);
  reduce_rows(dtype, op, out, rows.data(), rows.size(), count, divisor);
}

}  // namespace

size_t partial_sum_bytes(mep_dtype_t dtype) {
  return is_accumulated_wider(dtype) ? sizeof(float) : mep_dtype_size(dtype);
}

void reduce_partly(mep_dtype_t dtype, mep_op_t op, const void* before, const void* const* inputs,
                   size_t n_inputs, size_t count, void* sums) {
  const mep_op_t partly = partial_op(op);
  if (!is_accumulated_wider(dtype)) {
    reduce_plain(dtype, partly, before, inputs, n_inputs, count, 1, sums);
    return;
  }
  alignas(64) float total[kPiece];
  for (size_t first = 0; first < count; first += kPiece) {
    const Piece piece{inputs, n_inputs, first, std::min(kPiece, count - first)};
    reduce_piece(dtype, partly, partly, static_cast<const float*>(before), piece, 1, total);
    std::memcpy(static_cast<float*>(sums) + first, total, piece.count * sizeof(float));
  }
}

void reduce_finally(mep_dtype_t dtype, mep_op_t op, const void* before, const void* const* inputs,
                    size_t n_inputs, size_t count, uint32_t divisor, void* result) {
  if (!is_accumulated_wider(dtype)) {
    reduce_plain(dtype, op, before, inputs, n_inputs, count, divisor, result);
    return;
  }
  alignas(64) float total[kPiece];
  const size_t element = mep_dtype_size(dtype);
  for (size_t first = 0; first < count; first += kPiece) {
    const Piece piece{inputs, n_inputs, first, std::min(kPiece, count - first)};
    reduce_piece(dtype, partial_op(op), op, static_cast<const float*>(before), piece, divisor,
                 total);
    convert_from_f32(dtype, total, static_cast<std::byte*>(result) + first * element, piece.count);
  }
}

}  // namespace mep
