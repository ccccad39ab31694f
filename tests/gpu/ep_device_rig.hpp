// Ranks of an EP object through the C ABI: on host communicators, whose outputs are the oracle, and on
// GPUs, with a stream for each rank: all in this process, or one of them. Every rank's inputs follow from
// a seed.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "abi_rig.hpp"
#include "ep_device_shape.hpp"
#include "support/ep_halves.hpp"
#include "support/small_floats.hpp"

namespace ep_device {

using namespace gpu_test;
using namespace mep_test;

inline uint16_t bf16(float value) {
  uint16_t bits = 0;
  mep_reference::store_number(MEP_BFLOAT16, value, &bits);
  return bits;
}

// live: experts of the first so many ranks are named; the other ranks have no tokens.
inline std::vector<Input> draw_inputs(const Shape& s, uint32_t live, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Input> inputs(s.ranks);
  for (uint32_t rank = 0; rank < s.ranks; ++rank) {
    Input& in = inputs[rank];
    in.tokens = rank < live ? static_cast<uint32_t>(random() % (kTokens + 1)) : 0;
    in.x.resize(kTokens * kHidden);
    in.replayed_x.resize(kTokens * kHidden);
    for (std::vector<uint16_t>* x : {&in.x, &in.replayed_x}) {
      for (uint16_t& value : *x) {
        value = bf16(static_cast<float>(static_cast<int>(random() % 255) - 127) / 32);
      }
    }
    in.experts.assign(kTokens * kTopK, -1);
    in.weights.resize(kTokens * kTopK);
    for (uint32_t token = 0; token < kTokens; ++token) {
      const uint64_t first = random();
      for (uint32_t k = 0; k < kTopK; ++k) {
        const uint32_t at = token * kTopK + k;
        in.weights[at] = static_cast<float>(random() % 1000) / 997;
        // Different for every k: there are as many experts, or more.
        if (random() % 8 != 0) {
          in.experts[at] = static_cast<int64_t>((first + k) % (s.experts() * live / s.ranks));
        }
      }
    }
  }
  return inputs;
}

// The expert's outputs for the rows of tokens; the dispatch says where they lie.
inline std::vector<uint16_t> make_y(const Shape& s, uint32_t rank, const Output& got) {
  std::vector<uint16_t> y(size_t{s.rows()} * kHidden, 0);
  const auto* ranges = reinterpret_cast<const mep_range_t*>(got.ranges.data());
  const auto* info = reinterpret_cast<const int32_t*>(got.src_info.data());
  for (uint32_t expert = 0; expert < s.range_groups(); ++expert) {
    for (uint32_t source = 0; source < s.ranks; ++source) {
      const mep_range_t& range = ranges[expert * s.ranks + source];
      const auto begin = static_cast<uint64_t>(range.begin);
      for (uint64_t i = begin; i < begin + static_cast<uint64_t>(range.count); ++i) {
        const uint64_t row = s.expanded ? i : uint64_t{expert} * s.ranks * kTokens + i;
        std::mt19937 random(rank * 1000003u + expert * 10007u + source * 101u +
                            static_cast<uint32_t>(info[row]));
        for (uint32_t h = 0; h < kHidden; ++h) {
          y[row * kHidden + h] =
              bf16(static_cast<float>(static_cast<int>(random() % 255) - 127) / 16);
        }
      }
    }
  }
  return y;
}

inline mep_ep_config_t ep_config(const Shape& s) {
  mep_ep_config_t config;
  mep_ep_config_defaults(&config);
  config.max_tokens_per_rank = kTokens;
  config.hidden = kHidden;
  config.top_k = kTopK;
  config.num_experts = s.experts();
  config.experts_per_rank = kLocalExperts;
  if (s.opaque) {
    config.row_bytes = kHidden * 2;
    config.side_bytes = static_cast<uint32_t>(s.scale_row());
  } else {
    config.wire_type = s.fp8 ? MEP_FLOAT8_E4M3 : MEP_BFLOAT16;
    config.scale_type = s.scale_type;
  }
  config.layout = s.slotted ? MEP_EP_SLOTTED : MEP_EP_LOW_LATENCY;
  config.max_replicas = 2;
  if (s.throughput) {
    config.layout = MEP_EP_HIGH_THROUGHPUT;
    config.expert_alignment = kAlignment;
    if (s.expanded) config.layout = MEP_EP_EXPANDED;
  }
  return config;
}

// Expert e at places e and the last but e.
inline void set_map(const Shape& s, mep_ep_t ep) {
  if (!s.with_map) return;
  std::vector<int32_t> map;
  for (uint32_t expert = 0; expert < s.experts(); ++expert) {
    map.push_back(static_cast<int32_t>(expert));
    map.push_back(static_cast<int32_t>(s.ranks * kLocalExperts - 1 - expert));
  }
  need(mep_ep_set_expert_map(ep, map.data()), "mep_ep_set_expert_map");
}

// --- The oracle -----------------------------------------------------------------------------------

struct Reference {
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<Output> replayed;  // high throughput: of a replay with replayed_x
  std::vector<std::vector<uint16_t>> y;
  std::vector<std::vector<float>> returned;  // [rows][K], with y
};

inline std::vector<float> make_returned(const Shape& s, uint32_t rank, uint64_t seed) {
  std::mt19937_64 random(seed * 31 + rank);
  std::vector<float> values(s.row_values());
  for (float& value : values) value = static_cast<float>(random() % 10'000) / 9'973 - 0.5f;
  return values;
}

inline void give_sides(DispatchTokens* send) {
  send->x_scales = send->x;
  send->x_scales_stride_bytes = kHidden * 2;
}

// A dispatch for the reference, and a combine of y.
inline void dispatch_on_host(const Shape& s, mep_ep_handle_t handle, const Input& in, bool replays,
                             Output* got) {
  DispatchTokens send;
  DispatchRows args;
  send.num_tokens = in.tokens;
  send.x = replays ? in.replayed_x.data() : in.x.data();
  send.topk_idx = replays ? nullptr : in.experts.data();
  send.topk_weights = replays ? nullptr : in.weights.data();
  send.flags = replays ? MEP_DISPATCH_REPLAY : 0;
  if (s.opaque) give_sides(&send);
  args.recv_x = got->recv_x.data();
  args.recv_scales = s.has_scales() ? got->recv_scales.data() : nullptr;
  args.src_info = reinterpret_cast<int32_t*>(got->src_info.data());
  args.recv_count = reinterpret_cast<int32_t*>(got->counts.data());
  args.layout_range = reinterpret_cast<mep_range_t*>(got->ranges.data());
  args.recv_total = reinterpret_cast<int64_t*>(got->total.data());
  if (s.throughput) {
    if (!s.expanded) args.recv_topk_idx = reinterpret_cast<int32_t*>(got->topk_idx.data());
    args.recv_topk_weights = reinterpret_cast<float*>(got->topk_weights.data());
  }
  need(dispatch_halves(handle, &send, &args, nullptr), "mep_dispatch on hosts");
}
inline void combine_on_host(const Shape& s, mep_ep_handle_t handle, const std::vector<uint16_t>& y,
                            const std::vector<float>& returned, Output* got) {
  CombineTerms terms;
  CombineSums sums;
  terms.y = y.data();
  sums.out = got->out.data();
  if (s.throughput) {
    terms.topk_weights = returned.data();
    sums.recv_topk_weights = reinterpret_cast<float*>(got->out_weights.data());
  }
  need(combine_halves(handle, &terms, &sums, nullptr), "mep_combine on hosts");
}

inline Reference on_hosts(const Shape& s, uint32_t live, uint64_t seed) {
  Reference r;
  r.inputs = draw_inputs(s, live, seed);
  r.outputs.assign(s.ranks, Output(s));
  r.replayed.assign(s.ranks, Output(s));
  r.y.resize(s.ranks);
  r.returned.resize(s.ranks);
  const std::vector<mep_comm_t> comms = open_comms(s.ranks, false);
  in_threads(s.ranks, [&](uint32_t rank) {
    const mep_ep_config_t config = ep_config(s);
    mep_ep_t ep = nullptr;
    mep_ep_handle_t handle = nullptr;
    need(mep_ep_create(comms[rank], &config, &ep), "mep_ep_create on hosts");
    set_map(s, ep);
    need(mep_ep_handle_create(ep, 0, &handle), "mep_ep_handle_create");
    const Input& in = r.inputs[rank];
    dispatch_on_host(s, handle, in, false, &r.outputs[rank]);
    r.y[rank] = make_y(s, rank, r.outputs[rank]);
    r.returned[rank] = make_returned(s, rank, seed);
    combine_on_host(s, handle, r.y[rank], r.returned[rank], &r.outputs[rank]);
    if (s.throughput) {
      dispatch_on_host(s, handle, in, true, &r.replayed[rank]);
      combine_on_host(s, handle, r.y[rank], r.returned[rank], &r.replayed[rank]);
    }
    need(mep_ep_handle_destroy(handle), "mep_ep_handle_destroy");
    need(mep_ep_destroy(ep), "mep_ep_destroy");
  });
  close_comms(comms);
  return r;
}

// --- Ranks on the GPU -----------------------------------------------------------------------------

template <class T>
T* device_memory(size_t count) {
  T* memory = nullptr;
  cuda(cudaMalloc(&memory, count * sizeof(T) + 16));
  return memory;
}

// A record with room for 64 ranks, and what lies behind it.
struct Status {
  mep_op_status_t head;
  uint64_t failed;
  uint64_t behind;
};
constexpr size_t kStatusBytes = offsetof(Status, behind);
constexpr uint64_t kPoisonWord = 0x0101010101010101u * kPoison;

struct Rank {
  mep_comm_t comm = nullptr;
  mep_ep_t ep = nullptr;
  mep_ep_handle_t handles[2] = {};
  void* combine_input[2] = {};
  int32_t gpu = 0;
  cudaStream_t stream = nullptr;
  uint16_t *x, *replayed_x, *y, *out;
  int64_t *experts, *total;
  mep_range_t* ranges;
  float *weights, *topk_weights, *returned, *out_weights;
  int32_t* topk_idx;
  uint8_t *recv_x, *recv_scales;
  int32_t *src_info, *counts;
  int32_t* early_counts;  // pinned, then the total
  int64_t* early_total;
  Status* statuses = nullptr;  // pinned: of dispatch and of combine
};

struct Group {
  Shape s;
  std::vector<Rank> ranks;
  uint32_t first, last;  // ranks of this process: first .. last - 1
  uint32_t live;

  explicit Group(const Shape& shape, uint32_t timeout_ms = 20'000)
      : Group(shape, open_comms(shape.ranks, true, timeout_ms), 0) {}
  // The ranks from `first` on, one for each comm, are here; others are other processes. joined: they are joiners, and
  // attach to what the others have.
  Group(const Shape& shape, const std::vector<mep_comm_t>& comms, uint32_t first_rank,
        bool joined = false)
      : s(shape),
        ranks(shape.ranks),
        first(first_rank),
        last(first_rank + static_cast<uint32_t>(comms.size())),
        live(shape.ranks) {
    in_threads(last - first, [&](uint32_t i) {
      Rank& r = ranks[first + i];
      r.comm = comms[i];
      r.gpu = gpu_of_comm(r.comm);
      cuda(cudaSetDevice(r.gpu));
      const mep_ep_config_t config = ep_config(s);
      need(joined ? mep_ep_attach(r.comm, &config, &r.ep) : mep_ep_create(r.comm, &config, &r.ep),
           "an EP object on a GPU");
      if (!joined) set_map(s, r.ep);
      for (uint32_t buffer = 0; buffer < 2; ++buffer) {
        need(mep_ep_handle_create(r.ep, buffer, &r.handles[buffer]), "mep_ep_handle_create");
        mep_ep_view_t view;
        mep_ep_view_defaults(&view);
        need(mep_ep_buffer_view(r.ep, buffer, &view), "mep_ep_buffer_view");
        r.combine_input[buffer] = view.combine_input;
      }
    });
    for (uint32_t i = first; i < last; ++i) {
      Rank& r = use(i);
      cuda(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
      const size_t rows = s.rows();
      r.x = device_memory<uint16_t>(kTokens * kHidden);
      r.replayed_x = device_memory<uint16_t>(kTokens * kHidden);
      r.topk_idx = device_memory<int32_t>(s.row_values());
      r.topk_weights = device_memory<float>(s.row_values());
      r.returned = device_memory<float>(s.row_values());
      r.out_weights = device_memory<float>(s.token_values());
      r.total = device_memory<int64_t>(1);
      r.y = device_memory<uint16_t>(rows * kHidden);
      r.out = device_memory<uint16_t>(kTokens * kHidden);
      r.experts = device_memory<int64_t>(kTokens * kTopK);
      r.weights = device_memory<float>(kTokens * kTopK);
      r.recv_x = device_memory<uint8_t>(rows * s.wire_row());
      r.recv_scales = device_memory<uint8_t>(rows * s.scale_row());
      r.src_info = device_memory<int32_t>(rows);
      r.counts = device_memory<int32_t>(kLocalExperts);
      r.ranges = device_memory<mep_range_t>(kLocalExperts * s.ranks);
      cuda(cudaMallocHost(&r.statuses, 2 * sizeof(Status)));
      cuda(cudaMallocHost(&r.early_counts, kLocalExperts * 4));
      cuda(cudaMallocHost(&r.early_total, 8));
    }
  }
  Group(const Group&) = delete;

  // Streams idle.
  ~Group() {
    std::vector<mep_comm_t> comms;
    for (uint32_t i = first; i < last; ++i) {
      Rank& r = ranks[i];
      for (const mep_ep_handle_t handle : r.handles) need(mep_ep_handle_destroy(handle), "handle");
      need(mep_ep_destroy(r.ep), "mep_ep_destroy");
      comms.push_back(r.comm);
    }
    close_comms(comms);
    for (uint32_t i = first; i < last; ++i) {
      Rank& r = ranks[i];
      for (void* memory : {static_cast<void*>(r.x), static_cast<void*>(r.y),
                           static_cast<void*>(r.out), static_cast<void*>(r.experts),
                           static_cast<void*>(r.weights), static_cast<void*>(r.recv_x),
                           static_cast<void*>(r.recv_scales), static_cast<void*>(r.src_info),
                           static_cast<void*>(r.counts), static_cast<void*>(r.ranges),
                           static_cast<void*>(r.replayed_x), static_cast<void*>(r.topk_idx),
                           static_cast<void*>(r.topk_weights), static_cast<void*>(r.returned),
                           static_cast<void*>(r.out_weights), static_cast<void*>(r.total)}) {
        cuda(cudaFree(memory));
      }
      cuda(cudaFreeHost(r.statuses));
      cuda(cudaFreeHost(r.early_counts));
      cuda(cudaFreeHost(r.early_total));
      cuda(cudaStreamDestroy(r.stream));
    }
  }

  void synchronize() {
    for (uint32_t i = first; i < last; ++i) {
      use(i);
      cuda(cudaDeviceSynchronize());
    }
  }
  // Rank i of this process, its GPU being the thread's from here on.
  Rank& use(uint32_t i) {
    cuda(cudaSetDevice(ranks[i].gpu));
    return ranks[i];
  }
  uint32_t live_end() const { return std::min(live, last); }

  void upload(const Reference& ref) {
    for (uint32_t i = first; i < live_end(); ++i) {
      Rank& r = use(i);
      const Input& in = ref.inputs[i];
      cuda(cudaMemcpy(r.x, in.x.data(), in.x.size() * 2, cudaMemcpyDefault));
      cuda(cudaMemcpy(r.experts, in.experts.data(), in.experts.size() * 8, cudaMemcpyDefault));
      cuda(cudaMemcpy(r.weights, in.weights.data(), in.weights.size() * 4, cudaMemcpyDefault));
      cuda(cudaMemcpy(r.y, ref.y[i].data(), ref.y[i].size() * 2, cudaMemcpyDefault));
      cuda(cudaMemcpy(r.replayed_x, in.replayed_x.data(), in.replayed_x.size() * 2,
                      cudaMemcpyDefault));
      cuda(cudaMemcpy(r.returned, ref.returned[i].data(), ref.returned[i].size() * 4,
                      cudaMemcpyDefault));
    }
    poison();
  }
  void poison() {
    for (uint32_t i = first; i < last; ++i) {
      Rank& r = use(i);
      cuda(cudaMemset(r.recv_x, kPoison, s.rows() * s.wire_row()));
      cuda(cudaMemset(r.recv_scales, kPoison, s.rows() * s.scale_row()));
      cuda(cudaMemset(r.src_info, kPoison, s.rows() * 4));
      cuda(cudaMemset(r.counts, kPoison, kLocalExperts * 4));
      cuda(cudaMemset(r.ranges, kPoison, s.range_groups() * s.ranks * 8));
      cuda(cudaMemset(r.topk_idx, kPoison, s.row_values() * 4));
      cuda(cudaMemset(r.topk_weights, kPoison, s.row_values() * 4));
      cuda(cudaMemset(r.out_weights, kPoison, s.token_values() * 4));
      cuda(cudaMemset(r.total, kPoison, 8));
      cuda(cudaMemset(r.out, kPoison, kTokens * kHidden * 2));
      std::memset(r.statuses, kPoison, 2 * sizeof(Status));
    }
    synchronize();
  }

  // flags: MEP_DISPATCH_*. early: counts are told before the rows are received.
  mep_result_t dispatch(uint32_t i, uint32_t buffer, uint32_t tokens, Halves halves,
                        uint32_t flags = 0, bool early = false) {
    Rank& r = ranks[i];
    DispatchTokens send;
    DispatchRows args;
    send.num_tokens = tokens;
    send.x = r.x;
    send.topk_idx = r.experts;
    send.topk_weights = r.weights;
    send.flags = flags;
    const bool has_rows = (flags & MEP_DISPATCH_NO_ROWS) == 0;
    if (flags != 0) {
      send.x = has_rows ? r.replayed_x : nullptr;
      send.topk_idx = nullptr;
      send.topk_weights = nullptr;
    }
    if (s.opaque) give_sides(&send);
    args.recv_total = r.total;
    if (s.throughput) {
      if (!s.expanded) args.recv_topk_idx = r.topk_idx;
      args.recv_topk_weights = r.topk_weights;
    }
    if (has_rows) args.recv_x = r.recv_x;
    if (has_rows && s.has_scales()) args.recv_scales = r.recv_scales;
    args.src_info = r.src_info;
    args.recv_count = r.counts;
    args.layout_range = r.ranges;
    args.op_status = &r.statuses[0].head;
    args.op_status_bytes = kStatusBytes;
    if (early) {
      args.later = true;
      args.recv_count = r.early_counts;
      args.recv_total = r.early_total;
      return dispatch_halves(r.handles[buffer], &send, &args, r.stream);
    }
    return dispatch_halves(r.handles[buffer], if_sends(halves, send), if_receives(halves, args),
                           r.stream);
  }
  mep_result_t combine(uint32_t i, uint32_t buffer, Halves halves, bool library_y) {
    Rank& r = use(i);
    CombineTerms send;
    CombineSums args;
    send.y = library_y ? r.combine_input[buffer] : r.y;
    args.out = r.out;
    if (s.throughput) {
      send.topk_weights = r.returned;
      args.recv_topk_weights = r.out_weights;
    }
    args.op_status = &r.statuses[1].head;
    args.op_status_bytes = kStatusBytes;
    if (library_y && sends(halves)) {
      cuda(cudaMemcpyAsync(r.combine_input[buffer], r.y, s.rows() * size_t{kHidden} * 2,
                           cudaMemcpyDefault, r.stream));
    }
    return combine_halves(r.handles[buffer], if_sends(halves, send), if_receives(halves, args),
                          r.stream);
  }

  // One pair on every live rank; apart: send and receive called apart.
  void enqueue(uint32_t i, const Reference& ref, uint32_t buffer, bool apart, bool library_y,
               uint32_t flags = 0) {
    const uint32_t tokens = ref.inputs[i].tokens;
    if (!apart) {
      need(dispatch(i, buffer, tokens, Halves::kBoth, flags), "mep_dispatch");
      need(combine(i, buffer, Halves::kBoth, library_y), "mep_combine");
      return;
    }
    const bool early = s.throughput && flags == 0 && library_y;
    need(dispatch(i, buffer, tokens, Halves::kSend, flags, early), "mep_dispatch send");
    GPU_CHECK(dispatch(i, buffer, tokens, Halves::kBoth) == MEP_ERR_BUSY, "dispatch in flight");
    need(dispatch(i, buffer, tokens, Halves::kReceive), "mep_dispatch receive");
    need(combine(i, buffer, Halves::kSend, library_y), "mep_combine send");
    need(combine(i, buffer, Halves::kReceive, library_y), "mep_combine receive");
  }

  // Outputs against the reference.
  void compare(const Reference& ref, const char* where) { compare(ref.outputs, where); }
  void compare(const std::vector<Output>& outputs, const char* where) {
    const auto same = [&](uint32_t rank, const void* device, const std::vector<uint8_t>& wanted,
                          const char* name) {
      std::vector<uint8_t> got(wanted.size());
      if (got.empty()) return;
      cuda(cudaMemcpy(got.data(), device, got.size(), cudaMemcpyDefault));
      size_t at = 0;
      while (at < got.size() && got[at] == wanted[at]) ++at;
      GPU_CHECK(at == got.size(), "%s: rank %u of %u: %s differs at byte %zu: %02x, not %02x",
                where, rank, s.ranks, name, at, got[at], wanted[at]);
    };
    for (uint32_t i = first; i < live_end(); ++i) {
      const Rank& r = use(i);
      const Output& wanted = outputs[i];
      for (int op = 0; op < 2; ++op) {
        const Status& status = r.statuses[op];
        const char* name = op == 0 ? "dispatch" : "combine";
        GPU_CHECK(status.head.version == MEP_OP_STATUS_VERSION && status.head.result == MEP_SUCCESS,
                  "%s: rank %u of %u: %s says %s", where, i, s.ranks, name,
                  mep_result_string(status.head.result));
        const auto gone = static_cast<uint32_t>(__builtin_popcountll(status.failed));
        GPU_CHECK(status.head.failed_words == 1 && status.head.failed_count == gone &&
                      status.failed >> s.ranks == 0 && status.behind == kPoisonWord,
                  "%s: rank %u of %u: %s tells of %u ranks, %llx, then %llx", where, i, s.ranks,
                  name, status.head.failed_count, static_cast<unsigned long long>(status.failed),
                  static_cast<unsigned long long>(status.behind));
      }
      same(i, r.counts, wanted.counts, "recv_count");
      same(i, r.ranges, wanted.ranges, "layout_range");
      same(i, r.src_info, wanted.src_info, "src_info");
      same(i, r.recv_x, wanted.recv_x, "recv_x");
      same(i, r.recv_scales, wanted.recv_scales, "recv_scales");
      same(i, r.out, wanted.out, "out");
      same(i, r.topk_idx, wanted.topk_idx, "recv_topk_idx");
      same(i, r.topk_weights, wanted.topk_weights, "recv_topk_weights");
      same(i, r.total, wanted.total, "recv_total");
      same(i, r.out_weights, wanted.out_weights, "topk_weights of the combine");
    }
  }

  void compare_early(const Reference& ref) {
    for (uint32_t i = first; i < live_end(); ++i) {
      const Rank& r = use(i);
      const Output& wanted = ref.outputs[i];
      GPU_CHECK(std::memcmp(r.early_counts, wanted.counts.data(), kLocalExperts * 4) == 0 &&
                    std::memcmp(r.early_total, wanted.total.data(), 8) == 0,
                "rank %u: what mep_dispatch_counts gives", i);
    }
  }

  // Dispatch on one buffer, combine, the same on the other.
  std::vector<cudaGraphExec_t> capture(const Reference& ref) {
    std::vector<cudaGraphExec_t> graphs;
    for (uint32_t i = first; i < live_end(); ++i) {
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      cuda(cudaStreamBeginCapture(use(i).stream, cudaStreamCaptureModeThreadLocal));
      enqueue(i, ref, 0, false, false);
      enqueue(i, ref, 1, true, true);
      cuda(cudaStreamEndCapture(ranks[i].stream, &graph));
      cuda(cudaGraphInstantiate(&exec, graph, 0));
      cuda(cudaGraphDestroy(graph));
      graphs.push_back(exec);
    }
    return graphs;
  }
  void replay(const std::vector<cudaGraphExec_t>& graphs, int times) {
    for (int replay = 0; replay < times; ++replay) {
      for (uint32_t i = first; i < live_end(); ++i) {
        cuda(cudaGraphLaunch(graphs[i - first], use(i).stream));
      }
    }
    synchronize();
  }
  void expect_no_failure(const char* where) {
    for (uint32_t i = first; i < live_end(); ++i) {
      GPU_CHECK(mep_comm_async_result(ranks[i].comm) == MEP_SUCCESS, "%s: rank %u: %s", where, i,
                mep_last_error());
    }
    GPU_CHECK(cudaGetLastError() == cudaSuccess, "%s: a CUDA error is left", where);
  }
};

}  // namespace ep_device
