// Barrier, broadcast and allgather: every rank that has something puts it into its place in all
// windows, signals, and copies what the others have put into its own. Long ones go in chunks.
#include "kernels/cuda/coll_allreduce.cuh"

namespace mep::device {
namespace {

__device__ uint64_t chunk_count(const CollLayout& layout, uint64_t bytes) {
  return bytes <= layout.slot_bytes ? 1 : (bytes + layout.slot_bytes - 1) / layout.slot_bytes;
}

__device__ void push(const CollState* state, const CollFrame& frame, const CollCall& call,
                     uint64_t slot, uint64_t at, uint64_t begin, uint64_t end) {
  const auto* send = static_cast<const uint8_t*>(call.send);
  const bool aligned = is_aligned(send);
  for (uint64_t i = begin + threadIdx.x * 16; i < end; i += kDataThreads * 16) {
    const uint4 bytes = load_user(send, at + i, call.bytes, aligned);
    for (uint32_t member = 0; member < frame.members; ++member) {
      store_window(state->windows[frame.member[member]] + slot + i, bytes);
    }
  }
}

__device__ void copy_out(const uint8_t* from, uint8_t* to, uint64_t bytes, uint64_t at,
                         uint64_t begin, uint64_t end) {
  const bool aligned = is_aligned(to);
  for (uint64_t i = begin + threadIdx.x * 16; i < end; i += kDataThreads * 16) {
    store_user(to, at + i, bytes, aligned, load_window(from + i));
  }
}

__device__ void exchange(CollState* state, const CollCall& call, CollFrame* frame) {
  const CollLayout& layout = state->layout;
  const uint64_t chunks = chunk_count(layout, call.bytes);
  const bool gives = call.kind == Collective::k_allgather ||
                     (call.kind == Collective::k_broadcast && call.root == state->rank);
  auto* receive = static_cast<uint8_t*>(call.receive);
  // The same in all chunks: a place is free when the CTA that reads it says so, and no other.
  const uint64_t longest = chunks > 1 ? layout.slot_bytes : call.bytes;
  const uint64_t part = ((longest + gridDim.x - 1) / gridDim.x + 15) / 16 * 16;
  for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
    const uint64_t step = frame->step + chunk;
    const uint64_t tag = coll_tag(*frame, step);
    const uint64_t row = layout.exchange_row(step & 1, blockIdx.x);
    const uint64_t at = chunk * layout.slot_bytes;
    const uint64_t left = call.bytes - at;
    const uint64_t length = left < layout.slot_bytes ? left : layout.slot_bytes;
    const uint64_t begin = part * blockIdx.x;
    const uint64_t end = begin + part < length ? begin + part : length;
    test_delay(state, *frame, 0);
    if (gives) push(state, *frame, call, layout.slot(step & 1, state->rank), at, begin, end);
    test_delay(state, *frame, 1);
    signal_members(state, *frame, row, tag);
    if (!wait_members(state, frame, row, layout.scatter_row(blockIdx.x), tag)) return;
    test_delay(state, *frame, 2);
    if (call.kind == Collective::k_broadcast) {
      const uint8_t* from = window_of(*frame, call.root) + layout.slot(step & 1, call.root);
      copy_out(from, receive, call.bytes, at, begin, end);
    } else if (call.kind == Collective::k_allgather) {
      for (uint32_t member = 0; member < frame->members; ++member) {
        const uint32_t source = frame->member[member];
        const uint8_t* from = window_of(*frame, source) + layout.slot(step & 1, source);
        copy_out(from, receive + source * call.bytes, call.bytes, at, begin, end);
      }
    }
  }
}

__global__ void __launch_bounds__(kCollThreads)
    exchange_entry(CollState* state, const CollCall call) {
  run_coll(
      state, call, [&](CollFrame* frame) { exchange(state, call, frame); },
      [&](const CollFrame&) { return chunk_count(state->layout, call.bytes); });
}

}  // namespace

CollKernel exchange_kernel() {
  return exchange_entry;
}

}  // namespace mep::device
