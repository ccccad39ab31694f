// The codecs of dispatch: how one warp's unit comes from the caller's row to every target, as it is or
// quantised on the way.
#pragma once

#include <type_traits>

#include "kernels/cuda/ep/convert.cuh"

namespace mep::device {

// Where one copy of a token's row goes.
struct RowTarget {
  std::byte* row;
  std::byte* scales;
};

template <int kTopK, class Store>
__device__ inline void for_each_target(const RowTarget* targets, uint32_t count, Store&& store) {
  if constexpr (kTopK != 0) {
#pragma unroll
    for (int k = 0; k < kTopK; ++k) {
      const RowTarget target = targets[k];
      if (target.row != nullptr) store(target);
    }
  } else {
    for (uint32_t k = 0; k < count; ++k) {
      const RowTarget target = targets[k];
      if (target.row != nullptr) store(target);
    }
  }
}

// The wire has the type of x.
struct CopyCodec {
  static constexpr bool kIsCommon = true;
  static constexpr uint32_t kUnitBytes = kWarpThreads * 16;
  struct Values {
    uint4 bits;
  };
  // The rows to send: all that the loop over rows needs of the arguments.
  struct Source {
    const std::byte* x;
    uint64_t stride;
    const std::byte* scales;
    uint64_t scales_stride, scale_group_step;
    uint32_t row_bytes, groups, scale_bytes;

    __device__ explicit Source(const DispatchArgs& a)
        : x(a.x),
          stride(a.x_stride),
          scales(a.x_scales),
          scales_stride(a.x_scales_stride),
          scale_group_step(a.g.scale_group_step),
          row_bytes(a.g.wire_row),
          groups(a.g.groups),
          scale_bytes(a.g.scale_bytes) {}
    __device__ bool gathers() const { return false; }
  };
  static __host__ __device__ uint32_t units(const EpGeometry& g) {
    return (g.wire_row + kUnitBytes - 1) / kUnitBytes;
  }
  static __device__ void load(const Source& source, uint32_t token, uint32_t unit, uint32_t lane,
                              Values* values) {
    const uint32_t offset = unit * kUnitBytes + lane * 16;
    if (offset >= source.row_bytes) return;
    values->bits = load_once(source.x + token * source.stride + offset);
  }
  template <int kTopK>
  static __device__ void send(const Source& source, uint32_t token, uint32_t unit, uint32_t lane,
                              const Values& values, const RowTarget* targets, uint32_t count,
                              uint32_t*) {
    if (unit == 0 && source.groups != 0) send_scales<kTopK>(source, token, lane, targets, count);
    const uint32_t offset = unit * kUnitBytes + lane * 16;
    if (offset >= source.row_bytes) return;
    for_each_target<kTopK>(targets, count, [&](const RowTarget& target) {
      *reinterpret_cast<uint4*>(target.row + offset) = values.bits;
    });
  }
  template <int kTopK>
  static __device__ void send_scales(const Source& source, uint32_t token, uint32_t lane,
                                     const RowTarget* targets, uint32_t count) {
    const std::byte* scales = source.scales + token * source.scales_stride;
    for (uint32_t group = lane; group < source.groups; group += kWarpThreads) {
      const uint64_t to = group * source.scale_group_step;
      if (source.scale_bytes == 4) {
        const uint32_t scale = reinterpret_cast<const uint32_t*>(scales)[group];
        for_each_target<kTopK>(targets, count, [&](const RowTarget& target) {
          *reinterpret_cast<uint32_t*>(target.scales + to) = scale;
        });
      } else {
        const std::byte scale = scales[group];
        for_each_target<kTopK>(targets, count,
                               [&](const RowTarget& target) { target.scales[to] = scale; });
      }
    }
  }
};

// Values of one byte on the wire, with a scale for each kGroup of them. A lane has sixteen values.
template <class Input, class Scale, uint32_t kGroup>
struct QuantizeCodec {
  // Seldom used types have general kernels alone.
  static constexpr bool kIsCommon = std::is_same_v<Input, Bfloat16>;
  static constexpr uint32_t kValues = 16;
  static constexpr uint32_t kGroupLanes = kGroup / kValues;
  static constexpr uint32_t kUnitGroups = kWarpThreads / kGroupLanes;
  static constexpr uint32_t kLoads = kValues / Input::kLanes;
  static constexpr uint32_t kUnitBytes = kWarpThreads * kValues * Input::kBytes;  // of x
  struct Values {
    uint4 bits[kLoads];
  };
  struct Source {
    const std::byte* x;
    uint64_t stride;
    uint64_t scale_group_step;
    uint32_t hidden, row_bytes;
    bool whole;  // a unit's scales are 16 bytes, on 16 bytes

    __device__ explicit Source(const DispatchArgs& a)
        : x(a.x),
          stride(a.x_stride),
          scale_group_step(a.g.scale_group_step),
          hidden(a.g.sizes.hidden),
          row_bytes(a.g.input_row),
          whole(a.g.groups % kUnitGroups == 0) {}
    // Scales go to their rows by way of shared memory.
    __device__ bool gathers() const {
      static_assert(Scale::kBytes != 4 || kUnitGroups * Scale::kBytes == sizeof(uint4));
      return Scale::kBytes == 4 && scale_group_step == Scale::kBytes && whole;
    }
  };
  static __host__ __device__ uint32_t units(const EpGeometry& g) {
    return (g.sizes.hidden + kWarpThreads * kValues - 1) / (kWarpThreads * kValues);
  }
  static __device__ void load(const Source& source, uint32_t token, uint32_t unit, uint32_t lane,
                              Values* values) {
    const uint32_t first = (unit * kWarpThreads + lane) * kValues;
    const std::byte* from = source.x + token * source.stride + first * Input::kBytes;
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
      values->bits[i] = {0, 0, 0, 0};
      if (first < source.hidden) values->bits[i] = load_once(from + 16 * i);
    }
  }
  // gathered: of the unit's scales, or null.
  template <int kTopK>
  static __device__ void send(const Source& source, uint32_t, uint32_t unit, uint32_t lane,
                              const Values& values, const RowTarget* targets, uint32_t count,
                              uint32_t* gathered) {
    const uint32_t first = (unit * kWarpThreads + lane) * kValues;
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
    if (first >= source.hidden) return;  // hidden is a multiple of 16
    uint32_t scale = 0;
    const float factor = Scale::put(maximum, &scale);
    using To = typename Scale::Values;
    const uint2 low = Scale::cap(quantize_eight<To>(x, factor), scale);
    const uint2 high = Scale::cap(quantize_eight<To>(x + 8, factor), scale);
    const uint4 q = {low.x, low.y, high.x, high.y};
    for_each_target<kTopK>(targets, count, [&](const RowTarget& target) {
      *reinterpret_cast<uint4*>(target.row + first) = q;
    });
    if (lane % kGroupLanes != 0) return;
    if (gathered != nullptr) {
      gathered[lane / kGroupLanes] = scale;
      return;
    }
    const uint64_t scale_at = first / kGroup * source.scale_group_step;
    for_each_target<kTopK>(targets, count, [&](const RowTarget& target) {
      Scale::store(target.scales + scale_at, scale);
    });
  }
};

// Calls choose(std::type_identity<Codec>) with the codec of a buffer's rows.
template <class Choose>
auto with_codec(const EpSizes& sizes, Choose&& choose) {
  const auto quantizing = [&](auto input) {
    using Input = typename decltype(input)::type;
    switch (row_format(sizes.wire_type, sizes.scale_type).kind) {
#define MEP_CHOOSE(name, value, bits, scale, group, last, element, codec) \
  case RowFormatKind::k_##name:                                           \
    return choose(std::type_identity<QuantizeCodec<Input, codec, group>>{});
      MEP_SCALED_ROW_FORMATS(MEP_CHOOSE)
#undef MEP_CHOOSE
      default:
        return choose(std::type_identity<CopyCodec>{});
    }
  };
  if (sizes.wire_type == sizes.input_type) return choose(std::type_identity<CopyCodec>{});
  if (sizes.input_type == MEP_FLOAT16) return quantizing(std::type_identity<Float16>{});
  if (sizes.input_type == MEP_FLOAT32) return quantizing(std::type_identity<Float32>{});
  return quantizing(std::type_identity<Bfloat16>{});
}

}  // namespace mep::device
