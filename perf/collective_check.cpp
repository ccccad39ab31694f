// Inputs are small whole numbers, so sums are exact until the one rounding at the end and the
// expected bits do not depend on the order of additions.
#include "collective_check.hpp"

#include <cstring>

#include "support/coll_reference.hpp"

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

// The element's bits, low bytes first.
uint64_t encode(mep_dtype_t dtype, double value) {
  uint64_t bits = 0;
  mep_reference::store_number(dtype, value, &bits);
  return bits;
}

uint64_t encode(mep_dtype_t dtype, int64_t value) {
  if (mep_reference::is_float(dtype)) return encode(dtype, static_cast<double>(value));
  return static_cast<uint64_t>(value);
}

uint64_t expected_bits(const CollectiveCall& call, Source source, uint32_t round) {
  if (source.rank != kAllRanks) {
    return encode(call.dtype, input_value(call, source.rank, source.index, round));
  }
  int64_t total = input_value(call, 0, source.index, round);
  for (int rank = 1; rank < call.size; ++rank) {
    total = mep_reference::combine_integers(call.reduction, total,
                                            input_value(call, rank, source.index, round));
  }
  if (call.reduction != MEP_AVG) return encode(call.dtype, total);
  if (call.dtype == MEP_FLOAT64) return encode(call.dtype, static_cast<double>(total) / call.size);
  // The average is a float32 division, then rounded once to the type.
  return encode(call.dtype, double{static_cast<float>(total) / static_cast<float>(call.size)});
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
