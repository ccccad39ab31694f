// Dispatch where send queues reach some peers, or all: count, pack, exchange, unpack.
#include <algorithm>

#include "kernels/cuda/ep/instances.hpp"
#include "kernels/cuda/ep/queued_exchange.cuh"
#include "kernels/cuda/ep/rows.cuh"
#include "kernels/cuda/ep/token_rows.cuh"

namespace mep::device {

// For copy_tokens_kernel. A record that carries another tag was not sent for this rank in this dispatch.
__device__ inline SentRow sent_row(const QueuedDispatch& a, uint32_t source, uint32_t token) {
  const std::byte* record =
      source == a.g.sizes.rank
          ? a.queues.scratch + a.l.own_records + uint64_t{token} * a.l.record_bytes
          : a.record_in(a.written_by(source), a.token_row(source, token));
  const uint64_t tag = signal_tag(a.memory.control->epoch, a.state()->channel.use);
  const bool is_sent = *reinterpret_cast<const uint64_t*>(record) == tag;
  return {record + a.l.record_row, record + a.l.record_scales,
          is_sent ? reinterpret_cast<const uint32_t*>(record + a.l.record_topk) : nullptr};
}

namespace {

// --- Count --------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kEpThreads, 2)
    count_kernel(const __grid_constant__ QueuedDispatch a) {
  auto* const masks = launched_shared<uint32_t>();  // [places]
  __shared__ uint32_t shared_last;
  DeviceChannel& channel = a.state()->channel;
  a.read_peers();
  const Waiter waiter(a.memory.control, &channel, static_cast<uint32_t>(EpPhase::kFreeRows));
  if (threadIdx.x == 0) {
    peer_table().use = channel.use + 1;
    peer_table().credited = a.state()->credited != 0;
    peer_table().freed = a.state()->freed == signal_tag(waiter.epoch, channel.use);
  }
  // The same for all threads: only the CTA that comes last waits, and can fail.
  const bool failed = has_failed(&channel, waiter.epoch);
  const uint32_t chunks = chunks_of(a.tokens);
  const CtaRouting routing(nullptr, masks);
  for (uint32_t chunk = blockIdx.x; chunk < chunks && !failed; chunk += gridDim.x) {
    mark_chunks<0>(a, chunk, 1, routing);
  }
  if (!is_last_of(&channel.ticket[0], gridDim.x, &shared_last)) return;
  const uint64_t use = peer_table().use;
  const bool is_first_of_epoch = channel.epoch != waiter.epoch;
  __syncthreads();
  if (threadIdx.x == 0) begin_dispatch(a, waiter.epoch, use);
  if (failed) return;
  test_delay(a, 2);
  if (__syncthreads_and(!is_first_of_epoch || flush_queues(a, waiter)) == 0) return;
  uint32_t* counts = sent_counts(a, use);
  for (uint32_t place = threadIdx.x; place < a.g.places; place += kEpThreads) {
    const uint32_t count = sum_place(a, a.local<uint32_t>(a.g.masks), place, true);
    counts[place] = count;
    for (uint32_t rank = 0; rank < a.g.sizes.ranks; ++rank) {
      std::byte* inbox = a.peer(rank);
      if (inbox == nullptr || !a.is_live(rank)) continue;
      a.counts_in(inbox, use, a.g.sizes.rank)[place] = count;
    }
  }
  __syncthreads();
  if (__syncthreads_and(post_counts(a, waiter, use)) == 0) return;
  test_delay(a, 3);
  if (!peer_table().freed) await_given_back(a, waiter, use);
}

// --- Pack ---------------------------------------------------------------------------------------------

// A token's record for the rank of a place: here for this rank itself, in the inbox of a mapped peer, or in the outbox, for
// all others. Null: no rank gets it.
__device__ inline std::byte* record_for(const QueuedDispatch& a, uint32_t token, int32_t place) {
  if (place < 0) return nullptr;
  const uint32_t rank = static_cast<uint32_t>(place) / a.g.sizes.local_experts;
  const uint64_t at = uint64_t{token} * a.l.record_bytes;
  if (rank == a.g.sizes.rank) return a.queues.scratch + a.l.own_records + at;
  if (!a.is_live(rank)) return nullptr;
  std::byte* inbox = a.peer(rank);
  return inbox != nullptr ? a.record_in(inbox, a.token_row(a.g.sizes.rank, token))
                          : a.queues.outbox + a.l.sent_records + at;
}

// Like list_targets(). By the thread of each entry: the first entry that a record holds has it as its target. Returns what
// the receiver is told of the entry.
__device__ inline uint32_t list_records(const QueuedDispatch& a, const Batch& batch) {
  const uint32_t top_k = a.g.sizes.top_k;
  if (threadIdx.x >= batch.tokens() * top_k) return kRowNotSent;
  const uint32_t entry = batch.first_token() * top_k + threadIdx.x;
  const uint32_t token = entry / top_k;
  const int32_t* places = a.of_handle<int32_t>(a.g.handle_places) + token * top_k;
  const Copy copy = *copy_of_thread();
  std::byte* record = record_for(a, token, copy.place);
  const bool goes = record != nullptr;
  for (uint32_t k = 0; k < entry - token * top_k && record != nullptr; ++k) {
    if (record_for(a, token, places[k]) == record) record = nullptr;
  }
  batch_targets()[threadIdx.x] =
      record == nullptr ? RowTarget{nullptr, nullptr}
                        : RowTarget{record + a.l.record_row, record + a.l.record_scales};
  if (token * batch.units >= batch.begin) {
    a.of_handle<uint32_t>(a.g.handle_rows)[entry] = goes ? copy.slot : kRowNotSent;
  }
  return a.index_of_copy(copy.place, copy.slot);
}

// Behind a barrier: the heads of the tokens' records, by the thread of each entry.
__device__ inline void write_heads(const QueuedDispatch& a, const Batch& batch, uint64_t tag,
                                   uint32_t index) {
  const uint32_t top_k = a.g.sizes.top_k;
  if (threadIdx.x >= batch.tokens() * top_k) return;
  const uint32_t first = threadIdx.x / top_k * top_k;
  if ((batch.first_token() + threadIdx.x / top_k) * batch.units < batch.begin) return;
  for (uint32_t at = first; at < first + top_k; ++at) {
    if (batch_targets()[at].row == nullptr) continue;
    std::byte* record = batch_targets()[at].row - a.l.record_row;
    reinterpret_cast<uint32_t*>(record + a.l.record_topk)[threadIdx.x - first] = index;
    if (threadIdx.x == first) *reinterpret_cast<uint64_t*>(record) = tag;
  }
}

template <class Codec>
__global__ void __launch_bounds__(kEpThreads, 2)
    pack_kernel(const __grid_constant__ QueuedDispatch a) {
  a.read_peers();
  if (has_failed(&a.state()->channel, a.memory.control->epoch)) return;
  const uint64_t tag = signal_tag(a.memory.control->epoch, a.state()->channel.use + 1);
  const CtaRouting routing(nullptr, nullptr);
  const typename Codec::Source source(a);
  const Share share(a.tokens, Codec::units(a.g));
  __syncthreads();
  for (uint32_t begin = share.begin; begin < share.end;) {
    const Batch batch = share.batch_from(begin, a.g.sizes.top_k);
    const typename Codec::Values values = load_first<Codec>(source, batch);
    __syncthreads();
    find_copies(a, batch, routing);
    const uint32_t index = list_records(a, batch);
    __syncthreads();
    write_heads(a, batch, tag, index);
    send_batch<Codec, 0>(source, batch, a.g.sizes.top_k, values);
    begin = batch.end;
  }
}

PackKernel select_pack_kernel(const EpSizes& sizes) {
  return with_codec(
      sizes, [](auto codec) -> PackKernel { return pack_kernel<typename decltype(codec)::type>; });
}

// --- Exchange -----------------------------------------------------------------------------------------

// Whether a token has a copy for the rank.
__device__ inline bool goes_to(const QueuedDispatch& a, uint32_t token, uint32_t rank) {
  const uint32_t top_k = a.g.sizes.top_k;
  const int32_t* places = a.of_handle<int32_t>(a.g.handle_places) + token * top_k;
  bool found = false;
  for (uint32_t k = 0; k < top_k; ++k) {
    found = found ||
            (places[k] >= 0 && static_cast<uint32_t>(places[k]) / a.g.sizes.local_experts == rank);
  }
  return found;
}

// A token's record, to its place at the peer.
__device__ inline gpu_queue::Request record_of(const QueuedDispatch& a,
                                               const gpu_queue::QueuePeer<>& peer, uint32_t token) {
  const uint64_t to = a.l.records + a.token_row(a.g.sizes.rank, token) * a.l.record_bytes;
  const uint64_t from = a.l.sent_records + uint64_t{token} * a.l.record_bytes;
  return gpu_queue::write(peer.in_window(to), a.from_outbox(peer, from), a.l.record_bytes);
}

// The word comes last. Tokens for the rank are gathered first, so that a warp posts for as many as it has lanes.
__device__ inline bool post_records(const QueuedDispatch& a, const Waiter& waiter, uint64_t use) {
  __shared__ uint32_t gathered[kEpWarps][2 * kWarpThreads];
  uint32_t* mine = gathered[threadIdx.x / kWarpThreads];
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint64_t word = signal_tag(waiter.epoch, use) | a.tokens;
  a.tell_stored(a.l.rows_ready, use, word);
  return a.for_queued_peers(waiter, [&](uint32_t rank, gpu_queue::QueuePeer<> peer) {
    gpu_queue::Status status = gpu_queue::Status::kOk;
    uint32_t held = 0;
    for (uint32_t base = 0; base < a.tokens && status == gpu_queue::Status::kOk;
         base += kWarpThreads) {
      const uint32_t token = base + lane;
      const uint32_t found =
          __ballot_sync(0xffffffffu, token < a.tokens && goes_to(a, token, rank));
      if ((found >> lane & 1) != 0) mine[held + __popc(found & ((1u << lane) - 1))] = token;
      held += static_cast<uint32_t>(__popc(found));
      __syncwarp();
      if (held < kWarpThreads) continue;
      status = peer.post_lanes(true, record_of(a, peer, mine[lane]));
      held -= kWarpThreads;
      const uint32_t rest = mine[kWarpThreads + lane];
      __syncwarp();
      if (lane < held) mine[lane] = rest;
    }
    __syncwarp();
    gpu_queue::Request request{};
    if (lane < held) {
      request = record_of(a, peer, mine[lane]);
    } else if (lane == held) {
      request = gpu_queue::write_word(a.word_at_peer(peer, a.l.rows_ready, use), word);
    }
    if (status == gpu_queue::Status::kOk) status = peer.post_lanes(lane <= held, request);
    __syncwarp();
    return is_done(status, peer, waiter, rank);
  });
}

// read_counts(), of counts without tags.
__device__ inline bool read_queued_counts(const QueuedDispatch& a, const Waiter& waiter,
                                          uint64_t use) {
  const uint32_t ranks = a.g.sizes.ranks;
  const uint32_t first_place = a.g.sizes.rank * a.g.sizes.local_experts;
  for (uint32_t i = threadIdx.x; i < a.g.columns; i += kEpThreads) {
    const uint32_t source = i % ranks;
    uint32_t count = 0;
    if (source == a.g.sizes.rank) {
      count = a.local<uint32_t>(a.g.own_counts)[first_place + i / ranks];
    } else if (a.is_live(source)) {
      count = inbox_count(a, use, source, first_place + i / ranks);
      if (!is_count(a, waiter, source, count)) return false;
    }
    a.local<int64_t>(a.g.layout_range)[i] = count;
  }
  return true;
}

__global__ void __launch_bounds__(kEpThreads, 2)
    exchange_kernel(const __grid_constant__ QueuedDispatch a) {
  exchange_rows(
      a, [&](const Waiter& waiter, uint64_t use) { return post_records(a, waiter, use); },
      [&](const Waiter& waiter, uint64_t use) {
        return arrange_by(a, [&] { return read_queued_counts(a, waiter, use); });
      });
}

// --- Unpack -------------------------------------------------------------------------------------------

// High throughput: to the views, from where the caller's copies are taken.
using UnpackArgs = Queued<EpBase>;

__device__ inline void unpack_row(const UnpackArgs& a, const std::byte* record,
                                  const RowOfRange& row, uint32_t lane) {
  const uint64_t index = row.row;
  std::byte* window = a.memory.window;
  copy_row(window + a.g.recv_x + index * a.g.wire_row, record + a.l.record_row, a.g.wire_row, lane);
  if (lane == 0) {
    const uint2 head = *reinterpret_cast<const uint2*>(record);
    reinterpret_cast<uint32_t*>(window + a.g.entries)[index] = head.x;
    reinterpret_cast<uint32_t*>(window + a.g.src_info)[index] = head.y;
  }
  const std::byte* from = record + a.l.record_scales;
  std::byte* to = a.scales_of(window + a.g.scales, 0, row.row);
  copy_scales(a.g, to, a.g.scale_group_step, from, a.g.scale_bytes, lane);
  const uint32_t top_k = a.g.sizes.top_k;
  const auto* topk = reinterpret_cast<const uint32_t*>(record + a.l.record_topk);
  for (uint32_t k = lane; k < top_k; k += kWarpThreads) {
    reinterpret_cast<uint32_t*>(window + a.g.topk_idx)[index * top_k + k] = topk[k];
    reinterpret_cast<uint32_t*>(window + a.g.topk_weights)[index * top_k + k] = topk[top_k + k];
  }
}

// Only rows that came.
__global__ void __launch_bounds__(kEpThreads, 2)
    unpack_kernel(const __grid_constant__ UnpackArgs a) {
  auto* const first_rows = launched_shared<uint32_t>();
  const RowRanges all(a, first_rows);
  all.for_each([&](const RowOfRange& row) {
    const bool is_own = row.range % a.g.sizes.ranks == a.g.sizes.rank;
    const std::byte* record =
        is_own ? a.queues.scratch + a.l.own_records + uint64_t{row.at} * a.l.record_bytes
               : a.record_in(a.written_by(row.range % a.g.sizes.ranks), row.row);
    unpack_row(a, record, row, threadIdx.x % kWarpThreads);
  });
}

size_t mask_bytes(const EpGeometry& g) {
  return g.places * sizeof(uint32_t);
}

int launch_rows(const QueuedDispatch& a, uint32_t most, cudaStream_t stream) {
  if (a.sends != 0) {
    const uint32_t chunks = std::max(chunks_of(a.tokens), 1u);
    const cudaError_t error =
        allow_shared_memory(reinterpret_cast<const void*>(count_kernel), mask_bytes(a.g));
    if (error != cudaSuccess) return error;
    launch_kernel(count_kernel, std::min(chunks, most), kEpThreads, mask_bytes(a.g), stream, a);
    launch_pack(select_pack_kernel(a.g.sizes), a, most, stream);
  }
  launch_kernel(exchange_kernel, 1, kEpThreads, 0, stream, a);
  return cudaPeekAtLastError();
}

int load_row_kernels(const EpGeometry& g, int* ctas_per_sm) {
  const cudaError_t allowed =
      allow_shared_memory(reinterpret_cast<const void*>(count_kernel), mask_bytes(g));
  if (allowed != cudaSuccess) return allowed;
  const struct {
    const void* kernel;
    size_t shared_bytes;
  } kernels[] = {{reinterpret_cast<const void*>(count_kernel), mask_bytes(g)},
                 {reinterpret_cast<const void*>(select_pack_kernel(g.sizes)), 0},
                 {reinterpret_cast<const void*>(exchange_kernel), 0},
                 {reinterpret_cast<const void*>(copy_tokens_kernel<QueuedDispatch>), 0}};
  for (const auto& [kernel, bytes] : kernels) {
    const cudaError_t error = resident_ctas_per_sm(kernel, bytes, ctas_per_sm);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

int launch_queued_dispatch(const DispatchArgs& args, const EpQueues& queues, uint32_t most_ctas,
                           cudaStream_t stream) {
  const QueuedDispatch a = make_queued(args, queues);
  const uint32_t most = std::min(most_ctas, kMostBusCtas);
  const int error = a.g.sizes.high_throughput != 0 ? launch_queued_throughput(a, most, stream)
                                                   : launch_rows(a, most, stream);
  if (error != cudaSuccess || a.receives == 0) return error;
  if (a.g.sizes.high_throughput == 0) {
    launch_kernel(copy_tokens_kernel<QueuedDispatch>, most, kEpThreads, 0, stream, a);
    return cudaPeekAtLastError();
  }
  const UnpackArgs unpacks{args, a.l, queues};
  launch_kernel(unpack_kernel, most, kEpThreads, range_bytes(a.g), stream, unpacks);
  return cudaPeekAtLastError();
}

int load_queued_dispatch_kernels(const EpGeometry& g, int* ctas_per_sm) {
  const auto* unpack = reinterpret_cast<const void*>(unpack_kernel);
  cudaError_t error = allow_shared_memory(unpack, range_bytes(g));
  if (error == cudaSuccess) error = resident_ctas_per_sm(unpack, range_bytes(g), ctas_per_sm);
  if (error != cudaSuccess) return error;
  return g.sizes.high_throughput != 0 ? load_queued_throughput_kernels(g, ctas_per_sm)
                                      : load_row_kernels(g, ctas_per_sm);
}

}  // namespace mep::device
