// Combine: every rank says that its experts' terms are ready and gives back the rows it had
// received; then each sums its tokens' terms in ascending k. Pulled, terms are read where they lie, in
// the library's memory of the expert's rank. Pushed, they are written to the token's rank first (ep/push.cuh): in the same
// launch in low latency, in one before it in high throughput, which takes fewer CTAs for that.
// Terms of the own rank are read where they lie.
// kThroughput: a rank is in the place of an expert, and values may go back with the rows. Low latency's kernels are kept free of it: with few tokens each branch shows.
#pragma once

#include "kernels/cuda/ep/convert.cuh"
#include "kernels/cuda/ep/push.cuh"
#include "kernels/cuda/ep/relay.cuh"

namespace mep::device {

// --- The sender's side --------------------------------------------------------------------------------

// Reads what a kernel begins with, besides the peers; a CTA barrier follows.
__device__ inline void read_dispatch(const CombineArgs& a) {
  PeerTable& table = peer_table();
  const EpState& state = *a.state();
  if (threadIdx.x < kMaskWords) table.complete[threadIdx.x] = state.complete[threadIdx.x];
  if (threadIdx.x != 0) return;
  table.use = state.channel.use;
  table.mark = a.head()->mark;
}

// By one CTA, when the terms are where they will be read.
template <bool kThroughput>
__device__ inline void announce_outputs(const CombineArgs& a, uint64_t epoch, bool failed) {
  EpState& state = *a.state();
  const PeerTable& table = peer_table();
  if (threadIdx.x == kEpThreads - 1) {  // not of the warp that signals
    state.channel.epoch = epoch;
    state.channel.seq += 1;
    state.credited = 1;
  }
  if (failed) return;
  const CombineWord kind = a.push != 0 ? CombineWord::kPushed : CombineWord::kPull;
  for (uint32_t rank = threadIdx.x; rank < a.g.sizes.ranks; rank += kEpThreads) {
    if (!a.is_live(rank)) continue;
    const CombineWord told = in_mask(table.complete, rank) ? kind : CombineWord::kNone;
    if (kThroughput && a.returned_weights != nullptr && told != CombineWord::kNone) {
      *a.weights_mark(a.peer(rank), a.g.sizes.rank) = table.mark;
    }
    store_word_release(a.rank_word(a.peer(rank), a.g.combine_ready, table.use, a.g.sizes.rank),
                       signal_tag(epoch, table.use) | combine_payload(told, table.mark));
  }
}

// Pushes this CTA's terms; the CTA that comes last tells all ranks.
template <bool kThroughput>
__device__ __noinline__ inline void push_and_announce(const CombineArgs& a, uint64_t epoch,
                                                      bool failed) {
  __shared__ uint32_t shared_last;
  failed = __syncthreads_or(failed ? 1 : 0) != 0;
  if (!failed) push_outputs<kThroughput>(a, launched_shared<uint32_t>());
  test_delay(a, 8);
  if (is_last_cta(&a.state()->channel.ticket[0], &shared_last)) {
    announce_outputs<kThroughput>(a, epoch, failed);
  }
}

// --- The receiver's side ------------------------------------------------------------------------------

// kinds [R]: whose experts' terms this rank can read, and where.
template <class Args>
__device__ inline bool await_outputs(const Args& a, const Waiter& waiter, uint8_t* kinds) {
  const uint64_t use = peer_table().use;
  const uint64_t tag = signal_tag(waiter.epoch, use);
  for (uint32_t source = threadIdx.x; source < a.g.sizes.ranks; source += kEpThreads) {
    kinds[source] = static_cast<uint8_t>(CombineWord::kNone);
    if (!a.is_live(source)) continue;
    uint64_t word = 0;
    const uint64_t* at = a.rank_word(a.written_by(source), a.g.combine_ready, use, source);
    if (!wait_word(waiter, at, tag, source, &word)) {
      return false;
    }
    const uint32_t payload = signal_payload(word);
    for (const CombineWord kind : {CombineWord::kPull, CombineWord::kPushed}) {
      if (payload != combine_payload(kind, peer_table().mark)) continue;
      const bool is_own = source == a.g.sizes.rank;
      kinds[source] = static_cast<uint8_t>(is_own ? CombineWord::kPull : kind);
    }
  }
  return true;
}

// CTA 0 tells the others what it has seen.
__device__ inline void relay_outputs(const CombineArgs& a, uint64_t epoch, const uint8_t* kinds) {
  auto* told = a.local<uint8_t>(a.g.relayed_kinds);
  for (uint32_t rank = threadIdx.x; rank < a.g.sizes.ranks; rank += kEpThreads) {
    told[rank] = kinds[rank];
  }
  __syncthreads();
  tell_ctas(a, Relay::kCombine, epoch, peer_table().use);
}
__device__ inline void take_outputs(const CombineArgs& a, uint8_t* kinds) {
  const auto* told = a.local<uint8_t>(a.g.relayed_kinds);
  for (uint32_t rank = threadIdx.x; rank < a.g.sizes.ranks; rank += kEpThreads) {
    kinds[rank] = told[rank];
  }
  __syncthreads();
}

// The summands of a token, for one warp: the token's biases, terms in ascending k, then the bias.
template <uint32_t kCapacity>
struct TermList {
  const std::byte* rows[kCapacity];
  float weights[kCapacity];
};

// Fills the list; returns how many terms there are.
template <bool kThroughput, class Args, uint32_t kCapacity>
__device__ inline uint32_t list_outputs(const Args& a, uint32_t token, uint32_t lane,
                                        const float* weights, const uint8_t* kinds,
                                        TermList<kCapacity>* list, uint32_t* missing) {
  const EpGeometry& g = a.g;
  float all = 0;
  float present = 0;
  uint32_t count = 0;
  if constexpr (kThroughput) {
    for (const std::byte* bias : a.token_bias) {
      if (bias == nullptr) continue;
      if (lane == 0) {
        list->rows[count] = bias + uint64_t{token} * g.combine_row;
        list->weights[count] = 1;
      }
      ++count;
    }
  }
  const uint32_t first_term = count;
  bool any_missing = false;
  for (uint32_t base = 0; base < g.row_k; base += kWarpThreads) {
    const uint32_t k = base + lane;
    const uint32_t entry = token * g.row_k + k;
    int32_t place = -1;
    if (k < g.row_k) place = a.template of_handle<int32_t>(g.handle_places)[entry];
    const std::byte* row = nullptr;
    float weight = 1;
    if (place >= 0) {
      const uint32_t at = a.template of_handle<uint32_t>(g.handle_rows)[entry];
      const uint32_t rank = static_cast<uint32_t>(place) / g.row_groups;
      const uint32_t group = static_cast<uint32_t>(place) - rank * g.row_groups;
      const auto kind = static_cast<CombineWord>(kinds[rank]);
      if (at == kRowNotSent || kind == CombineWord::kNone) {
        const uint32_t bit = a.is_live(rank) ? 2 : 1;
        atomicOr(missing, bit);
        atomicOr(&a.state()->missing, bit);
      } else if (kind == CombineWord::kPushed) {
        row = a.written_by(rank) + g.combine_in + uint64_t{entry} * g.combine_row;
      } else {
        const std::byte* terms = rank == g.sizes.rank ? a.own_terms : a.peer(rank) + g.combine_out;
        // By token the dispatch counts rows from the first of this rank.
        const uint32_t first = g.sizes.by_token != 0 ? a.first_row_of(group, rank) : 0;
        row = terms + a.row_index(group, first + at) * g.combine_row;
      }
      if (weights != nullptr) weight = weights[entry];
    }
    const uint32_t wanted = __ballot_sync(0xffffffffu, place >= 0);
    const uint32_t here = __ballot_sync(0xffffffffu, row != nullptr);
    if (row != nullptr) {
      const uint32_t slot = count + static_cast<uint32_t>(__popc(here & ((1u << lane) - 1)));
      list->rows[slot] = row;
      list->weights[slot] = weight;
    }
    count += static_cast<uint32_t>(__popc(here));
    any_missing = any_missing || wanted != here;
    if (a.renormalize == 0) continue;
    for (uint32_t i = 0; i < kWarpThreads; ++i) {
      const float other = __shfl_sync(0xffffffffu, weight, i);
      if ((wanted >> i & 1) != 0) all = __fadd_rn(all, other);
      if ((here >> i & 1) != 0) present = __fadd_rn(present, other);
    }
  }
  __syncwarp();
  if (a.renormalize != 0 && any_missing && present != 0) {
    const float factor = __fdiv_rn(all, present);
    for (uint32_t i = first_term + lane; i < count; i += kWarpThreads) {
      list->weights[i] = __fmul_rn(list->weights[i], factor);
    }
  }
  if (a.bias != nullptr) {
    if (lane == 0) {
      list->rows[count] = a.bias;
      list->weights[count] = 1;
    }
    ++count;
  }
  __syncwarp();
  return count;
}

template <class Type>
__device__ inline void add_term(float* total, const uint4& bits, float weight) {
  float values[Type::kLanes];
  Type::unpack(bits, values);
#pragma unroll
  for (uint32_t lane = 0; lane < Type::kLanes; ++lane) {
    total[lane] = __fadd_rn(total[lane], __fmul_rn(values[lane], weight));
  }
}

// 16 bytes of a token.
template <class Type, uint32_t kAtOnce, uint32_t kCapacity>
__device__ inline uint4 sum_outputs(const TermList<kCapacity>& list, uint32_t count,
                                    uint32_t offset) {
  float total[Type::kLanes] = {};
  for (uint32_t base = 0; base < count; base += kAtOnce) {
    uint4 bits[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (base + i < count) bits[i] = load_once(list.rows[base + i] + offset);
    }
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (base + i >= count) break;
      add_term<Type>(total, bits[i], list.weights[base + i]);
    }
  }
  return Type::pack(total);
}

// kUnits units of a token, the first at `offset`: with few terms, loads of several are under way together.
template <class Type, uint32_t kAtOnce, uint32_t kUnits, uint32_t kCapacity>
__device__ inline void sum_units(const TermList<kCapacity>& list, uint32_t count, uint32_t offset,
                                 std::byte* out) {
  constexpr uint32_t kStep = kWarpThreads * 16;
  uint4 bits[kUnits][kAtOnce];
#pragma unroll
  for (uint32_t i = 0; i < kAtOnce; ++i) {
    if (i >= count) break;
    const std::byte* row = list.rows[i] + offset;
#pragma unroll
    for (uint32_t unit = 0; unit < kUnits; ++unit) bits[unit][i] = load_once(row + unit * kStep);
  }
#pragma unroll
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    float total[Type::kLanes] = {};
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (i < count) add_term<Type>(total, bits[unit][i], list.weights[i]);
    }
    for (uint32_t i = kAtOnce; i < count; ++i) {
      add_term<Type>(total, load_once(list.rows[i] + offset + unit * kStep), list.weights[i]);
    }
    *reinterpret_cast<uint4*>(out + offset + unit * kStep) = Type::pack(total);
  }
}

// One warp's share of the sums: units of 32 times 16 bytes, counted over all tokens.
struct SumShare {
  uint64_t begin, end;
  uint32_t units;  // of a token

  __device__ SumShare(const CombineArgs& a, uint32_t tokens)
      : units((a.g.combine_row + kWarpThreads * 16 - 1) / (kWarpThreads * 16)) {
    const uint64_t total = uint64_t{tokens} * units;
    const uint64_t warps = uint64_t{gridDim.x} * kEpWarps;
    const uint64_t index = uint64_t{threadIdx.x / kWarpThreads} * gridDim.x + blockIdx.x;
    begin = total * index / warps;
    end = total * (index + 1) / warps;
  }
};

// In builds for tests: puts the terms as they are before they are ready into this processor's L1, so that what
// is read after the wait is old if nothing orders it behind the wait.
__device__ inline void touch_outputs([[maybe_unused]] const CombineArgs& a) {
#ifdef MEP_TEST_HOOKS
  if (a.test_delay == 0) return;
  const SumShare share(a, a.head()->tokens);
  if (share.begin == share.end) return;
  uint32_t sum = 0;
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const auto first = static_cast<uint32_t>(share.begin / share.units) * a.g.row_k;
  const auto end = static_cast<uint32_t>((share.end - 1) / share.units + 1) * a.g.row_k;
  for (uint32_t entry = first; entry < end; ++entry) {
    const int32_t place = a.of_handle<int32_t>(a.g.handle_places)[entry];
    const uint32_t at = a.of_handle<uint32_t>(a.g.handle_rows)[entry];
    if (place < 0 || at == kRowNotSent) continue;
    const uint32_t rank = static_cast<uint32_t>(place) / a.g.row_groups;
    const uint32_t group = static_cast<uint32_t>(place) - rank * a.g.row_groups;
    const std::byte* rows[] = {
        a.peer(rank) + a.g.combine_out + a.row_index(group, at) * a.g.combine_row,
        a.memory.window + a.g.combine_in + uint64_t{entry} * a.g.combine_row};
    for (const std::byte* row : rows) {
      for (uint32_t offset = lane * 16; offset < a.g.combine_row; offset += kWarpThreads * 16) {
        sum += load_cached(row + offset);
      }
    }
  }
  if (sum == 1 && a.g.sizes.ranks == 0) a.state()->missing = sum;  // never: the loads have to stay
#endif
}

template <class Type, int kTopK, bool kThroughput, class Args>
__device__ inline void sum_tokens(const Args& a, const uint8_t* kinds, uint32_t* missing) {
  constexpr uint32_t kCapacity = (kTopK != 0 ? kTopK : kMaxEpTopK) + (kThroughput ? 3 : 1);
  constexpr uint32_t kAtOnce = kTopK == 0 ? 4 : kTopK < 8 ? kTopK : 8;
  constexpr uint32_t kUnits = !kThroughput ? 1 : kAtOnce <= 2 ? 4 : kAtOnce <= 4 ? 2 : 1;
  __shared__ TermList<kCapacity> lists[kEpWarps];
  const EpHandleHead& head = *a.head();
  const float* weights = a.weights;
  if (!kThroughput && weights == nullptr && head.has_weights != 0) {
    weights = a.template of_handle<float>(a.g.handle_weights);
  }
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint32_t warp = threadIdx.x / kWarpThreads;
  const SumShare share(a, head.tokens);
  const uint32_t units = share.units;
  const uint64_t end = share.end;
  auto token = static_cast<uint32_t>(share.begin / units);
  auto unit = static_cast<uint32_t>(share.begin - uint64_t{token} * units);
  for (uint64_t at = share.begin; at < end; ++token, unit = 0) {
    const uint32_t count =
        list_outputs<kThroughput>(a, token, lane, weights, kinds, &lists[warp], missing);
    if constexpr (kUnits > 1) {
      std::byte* out = a.out + token * a.out_stride;
      // Whole units: the last of a token may be short.
      while (unit + kUnits <= a.g.combine_row / (kWarpThreads * 16) && at + kUnits <= end) {
        sum_units<Type, kAtOnce, kUnits>(lists[warp], count, (unit * kWarpThreads + lane) * 16,
                                         out);
        unit += kUnits;
        at += kUnits;
      }
    }
    for (; unit < units && at < end; ++unit, ++at) {
      const uint32_t offset = (unit * kWarpThreads + lane) * 16;
      if (offset >= a.g.combine_row) continue;
      *reinterpret_cast<uint4*>(a.out + token * a.out_stride + offset) =
          sum_outputs<Type, kAtOnce>(lists[warp], count, offset);
    }
    __syncwarp();
  }
}

// Sums the values that came back with the rows of each token, over ranks in ascending order.
template <class Args>
__device__ inline void sum_weights(const Args& a, const uint8_t* kinds) {
  const EpGeometry& g = a.g;
  const uint32_t top_k = g.sizes.top_k;
  const uint32_t mark = peer_table().mark;
  const uint32_t total = a.head()->tokens * top_k;
  for (uint32_t i = blockIdx.x * kEpThreads + threadIdx.x; i < total; i += gridDim.x * kEpThreads) {
    const uint32_t token = i / top_k;
    float sum = 0;
    for (uint32_t entry = token * g.row_k; entry < (token + 1) * g.row_k; ++entry) {
      const int32_t place = a.template of_handle<int32_t>(g.handle_places)[entry];
      if (place < 0 || a.template of_handle<uint32_t>(g.handle_rows)[entry] == kRowNotSent)
        continue;
      const auto rank = static_cast<uint32_t>(place);
      const bool came = static_cast<CombineWord>(kinds[rank]) != CombineWord::kNone;
      std::byte* block = a.written_by(rank);
      if (!came || *a.weights_mark(block, rank) != mark) continue;
      const auto* values = reinterpret_cast<const float*>(block + g.weights_in);
      sum = __fadd_rn(sum, values[uint64_t{entry} * top_k + i - token * top_k]);
    }
    a.out_weights[i] = sum;
  }
}

// The result of a combine after a failure is defined: zeros.
template <bool kThroughput>
__device__ inline void clear_tokens(const CombineArgs& a) {
  const uint32_t tokens = a.head()->tokens;
  if (kThroughput && a.out_weights != nullptr) {
    const uint32_t total = tokens * a.g.sizes.top_k;
    for (uint32_t i = blockIdx.x * kEpThreads + threadIdx.x; i < total;
         i += gridDim.x * kEpThreads) {
      a.out_weights[i] = 0;
    }
  }
  for (uint32_t token = blockIdx.x; token < tokens; token += gridDim.x) {
    for (uint32_t at = threadIdx.x * 16; at < a.g.combine_row; at += kEpThreads * 16) {
      *reinterpret_cast<uint4*>(a.out + token * a.out_stride + at) = {0, 0, 0, 0};
    }
  }
}

// unusual: a CTA failed, or a term was missing.
__device__ inline void conclude_combine(const CombineArgs& a, const uint8_t* kinds, bool unusual) {
  if (threadIdx.x != 0) return;
  EpState& state = *a.state();
  const OpEnd end{a.memory.control->epoch, state.channel.seq, 0};
  bool failed = false;
  uint32_t missing = 0;
  if (unusual) {
    failed = has_failed(&state.channel, end.epoch);
    missing = atomicExch(&state.missing, 0u);
  }
  uint64_t contributed[kMaskWords] = {};
  for (uint32_t rank = 0; rank < a.g.sizes.ranks && !failed; ++rank) {
    if (kinds[rank] != 0) contributed[rank / 64] |= uint64_t{1} << (rank % 64);
  }
  mep_result_t result = MEP_SUCCESS;
  if (!failed) state.freed = signal_tag(end.epoch, state.channel.use);
  if (failed) {
    result = failure_result(state.channel);
  } else if ((missing & 2) != 0) {
    // A member began its next dispatch without a combine, or had not received this one.
    const bool carried = state.dispatch_epoch != end.epoch;
    result = carried ? MEP_ERR_PEER_FAILED : MEP_ERR_MISMATCH;
  } else if (missing != 0) {
    result = a.memory.control->partial_allowed != 0 ? MEP_PARTIAL : MEP_ERR_PEER_FAILED;
  }
  fill_status(a, a.op_status, result, contributed, end);
}

template <bool kThroughput>
static __global__ void __launch_bounds__(kEpThreads, 2)
    push_terms_kernel(const __grid_constant__ CombineArgs a) {
  const DeviceChannel& channel = a.state()->channel;
  a.read_peers();
  read_dispatch(a);
  const uint64_t epoch = a.memory.control->epoch;
  const bool failed = has_failed(&channel, epoch);
  __syncthreads();
  test_delay(a, 7);
  push_and_announce<kThroughput>(a, epoch, failed);
}

template <class Type, int kTopK, bool kThroughput>
__global__ void __launch_bounds__(kEpThreads, 2)
    combine_kernel(const __grid_constant__ CombineArgs a) {
  __shared__ uint8_t kinds[kMaxRanks];
  __shared__ uint32_t shared_last;
  __shared__ uint32_t shared_missing;
  DeviceChannel& channel = a.state()->channel;
  a.read_peers();
  read_dispatch(a);
  if (threadIdx.x == 0) shared_missing = 0;
  const Waiter waiter(a.memory.control, &channel, static_cast<uint32_t>(EpPhase::kOutputs));
  bool failed = has_failed(&channel, waiter.epoch);
  __syncthreads();
  trace(a, 9);
  test_delay(a, 7);
  if (!kThroughput && a.sends != 0 && a.push != 0) {
    push_and_announce<kThroughput>(a, waiter.epoch, failed);
  } else if (a.sends != 0) {
    if (blockIdx.x == 0) announce_outputs<kThroughput>(a, waiter.epoch, failed);
  } else if (channel.epoch != waiter.epoch) {
    failed = true;
    if (threadIdx.x == 0) {
      fail(&channel, waiter.epoch, Cause::kOldEpoch, kNobody, waiter.phase);
    }
  }
  if (a.receives == 0) return;
  touch_outputs(a);
  __syncthreads();
  bool here = !failed;
  if (here) {
    here = is_told(a) ? await_cta(a, Relay::kCombine, waiter, peer_table().use)
                      : await_outputs(a, waiter, kinds);
  }
  here = __syncthreads_and(here) != 0;
  if (here && has_relay(a)) {
    if (blockIdx.x == 0) {
      relay_outputs(a, waiter.epoch, kinds);
    } else {
      take_outputs(a, kinds);
    }
  }
  trace(a, 10);
  test_delay(a, 9);
  if (here) {
    sum_tokens<Type, kTopK, kThroughput>(a, kinds, &shared_missing);
    if constexpr (kThroughput) {
      if (a.out_weights != nullptr) sum_weights(a, kinds);
    }
  } else {
    clear_tokens<kThroughput>(a);
  }
  // Another CTA may have given up where this one had its words: then some rows are zeros.
  trace(a, 11);
  __syncthreads();
  const bool unusual = !here || shared_missing != 0;
  const Ending ending = take_ticket(&channel.ticket[1], gridDim.x, unusual, false, &shared_last);
  if (ending == Ending::kNotLast) return;
  conclude_combine(a, kinds, ending == Ending::kLastOfFailed);
  trace_last(a, 12);
}

}  // namespace mep::device
