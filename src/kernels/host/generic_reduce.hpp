// The reductions of one SIMD level: one pass over the inputs, accumulators in registers.
// Unnamed namespace for the reason given in simd.hpp.
#pragma once

#include "kernels/host/formats.hpp"

namespace mep {
namespace {

// Integer arithmetic wraps: it is done on the unsigned type of the same width.
template <class T>
struct WrapType {
  using Type = T;
};
template <>
struct WrapType<int8_t> {
  using Type = uint8_t;
};
template <>
struct WrapType<int16_t> {
  using Type = uint16_t;
};
template <>
struct WrapType<int32_t> {
  using Type = uint32_t;
};
template <>
struct WrapType<int64_t> {
  using Type = uint64_t;
};
// The differences between integer and floating vectors.
template <class T>
struct IntegerMath {
  using V = Vector<T>;
  using Wrapped = Vector<typename WrapType<T>::Type>;
  static V sum(V a, V b) { return as<V>(as<Wrapped>(a) + as<Wrapped>(b)); }
  static V product(V a, V b) { return as<V>(as<Wrapped>(a) * as<Wrapped>(b)); }
  static V smaller(V a, V b) { return b < a ? b : a; }
  static V larger(V a, V b) { return a < b ? b : a; }
};

template <class T, class Int>
struct FloatMath {
  using V = Vector<T>;
  using Bits = Vector<Int>;
  static V sum(V a, V b) { return a + b; }
  static V product(V a, V b) { return a * b; }
  // Both orders of a comparison agree unless the operands are zeros or NaN: of -0 and +0, "or"
  // keeps the sign and "and" drops it. A NaN operand replaces the result.
  static V smaller(V a, V b) {
    const V one = a < b ? a : b;
    const V other = b < a ? b : a;
    return keep_nan(a, b, as<V>(as<Bits>(one) | as<Bits>(other)));
  }
  static V larger(V a, V b) {
    const V one = a > b ? a : b;
    const V other = b > a ? b : a;
    return keep_nan(a, b, as<V>(as<Bits>(one) & as<Bits>(other)));
  }
  static V keep_nan(V a, V b, V result) {
    result = a != a ? a : result;
    return b != b ? b : result;
  }
  static V average(V sum, uint32_t divisor) { return sum / static_cast<T>(divisor); }
};

// Operators: how two vectors become one, and what becomes of the last.
template <class Math>
struct SumOp {
  using V = typename Math::V;
  static V combine(V a, V b) { return Math::sum(a, b); }
  static V finish(V total, uint32_t) { return total; }
};
template <class Math>
struct AverageOp {
  using V = typename Math::V;
  static V combine(V a, V b) { return Math::sum(a, b); }
  static V finish(V total, uint32_t divisor) { return Math::average(total, divisor); }
};
template <class Math>
struct ProductOp {
  using V = typename Math::V;
  static V combine(V a, V b) { return Math::product(a, b); }
  static V finish(V total, uint32_t) { return total; }
};
template <class Math>
struct MinOp {
  using V = typename Math::V;
  static V combine(V a, V b) { return Math::smaller(a, b); }
  static V finish(V total, uint32_t) { return total; }
};
template <class Math>
struct MaxOp {
  using V = typename Math::V;
  static V combine(V a, V b) { return Math::larger(a, b); }
  static V finish(V total, uint32_t) { return total; }
};
template <class Math>
struct AndOp {
  using V = typename Math::V;
  static V combine(V a, V b) { return a & b; }
  static V finish(V total, uint32_t) { return total; }
};
template <class Math>
struct OrOp {
  using V = typename Math::V;
  static V combine(V a, V b) { return a | b; }
  static V finish(V total, uint32_t) { return total; }
};
template <class Math>
struct XorOp {
  using V = typename Math::V;
  static V combine(V a, V b) { return a ^ b; }
  static V finish(V total, uint32_t) { return total; }
};

inline const uint8_t* input_bytes(const void* const* inputs, size_t input, size_t offset) {
  return static_cast<const uint8_t*>(inputs[input]) + offset;
}

// kVectors vectors of every input, beginning `offset` bytes into each.
template <class F, class Op, size_t kVectors>
inline void reduce_block(uint8_t* out, const void* const* inputs, size_t n_inputs, size_t offset,
                         uint32_t divisor) {
  typename F::V total[kVectors];
  const uint8_t* first = input_bytes(inputs, 0, offset);
  MEP_UNROLL
  for (size_t v = 0; v < kVectors; ++v) total[v] = F::load(first + v * F::kBytes);
  for (size_t input = 1; input < n_inputs; ++input) {
    const uint8_t* next = input_bytes(inputs, input, offset);
    MEP_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      total[v] = Op::combine(total[v], F::load(next + v * F::kBytes));
    }
  }
  MEP_UNROLL
  for (size_t v = 0; v < kVectors; ++v) {
    F::store(out + offset + v * F::kBytes, Op::finish(total[v], divisor));
  }
}

template <class F, class Op>
inline void reduce_tail(uint8_t* out, const void* const* inputs, size_t n_inputs, size_t offset,
                        size_t bytes, uint32_t divisor) {
  typename F::V total = load_partial<F>(input_bytes(inputs, 0, offset), bytes);
  for (size_t input = 1; input < n_inputs; ++input) {
    total = Op::combine(total, load_partial<F>(input_bytes(inputs, input, offset), bytes));
  }
  store_partial<F>(out + offset, Op::finish(total, divisor), bytes);
}

template <class F, class Op>
void reduce(void* out, const void* const* inputs, size_t n_inputs, size_t count, uint32_t divisor) {
  constexpr size_t kBlockVectors = 4;
  uint8_t* to = static_cast<uint8_t*>(out);
  const size_t bytes = count * F::kElement;
  size_t offset = 0;
  for (; offset + kBlockVectors * F::kBytes <= bytes; offset += kBlockVectors * F::kBytes) {
    reduce_block<F, Op, kBlockVectors>(to, inputs, n_inputs, offset, divisor);
  }
  for (; offset + F::kBytes <= bytes; offset += F::kBytes) {
    reduce_block<F, Op, 1>(to, inputs, n_inputs, offset, divisor);
  }
  if (offset < bytes) reduce_tail<F, Op>(to, inputs, n_inputs, offset, bytes - offset, divisor);
}

}  // namespace
}  // namespace mep
