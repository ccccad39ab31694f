// The results that collectives have to give, written from the rules alone, slow and plain: small floats are decoded
// by their definition and encoded by looking for the nearest code; who gives and gets how much is said as
// include/mep.h says it, and not taken from the library's table.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "mep.h"
#include "protocol/operations.hpp"

namespace gpu_test {

struct SmallKind {
  int bits;
  int mantissa;
  int bias;
  bool infinity;
  uint32_t nan;
};

inline SmallKind small_kind(mep_dtype_t dtype) {
  if (dtype == MEP_FLOAT16) return {16, 10, 15, true, 0x7e00};
  if (dtype == MEP_BFLOAT16) return {16, 7, 127, true, 0x7fc0};
  if (dtype == MEP_FLOAT8_E4M3) return {8, 3, 7, false, 0x7f};
  return {8, 2, 15, true, 0x7f};
}

inline double decode_by_definition(const SmallKind& kind, uint32_t code) {
  const uint32_t magnitude = code & ((1u << (kind.bits - 1)) - 1);
  const uint32_t exponent = magnitude >> kind.mantissa;
  const uint32_t fraction = magnitude & ((1u << kind.mantissa) - 1);
  const uint32_t top = (1u << (kind.bits - 1 - kind.mantissa)) - 1;
  const double sign = (code >> (kind.bits - 1)) != 0 ? -1.0 : 1.0;
  if (kind.infinity && exponent == top) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (!kind.infinity && magnitude == (1u << (kind.bits - 1)) - 1) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - kind.bias - kind.mantissa);
  return sign * std::ldexp(fraction + (1u << kind.mantissa),
                           static_cast<int>(exponent) - kind.bias - kind.mantissa);
}

inline double decode_small(const SmallKind& kind, uint32_t code) {
  static std::vector<double> tables[4];
  std::vector<double>& table = tables[kind.bits == 16 ? kind.mantissa / 10 : 2 + kind.mantissa / 3];
  if (table.empty()) {
    for (uint32_t i = 0; i < 1u << kind.bits; ++i) table.push_back(decode_by_definition(kind, i));
  }
  return table[code];
}

// Codes of magnitudes rise with their values, so the nearest two are found by bisection.
inline uint32_t encode_small(const SmallKind& kind, float value) {
  if (std::isnan(value)) return kind.nan;
  const uint32_t sign = std::signbit(value) ? 1u << (kind.bits - 1) : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  uint32_t largest = (1u << (kind.bits - 1)) - 2;  // e4m3: below its NaN
  if (kind.infinity) largest = (((1u << (kind.bits - 1 - kind.mantissa)) - 1) << kind.mantissa) - 1;
  uint32_t low = 0, high = largest;
  while (low < high) {
    const uint32_t middle = (low + high + 1) / 2;
    if (decode_small(kind, middle) <= magnitude) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const double below = decode_small(kind, low);
  // Beyond the largest: as if one more step of the same size existed.
  const double step = below - decode_small(kind, low == 0 ? 0 : low - 1);
  const double above = low == largest ? below + step : decode_small(kind, low + 1);
  const bool up = magnitude - below > above - magnitude ||
                  (magnitude - below == above - magnitude && low % 2 == 1);
  if (low != largest || !up) return sign | (up ? low + 1 : low);
  return sign | (kind.infinity ? largest + 1 : largest);
}

template <typename Float>
Float reduce_two(mep_op_t op, Float a, Float b) {
  if (op == MEP_MIN || op == MEP_MAX) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<Float>::quiet_NaN();
    if (a == 0 && b == 0) {
      const bool negative =
          op == MEP_MIN ? std::signbit(a) || std::signbit(b) : std::signbit(a) && std::signbit(b);
      return negative ? -Float{0} : Float{0};
    }
    return op == MEP_MIN ? std::min(a, b) : std::max(a, b);
  }
  const Float product = a * b;
  const Float sum = a + b;
  return op == MEP_PROD ? product : sum;
}

template <typename Integer>
Integer reduce_whole(mep_op_t op, Integer a, Integer b) {
  const auto wide_a = static_cast<uint64_t>(a), wide_b = static_cast<uint64_t>(b);
  switch (op) {
    case MEP_SUM:
      return static_cast<Integer>(wide_a + wide_b);
    case MEP_PROD:
      return static_cast<Integer>(wide_a * wide_b);
    case MEP_MIN:
      return a < b ? a : b;
    case MEP_MAX:
      return a > b ? a : b;
    case MEP_AND:
      return static_cast<Integer>(wide_a & wide_b);
    case MEP_OR:
      return static_cast<Integer>(wide_a | wide_b);
    default:
      return static_cast<Integer>(wide_a ^ wide_b);
  }
}

using Inputs = std::vector<std::vector<uint8_t>>;

template <typename Integer>
void reduce_wholes(mep_op_t op, const Inputs& inputs, std::vector<uint8_t>* out) {
  for (size_t i = 0; i < out->size(); i += sizeof(Integer)) {
    Integer total{}, next{};
    std::memcpy(&total, &inputs[0][i], sizeof total);
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      std::memcpy(&next, &inputs[rank][i], sizeof next);
      total = reduce_whole(op, total, next);
    }
    std::memcpy(&(*out)[i], &total, sizeof total);
  }
}

template <typename Float, typename Bits>
void reduce_floats(mep_op_t op, const Inputs& inputs, Bits nan, std::vector<uint8_t>* out) {
  for (size_t i = 0; i < out->size(); i += sizeof(Float)) {
    Float total{}, next{};
    std::memcpy(&total, &inputs[0][i], sizeof total);
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      std::memcpy(&next, &inputs[rank][i], sizeof next);
      total = reduce_two(op, total, next);
    }
    if (op == MEP_AVG) total = total / static_cast<Float>(inputs.size());
    if (std::isnan(total)) {
      std::memcpy(&(*out)[i], &nan, sizeof nan);
    } else {
      std::memcpy(&(*out)[i], &total, sizeof total);
    }
  }
}

inline void reduce_small(mep_dtype_t dtype, mep_op_t op, const Inputs& inputs,
                         std::vector<uint8_t>* out) {
  const SmallKind kind = small_kind(dtype);
  const size_t element = static_cast<size_t>(kind.bits) / 8;
  const auto value = [&](size_t rank, size_t i) {
    uint32_t code = 0;
    std::memcpy(&code, &inputs[rank][i], element);
    return static_cast<float>(decode_small(kind, code));
  };
  for (size_t i = 0; i < out->size(); i += element) {
    float total = value(0, i);
    for (size_t rank = 1; rank < inputs.size(); ++rank)
      total = reduce_two(op, total, value(rank, i));
    if (op == MEP_AVG) total = total / static_cast<float>(inputs.size());
    const uint32_t code = encode_small(kind, total);
    std::memcpy(&(*out)[i], &code, element);
  }
}

inline void reduce_truth(mep_op_t op, const Inputs& inputs, std::vector<uint8_t>* out) {
  for (size_t i = 0; i < out->size(); ++i) {
    bool total = inputs[0][i] != 0;
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      const bool next = inputs[rank][i] != 0;
      if (op == MEP_AND || op == MEP_MIN) total = total && next;
      if (op == MEP_OR || op == MEP_MAX) total = total || next;
      if (op == MEP_XOR) total = total != next;
    }
    (*out)[i] = total ? 1 : 0;
  }
}

// Contributions in rank order.
inline std::vector<uint8_t> reduce_oracle(mep_dtype_t dtype, mep_op_t op, const Inputs& inputs) {
  std::vector<uint8_t> out(inputs[0].size());
  switch (dtype) {
    case MEP_INT8:
      reduce_wholes<int8_t>(op, inputs, &out);
      break;
    case MEP_UINT8:
      reduce_wholes<uint8_t>(op, inputs, &out);
      break;
    case MEP_INT16:
      reduce_wholes<int16_t>(op, inputs, &out);
      break;
    case MEP_UINT16:
      reduce_wholes<uint16_t>(op, inputs, &out);
      break;
    case MEP_INT32:
      reduce_wholes<int32_t>(op, inputs, &out);
      break;
    case MEP_UINT32:
      reduce_wholes<uint32_t>(op, inputs, &out);
      break;
    case MEP_INT64:
      reduce_wholes<int64_t>(op, inputs, &out);
      break;
    case MEP_UINT64:
      reduce_wholes<uint64_t>(op, inputs, &out);
      break;
    case MEP_FLOAT32:
      reduce_floats<float>(op, inputs, uint32_t{0x7fc00000}, &out);
      break;
    case MEP_FLOAT64:
      reduce_floats<double>(op, inputs, uint64_t{0x7ff8000000000000}, &out);
      break;
    case MEP_BOOL:
      reduce_truth(op, inputs, &out);
      break;
    default:
      reduce_small(dtype, op, inputs, &out);
      break;
  }
  return out;
}

inline size_t size_of_type(mep_dtype_t dtype) {
  switch (dtype) {
    case MEP_INT16:
    case MEP_UINT16:
    case MEP_FLOAT16:
    case MEP_BFLOAT16:
      return 2;
    case MEP_INT32:
    case MEP_UINT32:
    case MEP_FLOAT32:
      return 4;
    case MEP_INT64:
    case MEP_UINT64:
    case MEP_FLOAT64:
      return 8;
    default:
      return 1;
  }
}

inline bool pair_exists(mep_dtype_t dtype, mep_op_t op) {
  const bool logical = op == MEP_AND || op == MEP_OR || op == MEP_XOR;
  if (dtype == MEP_BOOL) return logical || op == MEP_MIN || op == MEP_MAX;
  if (dtype <= MEP_UINT64) return op != MEP_AVG;
  return !logical;
}

// Blocks in the buffers of a rank; 0: it has none.
struct Shares {
  size_t send;
  size_t receive;
};

inline Shares shares_of(mep::Collective kind, bool is_root, size_t ranks) {
  using mep::Collective;
  switch (kind) {
    case Collective::k_barrier:
      return {0, 0};
    case Collective::k_broadcast:
      return {is_root ? size_t{1} : size_t{0}, 1};
    case Collective::k_allgather:
      return {1, ranks};
    case Collective::k_allreduce:
      return {1, 1};
    case Collective::k_reduce:
      return {1, is_root ? size_t{1} : size_t{0}};
    case Collective::k_gather:
      return {1, is_root ? ranks : 0};
    case Collective::k_scatter:
      return {is_root ? ranks : 0, 1};
    case Collective::k_reduce_scatter:
      return {ranks, 1};
    default:
      return {ranks, ranks};
  }
}

inline bool has_root(mep::Collective kind) {
  return kind == mep::Collective::k_broadcast || kind == mep::Collective::k_reduce ||
         kind == mep::Collective::k_gather || kind == mep::Collective::k_scatter;
}

// The form with a length for each block; the kind itself where there is none.
inline mep::Collective counted_form(mep::Collective kind) {
  using mep::Collective;
  if (kind == Collective::k_allgather) return Collective::k_allgatherv;
  if (kind == Collective::k_gather) return Collective::k_gatherv;
  if (kind == Collective::k_scatter) return Collective::k_scatterv;
  return kind == Collective::k_alltoall ? Collective::k_alltoallv : kind;
}

inline bool reduces(mep::Collective kind) {
  return kind == mep::Collective::k_allreduce || kind == mep::Collective::k_reduce ||
         kind == mep::Collective::k_reduce_scatter;
}

// On which ranks an operation may have its input in place; nowhere: there is no such form.
inline bool can_be_in_place(mep::Collective kind, bool is_root) {
  if (kind == mep::Collective::k_barrier || kind == mep::Collective::k_alltoall) return false;
  return is_root || !has_root(kind);
}

// One operation's blocks and the places where they have to arrive. `sends` are the send buffers, by rank; `members`
// are the ranks that take part, rising.
class Arrivals {
 public:
  Arrivals(mep::Collective kind, mep_dtype_t dtype, mep_op_t op, uint32_t root, size_t block_bytes,
           const Inputs& sends, const std::vector<uint32_t>& members)
      : kind_(kind),
        dtype_(dtype),
        op_(op),
        root_(root),
        bytes_(block_bytes),
        sends_(sends),
        members_(members) {}

  // Puts block `block` of the receive buffer of `rank` to `to`. False: nothing arrives there.
  bool put(uint32_t rank, size_t block, uint8_t* to) {
    using mep::Collective;
    if (bytes_ == 0) return false;
    if (shares_of(kind_, rank == root_, sends_.size()).receive <= block) return false;
    switch (kind_) {
      case Collective::k_broadcast:
        return copy(root_, 0, to);
      case Collective::k_allgather:
      case Collective::k_gather:
        return copy(block, 0, to);
      case Collective::k_scatter:
        return copy(root_, rank, to);
      case Collective::k_alltoall:
        return copy(block, rank, to);
      default:
        break;
    }
    const std::vector<uint8_t>& sum = reduced(kind_ == Collective::k_reduce_scatter ? rank : 0);
    std::memcpy(to, sum.data(), bytes_);
    return true;
  }

 private:
  bool copy(size_t source, size_t block, uint8_t* to) const {
    if (std::find(members_.begin(), members_.end(), source) == members_.end()) return false;
    std::memcpy(to, sends_[source].data() + block * bytes_, bytes_);
    return true;
  }
  const std::vector<uint8_t>& reduced(size_t block) {
    const auto known = sums_.find(block);
    if (known != sums_.end()) return known->second;
    Inputs blocks;
    for (const uint32_t member : members_) {
      const auto begin = sends_[member].begin() + static_cast<std::ptrdiff_t>(block * bytes_);
      blocks.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(bytes_));
    }
    return sums_.emplace(block, reduce_oracle(dtype_, op_, blocks)).first->second;
  }

  mep::Collective kind_;
  mep_dtype_t dtype_;
  mep_op_t op_;
  uint32_t root_;
  size_t bytes_;
  const Inputs& sends_;
  const std::vector<uint32_t>& members_;
  std::map<size_t, std::vector<uint8_t>> sums_;
};

}  // namespace gpu_test
