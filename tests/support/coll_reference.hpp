// The input of ranks and the results that collectives must give, computed plainly: one element at a time, in the order
// of the inputs. Shares no code with the library; even the table of reductions is written again.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "mep.h"
#include "support/random_numbers.hpp"
#include "support/small_floats.hpp"
#include "support/type_reference.hpp"

namespace mep_reference {

template <class Float>
Float combine_floats(mep_op_t op, Float a, Float b) {
  // volatile: each operation is rounded by itself.
  volatile Float result = 0;
  if (op == MEP_SUM || op == MEP_AVG) {
    result = a + b;
  } else if (op == MEP_PROD) {
    result = a * b;
  } else if (std::isnan(a) || std::isnan(b)) {
    result = std::numeric_limits<Float>::quiet_NaN();
  } else {
    const bool is_less = a < b || (a == b && std::signbit(a));  // -0 lies below +0
    result = (op == MEP_MIN) == is_less ? a : b;
  }
  return result;
}

template <class Int>
Int combine_integers(mep_op_t op, Int a, Int b) {
  // Bits beyond the type's are cut off again; a sign that fills them is wanted.
  const auto x = static_cast<uint64_t>(static_cast<int64_t>(a));
  const auto y = static_cast<uint64_t>(static_cast<int64_t>(b));
  switch (op) {
    case MEP_SUM:
      return static_cast<Int>(x + y);
    case MEP_PROD:
      return static_cast<Int>(x * y);
    case MEP_MIN:
      return std::min(a, b);
    case MEP_MAX:
      return std::max(a, b);
    case MEP_AND:
      return static_cast<Int>(x & y);
    case MEP_OR:
      return static_cast<Int>(x | y);
    default:
      return static_cast<Int>(x ^ y);
  }
}

// The inputs' elements in their order; divisor: of an average.
inline void reduce(mep_dtype_t dtype, mep_op_t op, const uint8_t* const* inputs, size_t n_inputs,
                   size_t count, size_t divisor, uint8_t* out) {
  const size_t bytes = element_bytes(dtype);
  const auto run = [&](const auto& value, const auto& combine, const auto& put) {
    for (size_t at = 0; at < count * bytes; at += bytes) {
      auto total = value(inputs[0] + at);
      for (size_t i = 1; i < n_inputs; ++i) total = combine(op, total, value(inputs[i] + at));
      put(out + at, total);
    }
  };
  const auto run_floats = [&](const auto& value) {
    using Float = std::decay_t<decltype(value(out))>;
    run(value, combine_floats<Float>, [&](uint8_t* to, Float total) {
      const volatile Float mean = total / static_cast<Float>(divisor);
      store_number(dtype, op == MEP_AVG ? mean : total, to);
    });
  };
  with_integer(dtype, [&](auto zero) {
    using Int = decltype(zero);
    run(load<Int>, combine_integers<Int>, store<Int>);
  });
  if (dtype == MEP_BOOL) {
    const auto truth = [](const uint8_t* from) { return static_cast<uint8_t>(*from != 0 ? 1 : 0); };
    run(truth, combine_integers<uint8_t>, store<uint8_t>);
  }
  if (dtype == MEP_FLOAT64)
    return run_floats([](const uint8_t* from) { return load<double>(from); });
  if (is_float(dtype)) run_floats([&](const uint8_t* from) { return load_number(dtype, from); });
}

using Bytes = std::vector<uint8_t>;

inline Bytes reduced(mep_dtype_t dtype, mep_op_t op, const std::vector<const uint8_t*>& inputs,
                     size_t count) {
  Bytes result(count * element_bytes(dtype));
  reduce(dtype, op, inputs.data(), inputs.size(), count, inputs.size(), result.data());
  return result;
}

// One block of a receive buffer: a block that `source` gives, or the reduction of that block of all; else there is none.
struct Content {
  enum How { kNothing, kCopy, kReduced } how = kNothing;
  size_t source = 0;
  size_t block = 0;
};

// Block `block` of what `rank` gets. Collective: an enumeration of the names of mep.h.
template <class Collective>
Content content_of(Collective kind, size_t root, size_t rank, size_t size, size_t block) {
  const bool is_root = rank == root;
  const bool is_first = block == 0;
  const auto content = [](bool exists, Content there) { return exists ? there : Content{}; };
  switch (kind) {
    case Collective::k_broadcast:
      return content(is_first, {Content::kCopy, root, 0});
    case Collective::k_scatter:
    case Collective::k_scatterv:
      return content(is_first, {Content::kCopy, root, rank});
    case Collective::k_allgather:
    case Collective::k_allgatherv:
      return content(block < size, {Content::kCopy, block, 0});
    case Collective::k_gather:
    case Collective::k_gatherv:
      return content(is_root && block < size, {Content::kCopy, block, 0});
    case Collective::k_alltoall:
    case Collective::k_alltoallv:
      return content(block < size, {Content::kCopy, block, rank});
    case Collective::k_allreduce:
      return content(is_first, {Content::kReduced, 0, 0});
    case Collective::k_reduce:
      return content(is_root && is_first, {Content::kReduced, 0, 0});
    case Collective::k_reduce_scatter:
    case Collective::k_reduce_scatterv:
      return content(is_first, {Content::kReduced, 0, rank});
    default:
      return {};
  }
}

// Mostly of a size around 1, so that sums depend on order and rounding; some zeros of both signs, some at the borders
// of the format, and some of any bits.
inline uint64_t float_bits(uint64_t random, size_t bytes, int mantissa, int bias) {
  const uint64_t sign = (random >> 63) << (bytes * 8 - 1);
  const uint64_t normal = uint64_t{1} << mantissa;  // the smallest
  const uint64_t infinity = (uint64_t{1} << (bytes * 8 - 1)) - normal;
  const uint64_t kind = random >> 56 & 0x7f;
  if (kind < 4) return sign;
  if (kind < 10) return scrambled(random);
  if (kind < 14) {
    const uint64_t borders[] = {
        1, normal - 1, normal, infinity - 1, infinity, infinity + 1, infinity + normal / 2};
    return sign | borders[random % std::size(borders)];
  }
  const uint64_t exponent = static_cast<uint64_t>(bias - 3) + (random >> 52 & 7);
  return sign | exponent << mantissa | (random & (normal - 1));
}

// Element `index` of the contribution that `key` names, at `to`.
inline void make_element(mep_dtype_t dtype, uint64_t key, uint64_t index, uint8_t* to) {
  uint64_t bits = scrambled(key + index * 0x9e3779b97f4a7c15u);
  const size_t bytes = element_bytes(dtype);
  if (dtype == MEP_FLOAT64) {
    bits = float_bits(bits, bytes, 52, 1023);
  } else if (dtype == MEP_FLOAT32) {
    bits = float_bits(bits, bytes, 23, 127);
  } else if (const SmallFormat* format = small_format(dtype); format != nullptr) {
    bits = float_bits(bits, bytes, format->mantissa(), format->bias());
  } else if (dtype == MEP_BOOL) {
    // Truth values are 0 and 1, and now and then another byte that is not 0.
    bits = bits >> 60 == 15 ? bits & 0xff : bits & 1;
  }
  std::memcpy(to, &bits, bytes);
}
inline void make_elements(mep_dtype_t dtype, uint64_t key, size_t count, uint8_t* to) {
  const size_t bytes = element_bytes(dtype);
  for (size_t i = 0; i < count; ++i) make_element(dtype, key, i, to + i * bytes);
}

}  // namespace mep_reference
