// High throughput's dispatch through send queues: layout or replay, pack, exchange. The rows of this rank for another lie
// side by side in the outbox and in the inbox there, so one request carries them. unpack stands in queued_dispatch.cu.
#include "kernels/cuda/ep/instances.hpp"
#include "kernels/cuda/ep/queued_exchange.cuh"
#include "kernels/cuda/ep/throughput_rows.cuh"

namespace mep::device {

// --- Counts and rows of queues, for what both kinds of peers share --------------------------------------

// column: as in EpBase::count_word(). Behind a wait for counts_ready.
__device__ inline bool await_count(const QueuedDispatch& a, const Waiter& waiter, uint64_t use,
                                   uint32_t source, uint32_t column, uint32_t* count) {
  const bool is_own = source == a.g.sizes.rank;
  *count = is_own ? sent_counts(a, use)[source * a.g.count_words + column]
                  : inbox_count(a, use, source, column);
  return is_count(a, waiter, source, *count);
}
__device__ inline bool acquire_counts(const QueuedDispatch& /*a*/, const Waiter& /*waiter*/,
                                      uint64_t /*use*/, uint32_t /*source*/) {
  return true;
}

__device__ inline RowHome row_home(const QueuedDispatch& a, uint32_t rank, uint32_t row) {
  const uint32_t at = row - a.of_handle<uint32_t>(a.g.handle_first)[rank];
  std::byte* inbox = a.peer(rank);
  std::byte* record = a.queues.scratch + a.l.own_records + uint64_t{at} * a.l.record_bytes;
  if (inbox != nullptr) {
    record = a.record_in(inbox, row);
  } else if (rank != a.g.sizes.rank) {
    record = a.queues.outbox + a.l.sent_records +
             (uint64_t{a.sent_first()[rank]} + at) * a.l.record_bytes;
  }
  auto* topk = record + a.l.record_topk;
  return {{record + a.l.record_row, record + a.l.record_scales},
          reinterpret_cast<uint32_t*>(record),
          reinterpret_cast<uint32_t*>(record) + 1,
          reinterpret_cast<int32_t*>(topk),
          reinterpret_cast<float*>(topk) + a.g.sizes.top_k};
}

namespace {

// --- Layout, or replay ----------------------------------------------------------------------------------

// By one CTA: tells every rank what it gets of this one.
__device__ inline bool tell_rows(const QueuedDispatch& a, const Waiter& waiter, uint64_t use) {
  const uint32_t ranks = a.g.sizes.ranks;
  const uint32_t experts = a.g.sizes.local_experts;
  const uint32_t* counts = a.of_handle<uint32_t>(a.g.handle_counts);
  const uint32_t* expert_counts = a.of_handle<uint32_t>(a.g.handle_expert_counts);
  add_up(
      ranks, [&](uint32_t rank) { return counts[rank]; },
      [&](uint32_t rank, uint32_t sum) { a.sent_first()[rank] = sum; });
  uint32_t* sent = sent_counts(a, use);
  for (uint32_t i = threadIdx.x; i < ranks * a.g.count_words; i += kEpThreads) {
    const uint32_t target = i / a.g.count_words;
    const uint32_t column = i - target * a.g.count_words;
    const uint32_t count =
        column < ranks ? counts[column] : expert_counts[target * experts + column - ranks];
    sent[i] = count;
    std::byte* inbox = a.peer(target);
    if (inbox != nullptr && a.is_live(target)) {
      a.counts_in(inbox, use, a.g.sizes.rank)[column] = count;
    }
  }
  __syncthreads();
  return post_counts(a, waiter, use);
}

__global__ void __launch_bounds__(kEpThreads, 2)
    layout_kernel(const __grid_constant__ QueuedDispatch a) {
  auto* const shared = launched_shared<uint32_t>();  // LayoutShared
  __shared__ uint32_t shared_last;
  DeviceChannel& channel = a.state()->channel;
  const LayoutShared layout(a.g);
  a.read_peers();
  const Waiter waiter(a.memory.control, &channel, static_cast<uint32_t>(EpPhase::kCounts));
  if (threadIdx.x == 0) {
    peer_table().use = channel.use + 1;
    peer_table().credited = a.state()->credited != 0;
  }
  // The same for all threads: only the CTA that comes last waits, and can fail.
  const bool failed = has_failed(&channel, waiter.epoch);
  for (uint32_t place = threadIdx.x; place < a.g.places; place += kEpThreads) shared[place] = 0;
  __syncthreads();
  if (!failed) mark_throughput_chunks(a, layout, shared);
  if (!is_last_of(&channel.ticket[0], gridDim.x, &shared_last)) return;
  take_expert_counts(a);
  const uint64_t use = peer_table().use;
  const bool is_first_of_epoch = channel.epoch != waiter.epoch;
  __syncthreads();
  if (threadIdx.x == 0) {
    begin_dispatch(a, waiter.epoch, use);
    a.head()->epoch = waiter.epoch;
  }
  if (failed) return;
  test_delay(a, 2);
  if (__syncthreads_and(!is_first_of_epoch || flush_queues(a, waiter)) == 0) return;
  sum_chunks(a);
  __syncthreads();
  if (__syncthreads_and(tell_rows(a, waiter, use)) == 0) return;
  test_delay(a, 3);
  if (__syncthreads_and(await_ranks(a, waiter, a.l.counts_ready, use)) == 0) return;
  await_first_rows(a, waiter, use);
}

__global__ void __launch_bounds__(kEpThreads, 2)
    replay_kernel(const __grid_constant__ QueuedDispatch a) {
  DeviceChannel& channel = a.state()->channel;
  a.read_peers();
  const Waiter waiter(a.memory.control, &channel, static_cast<uint32_t>(EpPhase::kFreeRows));
  if (threadIdx.x == 0) {
    peer_table().use = channel.use + 1;
    peer_table().credited = a.state()->credited != 0;
    if (a.head()->epoch != waiter.epoch) {
      fail(&channel, waiter.epoch, Cause::kOldEpoch, kNobody, waiter.phase);
    }
  }
  __syncthreads();
  const bool good = __syncthreads_and(!has_failed(&channel, waiter.epoch)) != 0;
  const uint64_t use = peer_table().use;
  begin_replay(a, waiter.epoch, use);
  test_delay(a, 2);
  if (!good || __syncthreads_and(tell_rows(a, waiter, use)) == 0) return;
  test_delay(a, 3);
  await_given_back(a, waiter, use);
}

// --- Pack -----------------------------------------------------------------------------------------------

template <class Codec>
__global__ void __launch_bounds__(kEpThreads, 2)
    pack_kernel(const __grid_constant__ QueuedDispatch a) {
  a.read_peers();
  if (has_failed(&a.state()->channel, a.memory.control->epoch)) return;
  __syncthreads();
  send_throughput_rows<Codec>(a);
}

PackKernel select_pack_kernel(const EpSizes& sizes) {
  return with_codec(
      sizes, [](auto codec) -> PackKernel { return pack_kernel<typename decltype(codec)::type>; });
}

// --- Exchange -------------------------------------------------------------------------------------------

// The word comes last.
__device__ inline bool post_rows(const QueuedDispatch& a, const Waiter& waiter, uint64_t use) {
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint64_t tag = signal_tag(waiter.epoch, use);
  a.tell_stored(a.l.rows_ready, use, tag);
  return a.for_queued_peers(waiter, [&](uint32_t rank, gpu_queue::QueuePeer<> peer) {
    const uint32_t count = a.of_handle<uint32_t>(a.g.handle_counts)[rank];
    const uint64_t first = a.of_handle<uint32_t>(a.g.handle_first)[rank];
    const uint64_t from = a.l.sent_records + uint64_t{a.sent_first()[rank]} * a.l.record_bytes;
    gpu_queue::Request request{};
    if (lane == 0) {
      request = gpu_queue::write(peer.in_window(a.l.records + first * a.l.record_bytes),
                                 a.from_outbox(peer, from), count * a.l.record_bytes);
    } else if (lane == 1) {
      request = gpu_queue::write_word(a.word_at_peer(peer, a.l.rows_ready, use), tag);
    }
    const bool wants = lane == 0 ? count != 0 : lane == 1;
    return is_done(peer.post_lanes(wants, request), peer, waiter, rank);
  });
}

__global__ void __launch_bounds__(kEpThreads, 2)
    exchange_kernel(const __grid_constant__ QueuedDispatch a) {
  exchange_rows(
      a, [&](const Waiter& waiter, uint64_t use) { return post_rows(a, waiter, use); },
      [&](const Waiter& waiter, uint64_t use) { return arrange_throughput(a, waiter, use); });
}

}  // namespace

int launch_queued_throughput(const QueuedDispatch& a, uint32_t most, cudaStream_t stream) {
  if (a.sends != 0 && a.replays != 0) {
    launch_kernel(replay_kernel, 1, kEpThreads, 0, stream, a);
  } else if (a.sends != 0) {
    const size_t shared_bytes = layout_shared_bytes(a.g);
    const cudaError_t error =
        allow_shared_memory(reinterpret_cast<const void*>(layout_kernel), shared_bytes);
    if (error != cudaSuccess) return error;
    launch_kernel(layout_kernel, useful_layout_ctas(a, most), kEpThreads, shared_bytes, stream, a);
  }
  if (a.sends != 0) launch_pack(select_pack_kernel(a.g.sizes), a, most, stream);
  launch_kernel(exchange_kernel, 1, kEpThreads, 0, stream, a);
  return cudaPeekAtLastError();
}

int load_queued_throughput_kernels(const EpGeometry& g, int* ctas_per_sm) {
  const struct {
    const void* kernel;
    size_t shared_bytes;
  } kernels[] = {{reinterpret_cast<const void*>(layout_kernel), layout_shared_bytes(g)},
                 {reinterpret_cast<const void*>(replay_kernel), 0},
                 {reinterpret_cast<const void*>(select_pack_kernel(g.sizes)), 0},
                 {reinterpret_cast<const void*>(exchange_kernel), 0}};
  for (const auto& [kernel, bytes] : kernels) {
    cudaError_t error = allow_shared_memory(kernel, bytes);
    if (error == cudaSuccess) error = resident_ctas_per_sm(kernel, bytes, ctas_per_sm);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace mep::device
