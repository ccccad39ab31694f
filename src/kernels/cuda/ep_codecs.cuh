// A warp's piece of a token's row on its way out: read from the caller's memory, quantised if the wire
// wants it, put into the warp's place in shared memory, and from there copied to every target.
//
// From sm_90 on the copies are bulk copies, which the GPU's copy engine makes while the warp reads the next
// piece: each is one instruction of one lane, whole lines go out, and no register waits for a store. Earlier
// GPUs store 16 bytes a lane. Either way a piece may be changed after await_piece_read(), and its copies
// are ordered before what follows after await_copies().
#pragma once

#include "kernels/cuda/ep_convert.cuh"

namespace mep::device {

constexpr uint32_t kUnitBytes = kWarpThreads * 16;  // of the wire: what a warp converts at one time
constexpr uint32_t kPieceUnits = 4;
constexpr uint32_t kPieceBytes = kPieceUnits * kUnitBytes;
constexpr uint32_t kPieceScales = kPieceBytes / kScaleValues;  // scales are for rows of bytes only
constexpr uint32_t kUnitScales = kPieceScales / kPieceUnits;

struct alignas(16) Piece {
  uint4 row[kPieceBytes / 16];
  uint32_t scales[kPieceScales];  // each of g.scale_bytes, packed
};

// Where one copy of a token's row goes.
struct RowTarget {
  std::byte* row;
  std::byte* scales;
};

__host__ __device__ inline uint32_t pieces_of_row(const EpGeometry& g) {
  return (g.wire_row + kPieceBytes - 1) / kPieceBytes;
}

__device__ inline void keep_scale(const EpGeometry& g, uint32_t index, uint32_t scale, Piece* to) {
  if (g.scale_bytes == 4) {
    to->scales[index] = scale;
  } else {
    reinterpret_cast<uint8_t*>(to->scales)[index] = static_cast<uint8_t>(scale);
  }
}

// --- Codecs: one warp's unit from the caller's row to its place in the piece ----------------------------

// The wire has the type of x.
struct CopyCodec {
  static constexpr uint32_t kInputBytes = 1;  // of a byte on the wire
  static constexpr uint32_t kUnitsAtOnce = kPieceUnits;
  struct Values {
    uint4 bits;
    uint32_t scale;
  };
  static __device__ void load(const DispatchArgs& a, uint32_t token, uint32_t unit, uint32_t lane,
                              Values* values) {
    const uint32_t offset = unit * kUnitBytes + lane * 16;
    if (offset < a.g.wire_row) values->bits = load_once(a.x + token * a.x_stride + offset);
    const uint32_t group = unit * kUnitScales + lane;
    if (lane >= kUnitScales || group >= a.g.groups) return;
    const std::byte* scales = a.x_scales + token * a.x_scales_stride;
    values->scale = a.g.scale_bytes == 4 ? reinterpret_cast<const uint32_t*>(scales)[group]
                                         : static_cast<uint32_t>(scales[group]);
  }
  static __device__ void stage(const DispatchArgs& a, uint32_t unit, uint32_t lane,
                               const Values& values, Piece* to) {
    const uint32_t place = unit % kPieceUnits;
    to->row[place * kWarpThreads + lane] = values.bits;
    if (a.g.groups == 0 || lane >= kUnitScales) return;
    keep_scale(a.g, place * kUnitScales + lane, values.scale, to);
  }
};

// e4m3 on the wire. A lane has sixteen values, eight lanes one group of 128.
template <class Input, class Scale>
struct QuantizeCodec {
  static constexpr uint32_t kInputBytes = Input::kBytes;
  static constexpr uint32_t kValues = 16;
  static constexpr uint32_t kGroupLanes = kScaleValues / kValues;
  static constexpr uint32_t kLoads = kValues / Input::kLanes;
  static constexpr uint32_t kUnitsAtOnce = 4 / kLoads;
  static_assert(kUnitScales * kGroupLanes == kWarpThreads);
  struct Values {
    uint4 bits[kLoads];
  };
  static __device__ void load(const DispatchArgs& a, uint32_t token, uint32_t unit, uint32_t lane,
                              Values* values) {
    const uint32_t first = (unit * kWarpThreads + lane) * kValues;
    const std::byte* from = a.x + token * a.x_stride + first * Input::kBytes;
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
      values->bits[i] = {0, 0, 0, 0};
      if (first < a.g.sizes.hidden) values->bits[i] = load_once(from + 16 * i);
    }
  }
  static __device__ void stage(const DispatchArgs& a, uint32_t unit, uint32_t lane,
                               const Values& values, Piece* to) {
    float x[kValues];
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
      Input::unpack(values.bits[i], x + i * Input::kLanes);
    }
    float maximum = 1e-4f;
#pragma unroll
    for (uint32_t i = 0; i < kValues; ++i) maximum = fmaxf(maximum, fabsf(x[i]));  // skips NaN
#pragma unroll
    for (uint32_t step = kGroupLanes / 2; step != 0; step /= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, step));
    }
    uint32_t scale = 0;
    const float factor = Scale::put(maximum, &scale);
    const uint2 low = quantize_eight(x, factor);
    const uint2 high = quantize_eight(x + 8, factor);
    const uint32_t place = unit % kPieceUnits;
    to->row[place * kWarpThreads + lane] = {low.x, low.y, high.x, high.y};
    if (lane % kGroupLanes == 0) {
      Scale::store(reinterpret_cast<std::byte*>(to->scales) +
                       (place * kUnitScales + lane / kGroupLanes) * Scale::kBytes,
                   scale);
    }
  }
};

// --- Pieces -----------------------------------------------------------------------------------------

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define MEP_EP_BULK_COPIES
#endif

// Until the copies that this thread began have read their piece.
__device__ inline void await_piece_read() {
#ifdef MEP_EP_BULK_COPIES
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}
// Until the copies that this thread began are written, and ordered before what follows.
__device__ inline void await_copies() {
#ifdef MEP_EP_BULK_COPIES
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

// To the L2, for a stage_piece() that comes later.
template <class Codec>
__device__ inline void prefetch_piece(const DispatchArgs& a, uint32_t token, uint32_t piece,
                                      uint32_t lane) {
  constexpr uint32_t kLine = 128;
  constexpr uint32_t kBytes = kPieceBytes * Codec::kInputBytes;
  const uint32_t end = min(a.g.input_row, (piece + 1) * kBytes);
  const std::byte* row = a.x + token * a.x_stride;
  for (uint32_t at = piece * kBytes + lane * kLine; at < end; at += kWarpThreads * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row + at));
  }
}

// By a warp, which has begun to copy what was there before.
template <class Codec>
__device__ inline void stage_piece(const DispatchArgs& a, uint32_t token, uint32_t piece,
                                   uint32_t lane, Piece* to) {
  constexpr uint32_t kAtOnce = Codec::kUnitsAtOnce;
  const uint32_t first = piece * kPieceUnits;
  const uint32_t units = min(kPieceUnits, (a.g.wire_row + kUnitBytes - 1) / kUnitBytes - first);
#pragma unroll
  for (uint32_t base = 0; base < kPieceUnits; base += kAtOnce) {
    typename Codec::Values values[kAtOnce]{};
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (base + i < units) Codec::load(a, token, first + base + i, lane, &values[i]);
    }
    if (base == 0) {
      await_piece_read();
      __syncwarp();
    }
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (base + i < units) Codec::stage(a, first + base + i, lane, values[i], to);
    }
  }
}

// The scales of a piece: 16 bytes a lane if they lie together and are aligned.
__device__ inline void copy_scales(const DispatchArgs& a, uint32_t piece, uint32_t lane,
                                   const Piece& from, const RowTarget* targets, uint32_t top_k) {
  const uint32_t first = piece * kPieceScales;
  const uint32_t count = min(kPieceScales, a.g.groups - first);
  if (a.g.sizes.column_major == 0 && a.g.scale_row_step % 16 == 0) {
    constexpr uint32_t kParts = sizeof(from.scales) / 16;
    const uint32_t bytes = count * a.g.scale_bytes;
    for (uint32_t i = lane; i < top_k * kParts; i += kWarpThreads) {
      const uint32_t at = i % kParts * 16;
      std::byte* to = targets[i / kParts].scales;
      if (to == nullptr || at >= bytes) continue;
      *reinterpret_cast<uint4*>(to + first * a.g.scale_bytes + at) =
          reinterpret_cast<const uint4*>(from.scales)[i % kParts];
    }
    return;
  }
  for (uint32_t i = lane; i < top_k * kPieceScales; i += kWarpThreads) {
    const uint32_t index = i % kPieceScales;
    std::byte* to = targets[i / kPieceScales].scales;
    if (to == nullptr || index >= count) continue;
    to += (first + index) * a.g.scale_group_step;
    if (a.g.scale_bytes == 4) {
      *reinterpret_cast<uint32_t*>(to) = from.scales[index];
    } else {
      *to = reinterpret_cast<const std::byte*>(from.scales)[index];
    }
  }
}

// Begins to copy a staged piece to every target. By a warp.
__device__ inline void copy_piece(const DispatchArgs& a, uint32_t piece, uint32_t lane,
                                  const Piece& from, const RowTarget* targets, uint32_t top_k) {
  const uint32_t offset = piece * kPieceBytes;
  const uint32_t bytes = min(kPieceBytes, a.g.wire_row - offset);
#ifdef MEP_EP_BULK_COPIES
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(from.row));
  for (uint32_t k = lane; k < top_k; k += kWarpThreads) {
    std::byte* row = targets[k].row;
    if (row == nullptr) continue;
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(row + offset),
                 "r"(shared), "r"(bytes)
                 : "memory");
  }
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#else
  __syncwarp();
  for (uint32_t k = 0; k < top_k; ++k) {
    std::byte* row = targets[k].row;
    if (row == nullptr) continue;
#pragma unroll
    for (uint32_t unit = 0; unit < kPieceUnits; ++unit) {
      const uint32_t at = unit * kUnitBytes + lane * 16;
      if (at < bytes) *reinterpret_cast<uint4*>(row + offset + at) = from.row[at / 16];
    }
  }
#endif
  if (a.g.groups != 0) copy_scales(a, piece, lane, from, targets, top_k);
  __syncwarp();
}

}  // namespace mep::device
