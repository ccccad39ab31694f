// The host's side of the collective kernels: sizes, loading, launching.
#include <cuda_runtime.h>

#include <algorithm>

#include "base/status.hpp"
#include "kernels/cuda/coll/allreduce.cuh"
#include "kernels/cuda/coll/kernels.hpp"
#include "kernels/cuda/coll/messages.hpp"

namespace mep::device {
namespace {

// Found by trying sizes on two GPUs with NVLink, and ranks that share them.
constexpr uint64_t kSlotAreaBytes = 16u << 20;  // of one step, all sources together
constexpr uint64_t kMostSlotBytes = 8u << 20;
constexpr uint64_t kTileBytes = 256u << 10;  // of one two-shot step and CTA, all members together
constexpr uint64_t kLeastPieceBytes = 4u << 10;
constexpr uint32_t kFewCtas = 16;

// Up to here an allreduce is exchanged whole. Between two ranks that sends no more bytes than slices do; with more
// it does, so it ends earlier.
constexpr uint64_t one_shot_limit(uint32_t ranks) {
  return ranks <= 2 ? 2u << 20 : (2u << 20) / ranks;
}

// The longest message in packets, which are twice as long as it; and of more than two ranks what is not reduced, all
// ranks together: more is sooner there without tags. Places of packets lie on 16 bytes.
constexpr uint64_t packet_limit(uint32_t ranks) {
  return ranks <= 2 ? 256u << 10 : std::min((1u << 20) / ranks / 16 * 16, 128u << 10);
}
constexpr uint64_t kShortExchangeBytes = 512u << 10;
constexpr uint64_t kHostPackets = 4u << 10;  // of a message, windows on the host
// Allreduces and reduces of more than two ranks that go in packets.
constexpr uint64_t kShortReduceBytes = 16u << 10;
// From here on broadcasts and reduces of more than two ranks go in slices.
constexpr uint64_t kSlicedBroadcastBytes = 4u << 20;
constexpr uint64_t kSlicedReduceBytes = 32u << 20;
// Where reading in registered memory is faster than windows. With few CTAs it is for more of them.
constexpr uint64_t kPulledFrom = 2u << 20;
constexpr uint64_t kPulledTo = 8u << 20;
constexpr uint64_t kPulledBroadcastBytes = 32u << 20;
constexpr uint64_t kPulledBroadcastBytesOfFew = 4u << 20;
constexpr uint32_t kFewPullingCtas = 32;

// All lanes of all sources together, and the most of a slot. A slot has a signal each way, which takes some microseconds.
constexpr uint64_t kMessageAreaBytes = 64u << 20;
constexpr uint64_t kMostMessageChunk = 128u << 10;

// CTAs by size: one up to a limit, because more have to meet at the end, which takes a microsecond; beyond, as
// many as find work for their threads.
struct CtaRule {
  uint64_t one_up_to_bytes;
  uint64_t bytes_per_cta;
};
constexpr CtaRule exchange_rule(uint32_t ranks) {
  return {ranks <= 2 ? 16u << 10 : (32u << 10) / ranks, 8u << 10};
}
constexpr CtaRule kReduceRule{8u << 10, 4u << 10};

uint32_t choose_ctas(const CollCall& call, const CollLayout& layout) {
  if (call.kind == Collective::k_barrier) return 1;
  const CtaRule rule = facts_of(call.kind).takes_op ? kReduceRule : exchange_rule(layout.ranks);
  if (call.bytes <= rule.one_up_to_bytes) return 1;
  const uint64_t wanted = (call.bytes + rule.bytes_per_cta - 1) / rule.bytes_per_cta;
  return static_cast<uint32_t>(std::min<uint64_t>(wanted, layout.ctas));
}

[[nodiscard]] mep_result_t cuda_failed(cudaError_t error, const char* what) {
  (void)cudaGetLastError();
  const mep_result_t code =
      error == cudaErrorMemoryAllocation ? MEP_ERR_NO_MEMORY : mep_result_t{MEP_ERR_DEVICE};
  return mep::fail(code, "%s: %s", what, cudaGetErrorString(error));
}

template <typename Visit>
mep_result_t each_kernel(Visit&& visit_function) {
  const auto visit = [&](auto kernel) {
    return visit_function(reinterpret_cast<const void*>(kernel));
  };
  MEP_TRY(visit(counted_kernel()));
  for (const void* kernel : messages_kernels()) MEP_TRY(visit_function(kernel));
  MEP_TRY(visit(exchange_kernel()));
  MEP_TRY(visit(short_exchange_kernel()));
  MEP_TRY(visit(short_blocks_kernel()));
  MEP_TRY(visit(blocks_kernel()));
  MEP_TRY(visit(long_broadcast_kernel()));
  for (mep_dtype_t dtype = MEP_INT8; dtype < kTypeSlots; ++dtype) {
    MEP_TRY(visit(short_reduce_kernel(dtype)));
    MEP_TRY(visit(one_shot_kernel(dtype)));
    MEP_TRY(visit(two_shot_kernel(dtype)));
    MEP_TRY(visit(reduce_scatter_kernel(dtype)));
    MEP_TRY(visit(counted_reduce_kernel(dtype)));
    MEP_TRY(visit(long_reduce_kernel(dtype)));
  }
  return MEP_SUCCESS;
}

// A hash of all that must be the same on all ranks.
uint32_t fingerprint_of(const CollCall& call) {
  uint64_t mix = 0;
  for (const uint64_t part : {static_cast<uint64_t>(call.kind), uint64_t{call.dtype},
                              static_cast<uint64_t>(call.op), uint64_t{call.root}, call.bytes}) {
    mix = (mix ^ part) * 0x9e3779b97f4a7c15u;
    mix ^= mix >> 29;
  }
  return static_cast<uint32_t>(mix * 0x9e3779b97f4a7c15u >> (64 - kFingerprintBits));
}

// True for operations that go in packets.
bool is_short(const CollCall& call, const CollLayout& layout) {
  if (call.bytes > layout.packet_place_bytes / 2) return false;
  if (layout.ranks <= 2) return true;
  return coll_path(call.kind) == CollPath::kReduce
             ? call.bytes <= kShortReduceBytes
             : call.bytes * layout.ranks <= kShortExchangeBytes;
}

// True for broadcasts and reduces that go in slices.
bool is_sliced(const CollCall& call, const CollLayout& layout) {
  if (layout.ranks <= 2) return false;
  if (call.kind == Collective::k_broadcast) return call.bytes >= layout.sliced_broadcast_bytes;
  return call.kind == Collective::k_reduce && call.bytes >= layout.sliced_reduce_bytes;
}

CollKernel kernel_of(const CollCall& call, const CollLayout& layout) {
  switch (coll_path(call.kind)) {
    case CollPath::kExchange:
      if (is_short(call, layout)) return short_exchange_kernel();
      return is_sliced(call, layout) ? long_broadcast_kernel() : exchange_kernel();
    case CollPath::kBlocks:
      return is_short(call, layout) ? short_blocks_kernel() : blocks_kernel();
    case CollPath::kReduceBlocks:
      return is_short(call, layout) ? short_reduce_kernel(call.dtype)
                                    : reduce_scatter_kernel(call.dtype);
    case CollPath::kReduce:
      if (is_short(call, layout)) return short_reduce_kernel(call.dtype);
      if (is_one_way(call, layout)) return reduce_scatter_kernel(call.dtype);
      if (is_sliced(call, layout)) return long_reduce_kernel(call.dtype);
      return coll_is_one_shot(layout, call.bytes) ? one_shot_kernel(call.dtype)
                                                  : two_shot_kernel(call.dtype);
    case CollPath::kCounted:  // another type: counted_kernel_of()
    case CollPath::kNone:
      break;
  }
  return nullptr;
}

CountedKernel counted_kernel_of(const CollCall& call) {
  return facts_of(call.kind).takes_op ? counted_reduce_kernel(call.dtype) : counted_kernel();
}

[[nodiscard]] mep_result_t no_type(mep_dtype_t dtype) {
  return mep::fail(MEP_ERR_INVALID_ARGUMENT, "dtype %u is no type", dtype);
}

}  // namespace

CollLayout make_coll_layout(uint32_t ranks, uint32_t ctas, bool on_host) {
  CollLayout layout{};
  layout.ranks = ranks;
  layout.ctas = std::min(ctas, kMaxCollCtas);
  layout.slot_bytes = std::min(kSlotAreaBytes / ranks, kMostSlotBytes) / 4096 * 4096;
  layout.packet_place_bytes = 2 * packet_limit(ranks);
  // Each packet crosses the bus as a write of its own.
  if (on_host) layout.packet_place_bytes = std::min(layout.packet_place_bytes, 2 * kHostPackets);
  const uint64_t slots = uint64_t{ranks} * kMessageLanes * kMessageSlots;
  layout.message_chunk_bytes = std::min(kMessageAreaBytes / slots, kMostMessageChunk) / 16 * 16;
  layout.sliced_broadcast_bytes = kSlicedBroadcastBytes;
  layout.sliced_reduce_bytes = kSlicedReduceBytes;
  const bool few = layout.ctas <= kFewPullingCtas;
  layout.pulled_from = kPulledFrom;
  layout.pulled_to = kPulledTo;
  layout.pulled_alltoall_to = few ? UINT64_MAX : kPulledTo;
  layout.pulled_broadcast_bytes = few ? kPulledBroadcastBytesOfFew : kPulledBroadcastBytes;
  layout.piece_bytes = std::max(kTileBytes / std::max(ranks, 2u) / 16 * 16, kLeastPieceBytes);
  return layout;
}

uint32_t most_coll_ctas(uint32_t capacity, uint32_t ranks_on_device) {
  const uint32_t share = capacity / std::max(ranks_on_device, 1u);
  return std::clamp(std::max(share / 2, std::min(share, kFewCtas)), 1u, kMaxCollCtas);
}

bool coll_is_one_shot(const CollLayout& layout, uint64_t bytes) {
  return bytes <= std::min(one_shot_limit(layout.ranks), layout.slot_bytes);
}

mep_result_t load_coll_kernels() {
  return each_kernel([](const void* kernel) -> mep_result_t {
    cudaFuncAttributes attributes{};
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    return error == cudaSuccess ? mep_result_t{MEP_SUCCESS}
                                : cuda_failed(error, "a collective kernel cannot be loaded");
  });
}

mep_result_t coll_cta_capacity(int device, uint32_t* ctas) {
  int processors = 0;
  cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return cuda_failed(error, "cudaDeviceGetAttribute");
  int least = INT32_MAX;
  MEP_TRY(each_kernel([&](const void* kernel) -> mep_result_t {
    int blocks = 0;
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kCollThreads, 0);
    if (error != cudaSuccess) return cuda_failed(error, "the occupancy of a collective kernel");
    least = std::min(least, blocks);
    return MEP_SUCCESS;
  }));
  *ctas = static_cast<uint32_t>(least * processors);
  return MEP_SUCCESS;
}

mep_result_t launch_coll(const CollCall& call, CollState* state, const CollLayout& layout,
                         uint32_t ctas, void* stream, const CollBlocks* blocks) {
  if (coll_path(call.kind) == CollPath::kNone) {
    return mep::fail(MEP_ERR_UNSUPPORTED, "no kernel carries out %s (kind %u)", name_of(call.kind),
                     static_cast<uint32_t>(call.kind));
  }
  CollCall marked = call;
  marked.fingerprint = fingerprint_of(call);
  marked.is_rooted = facts_of(call.kind).is_rooted ? 1 : 0;
  auto* const on = static_cast<cudaStream_t>(stream);
  if (coll_path(call.kind) == CollPath::kCounted) {
    if (blocks == nullptr) return mep::fail(MEP_ERR_INTERNAL, "a call with counts has no blocks");
    // All ranks have as many CTAs, whatever each knows of the lengths.
    ctas = call.bytes != 0 ? choose_ctas(call, layout) : layout.ctas;
    const CountedKernel kernel = counted_kernel_of(call);
    if (kernel == nullptr) return no_type(call.dtype);
    launch_kernel(kernel, ctas, kCollThreads, 0, on, state, marked, *blocks);
  } else {
    const CollKernel kernel = kernel_of(call, layout);
    if (kernel == nullptr) return no_type(call.dtype);
    if (ctas == 0) ctas = choose_ctas(call, layout);
    launch_kernel(kernel, ctas, kCollThreads, 0, on, state, marked);
  }
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return cuda_failed(error, "a collective cannot be launched");
  return MEP_SUCCESS;
}

}  // namespace mep::device
