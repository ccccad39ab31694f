// Inputs are small whole numbers, so sums are exact until the one rounding at the end and the
// expected bits do not depend on the order of additions.
#include "collective_check.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "minifloat.hpp"
#include "support/random_numbers.hpp"
#include "support/type_reference.hpp"

namespace mep::perf {
namespace {

constexpr uint8_t kPoison = 0xa5;

// 0 .. 127 for bit operations, 0 or 1 for bool, 1 .. 3 otherwise (few factors 2 in a product, so
// that it stays in range of every type).
int64_t input_value(const CollectiveCall& call, int rank, size_t index, uint32_t round) {
  const uint64_t mix = mep_reference::mix(index, static_cast<uint64_t>(rank), round);
  if (call.dtype == MEP_BOOL) return static_cast<int64_t>(mix & 1);
  switch (call.reduction) {
    case MEP_AND:
    case MEP_OR:
    case MEP_XOR:
      return static_cast<int64_t>(mix & 127);
    case MEP_PROD:
      return rank < 3 ? static_cast<int64_t>(1 + (mix & 1)) : 1;
    default:
      return static_cast<int64_t>(1 + mix % 3);
  }
}

int64_t combine(mep_op_t reduction, int64_t left, int64_t right) {
  switch (reduction) {
    case MEP_PROD:
      return left * right;
    case MEP_MIN:
      return std::min(left, right);
    case MEP_MAX:
      return std::max(left, right);
    case MEP_AND:
      return left & right;
    case MEP_OR:
      return left | right;
    case MEP_XOR:
      return left ^ right;
    default:
      return left + right;
  }
}

FloatFormat small_format(mep_dtype_t dtype) {
  const mep_reference::FloatFormat format = mep_reference::float_format(dtype);
  const int exponent_bits = format.bits - 1 - format.mantissa;
  // All ones but the last place are the largest value where all ones are NaN.
  const double fraction = std::ldexp(format.infinities ? 1 : 2, -format.mantissa);
  const double largest = std::ldexp(2 - fraction, format.bias + (format.infinities ? 0 : 1));
  return {exponent_bits, format.mantissa, largest, format.infinities};
}

// The element's bits, low bytes first.
uint64_t encode_float_type(mep_dtype_t dtype, double value) {
  if (dtype == MEP_FLOAT64) return std::bit_cast<uint64_t>(value);
  if (dtype == MEP_FLOAT32) return std::bit_cast<uint32_t>(static_cast<float>(value));
  return encode_float(small_format(dtype), value);
}

uint64_t encode(mep_dtype_t dtype, int64_t value) {
  if (mep_reference::is_float(dtype)) return encode_float_type(dtype, static_cast<double>(value));
  return static_cast<uint64_t>(value);
}

uint64_t expected_bits(const CollectiveCall& call, Source source, uint32_t round) {
  if (source.rank != kAllRanks) {
    return encode(call.dtype, input_value(call, source.rank, source.index, round));
  }
  int64_t total = input_value(call, 0, source.index, round);
  for (int rank = 1; rank < call.size; ++rank) {
    total = combine(call.reduction, total, input_value(call, rank, source.index, round));
  }
  if (call.reduction != MEP_AVG) return encode(call.dtype, total);
  if (call.dtype == MEP_FLOAT64) {
    return encode_float_type(call.dtype, static_cast<double>(total) / call.size);
  }
  // The average is a float32 division, then rounded once to the type.
  const float average = static_cast<float>(total) / static_cast<float>(call.size);
  return encode_float_type(call.dtype, average);
}

}  // namespace

void fill_collective(const CollectiveCall& call, uint32_t round) {
  if (!call.entry->has_data()) return;
  const size_t width = mep_dtype_size(call.dtype);
  const size_t sent = call.count * static_cast<size_t>(call.entry->send_blocks(call.size));
  auto* send = static_cast<uint8_t*>(call.send);
  for (size_t i = 0; i < sent; ++i) {
    const uint64_t bits = encode(call.dtype, input_value(call, call.rank, i, round));
    std::memcpy(send + i * width, &bits, width);
  }
  const size_t received = call.count * static_cast<size_t>(call.entry->recv_blocks(call.size));
  std::memset(call.recv, kPoison, received * width);
}

uint64_t count_collective_errors(const CollectiveCall& call, uint32_t round) {
  if (!call.entry->has_data()) return 0;
  const size_t width = mep_dtype_size(call.dtype);
  const size_t received = call.count * static_cast<size_t>(call.entry->recv_blocks(call.size));
  const auto* recv = static_cast<const uint8_t*>(call.recv);
  uint64_t poison = 0;
  std::memset(&poison, kPoison, sizeof poison);
  uint64_t errors = 0;
  for (size_t i = 0; i < received; ++i) {
    const Source source = call.entry->source(call, i);
    const uint64_t bits = source.rank == kNobody ? poison : expected_bits(call, source, round);
    if (std::memcmp(recv + i * width, &bits, width) != 0) ++errors;
  }
  return errors;
}

}  // namespace mep::perf
