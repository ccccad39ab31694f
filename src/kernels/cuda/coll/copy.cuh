// Moving bytes between the caller's buffers, which need no alignment, and windows, whose places begin
// at multiples of 16 bytes and end in padding: windows are always read and written 16 bytes at a time.
#pragma once

#include <cstdint>

#include "kernels/cuda/coll/run.cuh"

namespace mep::device {

constexpr uint64_t kPackStride = uint64_t{kDataThreads} * 16;
constexpr uint32_t kPacksUnderWay = 8;  // loads of one thread: enough that few CTAs fill a link

__device__ inline bool is_aligned(const void* memory) {
  return (reinterpret_cast<uintptr_t>(memory) & 15) == 0;
}

// Up to 16 bytes, one by one; beyond `count` they are 0, or stay. Not inlined: packs that need this are few.
__device__ __noinline__ inline uint4 load_bytes(const uint8_t* from, uint32_t count) {
  uint32_t words[4] = {};
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) {
    if (i < count) words[i / 4] |= uint32_t{from[i]} << (i % 4 * 8);
  }
  return {words[0], words[1], words[2], words[3]};
}
__device__ __noinline__ inline void store_bytes(uint8_t* to, uint32_t count, uint4 value) {
  const uint32_t words[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) {
    if (i < count) to[i] = static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8));
  }
}

// 16 bytes at `from + offset` of a buffer of `bytes`; what lies beyond its end is 0.
__device__ inline uint4 load_user(const uint8_t* from, uint64_t offset, uint64_t bytes,
                                  bool aligned) {
  if (aligned && offset + 16 <= bytes) return *reinterpret_cast<const uint4*>(from + offset);
  return load_bytes(from + offset,
                    bytes - offset < 16 ? static_cast<uint32_t>(bytes - offset) : 16);
}

__device__ inline void store_user(uint8_t* to, uint64_t offset, uint64_t bytes, bool aligned,
                                  const uint4& value) {
  if (aligned && offset + 16 <= bytes) {
    *reinterpret_cast<uint4*>(to + offset) = value;
    return;
  }
  store_bytes(to + offset, bytes - offset < 16 ? static_cast<uint32_t>(bytes - offset) : 16, value);
}

// Past the first-level cache, which does not see what others write.
__device__ inline uint4 load_window(const uint8_t* from) {
  return __ldcg(reinterpret_cast<const uint4*>(from));
}
__device__ inline void store_window(uint8_t* to, const uint4& value) {
  __stcg(reinterpret_cast<uint4*>(to), value);
}

// Packs that one thread has under way: at first, first + stride, .. as far as they are below `end`; kWhole: all are.
template <uint32_t kPacks, bool kWhole>
struct PackGroup {
  uint64_t first, stride, end;
  uint4 packs[kPacks];

  static __device__ bool fits(uint64_t first, uint64_t stride, uint64_t end) {
    return first + (kPacks - 1) * stride < end;
  }
  template <typename Load>
  __device__ void load(Load&& load) {
#pragma unroll
    for (uint32_t k = 0; k < kPacks; ++k) {
      if (kWhole || first + k * stride < end) packs[k] = load(first + k * stride);
    }
  }
  template <typename Store>
  __device__ void store(Store&& store) const {
#pragma unroll
    for (uint32_t k = 0; k < kPacks; ++k) {
      if (kWhole || first + k * stride < end) store(first + k * stride, packs[k]);
    }
  }
  // To the place of byte 0 in a window.
  __device__ void store_to(uint8_t* to) const {
    store([&](uint64_t i, const uint4& pack) { store_window(to + i, pack); });
  }
};

// The bytes of a message that each CTA has, in whole packs.
__device__ inline uint64_t part_of_cta(uint64_t bytes) {
  return ((bytes + gridDim.x - 1) / gridDim.x + 15) / 16 * 16;
}

// The team moves the packs, of 16 bytes, that begin in [begin, end): load(at) gives one, store(group) takes some.
template <typename Load, typename Store>
__device__ inline void move_groups(const Team& team, uint64_t begin, uint64_t end, Load&& load,
                                   Store&& store) {
  using Many = PackGroup<kPacksUnderWay, true>;
  using Few = PackGroup<kPacksUnderWay / 2, false>;
  const uint64_t stride = team.stride();
  uint64_t i = begin + team.first();
#pragma unroll 1
  for (; Many::fits(i, stride, end); i += kPacksUnderWay * stride) {
    Many group{i, stride, end, {}};
    group.load(load);
    store(group);
  }
#pragma unroll 1
  for (; i < end; i += kPacksUnderWay / 2 * stride) {
    Few group{i, stride, end, {}};
    group.load(load);
    store(group);
  }
}
// store(at, pack) takes one.
template <typename Load, typename Store>
__device__ inline void move_packs(const Team& team, uint64_t begin, uint64_t end, Load&& load,
                                  Store&& store) {
  move_groups(team, begin, end, load, [&](const auto& group) { group.store(store); });
}

// A part [begin, end) of a step whose first byte is byte `at` of a buffer of `bytes`: up to here its packs are
// whole and, if the buffer is aligned, read and written as such.
__device__ inline uint64_t whole_packs_end(uint64_t begin, uint64_t end, uint64_t at,
                                           uint64_t bytes, bool aligned) {
  const uint64_t whole = (bytes - at) / 16 * 16;
  if (!aligned || whole < begin) return begin;
  return whole < end ? whole : end;
}

// From the caller's buffer: store(group) gets the packs of [begin, end).
template <typename Store>
__device__ inline void move_groups_from_user(const Team& team, const uint8_t* from, uint64_t at,
                                             uint64_t bytes, uint64_t begin, uint64_t end,
                                             Store&& store) {
  if (begin >= end) return;
  const uint64_t whole = whole_packs_end(begin, end, at, bytes, is_aligned(from));
  move_groups(
      team, begin, whole,
      [&](uint64_t i) { return *reinterpret_cast<const uint4*>(from + at + i); }, store);
  PackGroup<1, false> last{whole + team.first(), team.stride(), end, {}};
#pragma unroll 1
  for (; last.first < end; last.first += last.stride) {
    last.load([&](uint64_t i) { return load_user(from, at + i, bytes, false); });
    store(last);
  }
}
// store(i, pack) gets one.
template <typename Store>
__device__ inline void move_from_user(const Team& team, const uint8_t* from, uint64_t at,
                                      uint64_t bytes, uint64_t begin, uint64_t end, Store&& store) {
  move_groups_from_user(team, from, at, bytes, begin, end,
                        [&](const auto& group) { group.store(store); });
}

// From a window's place to the caller's buffer.
__device__ inline void move_to_user(const Team& team, const uint8_t* from, uint8_t* to, uint64_t at,
                                    uint64_t bytes, uint64_t begin, uint64_t end) {
  if (begin >= end) return;
  const uint64_t whole = whole_packs_end(begin, end, at, bytes, is_aligned(to));
  move_packs(
      team, begin, whole, [&](uint64_t i) { return load_window(from + i); },
      [&](uint64_t i, const uint4& pack) { *reinterpret_cast<uint4*>(to + at + i) = pack; });
  for (uint64_t i = whole + team.first(); i < end; i += team.stride()) {
    store_user(to, at + i, bytes, false, load_window(from + i));
  }
}

// From one of the caller's buffers to the same place of another.
__device__ inline void move_own(const Team& team, const uint8_t* from, uint8_t* to, uint64_t at,
                                uint64_t bytes, uint64_t begin, uint64_t end) {
  if (from == to) return;
  const bool aligned = is_aligned(to);
  move_from_user(team, from, at, bytes, begin, end, [&](uint64_t i, const uint4& pack) {
    store_user(to, at + i, bytes, aligned, pack);
  });
}

}  // namespace mep::device
