// Calls of dispatch beside the matrix of ep_device_test: what views say of tokens, rows in the caller's memory alone, and
// mep_dispatch_layout.
#pragma once

#include "ep_device_rig.hpp"
#include "support/ep_halves.hpp"

namespace ep_device {

template <class Value>
std::vector<Value> copied(const Value* device, size_t count) {
  std::vector<Value> values(count);
  cuda(cudaMemcpy(values.data(), device, count * sizeof(Value), cudaMemcpyDefault));
  return values;
}

// Expanded: each source's tokens that have experts here, in order, name their expanded rows.
inline void tells_tokens(const Shape& s, uint64_t seed) {
  const Reference ref = on_hosts(s, s.ranks, seed);
  Group group(s);
  group.upload(ref);
  for (uint32_t i = 0; i < s.ranks; ++i) {
    need(group.dispatch(i, 1, ref.inputs[i].tokens, Halves::kBoth), "mep_dispatch");
  }
  group.synchronize();
  for (uint32_t i = 0; i < s.ranks; ++i) {
    mep_ep_view_t view;
    mep_ep_view_defaults(&view);
    need(mep_ep_buffer_view(group.use(i).ep, 1, &view), "mep_ep_buffer_view");
    const size_t most = size_t{s.ranks} * kTokens;
    const auto rows = copied(view.token_rows, most * kTopK);
    const auto experts = copied(view.token_topk_idx, most * kTopK);
    const auto tokens = copied(view.token_src_info, most);
    const auto sources = copied(view.token_range, s.ranks);
    const auto infos = copied(view.src_info, s.rows());
    const auto ranges = copied(view.layout_range, size_t{kLocalExperts} * s.ranks);
    uint64_t row = 0;
    for (uint32_t source = 0; source < s.ranks; ++source) {
      const uint64_t begin = row;
      for (uint32_t token = 0; token < ref.inputs[source].tokens; ++token) {
        const int64_t* named = ref.inputs[source].experts.data() + token * kTopK;
        const bool comes = std::any_of(named, named + kTopK, [&](int64_t expert) {
          return expert >= 0 && expert / kLocalExperts == i;
        });
        if (!comes) continue;
        GPU_CHECK(tokens[row] == static_cast<int32_t>(token), "rank %u row %llu is token %d", i,
                  static_cast<unsigned long long>(row), tokens[row]);
        for (uint32_t k = 0; k < kTopK; ++k) {
          const int32_t slot = rows[row * kTopK + k], expert = experts[row * kTopK + k];
          if (named[k] < 0 || named[k] / kLocalExperts != i) {
            GPU_CHECK(slot == -1 && expert == -1, "rank %u: an expert of another rank", i);
            continue;
          }
          const bool right = expert == named[k] % kLocalExperts && slot >= 0;
          const mep_range_t& range =
              ranges[static_cast<uint32_t>(named[k] % kLocalExperts) * s.ranks + source];
          GPU_CHECK(right && slot >= range.begin && slot - range.begin < range.count &&
                        infos[static_cast<uint32_t>(slot)] == static_cast<int32_t>(token),
                    "rank %u token %u of rank %u: expert %d, row %d", i, token, source, expert,
                    slot);
        }
        ++row;
      }
      GPU_CHECK(sources[source].begin == static_cast<int32_t>(begin) &&
                    sources[source].count == static_cast<int32_t>(row - begin),
                "rank %u: tokens of rank %u", i, source);
    }
  }
  std::printf("  %u ranks: tokens name their expanded rows; seed %llu\n", s.ranks,
              static_cast<unsigned long long>(seed));
}

// Many tokens in high throughput, into the caller's memory alone: in one call, as a replay, and in an early call and a
// late one. A row says its rank, token and dispatch.
inline void fills_callers_rows(uint64_t seed) {
  constexpr uint32_t kMost = 1100, kRow = 16, kFew = 2, kRanks = 2, kExpertsOfAll = 4;
  const uint32_t tokens[kRanks] = {kMost, 1030};
  std::mt19937_64 random(seed);
  std::vector<std::vector<int64_t>> experts(kRanks);
  for (uint32_t i = 0; i < kRanks; ++i) {
    for (uint32_t token = 0; token < tokens[i]; ++token) {
      const auto first = static_cast<int64_t>(random() % kExpertsOfAll);
      experts[i].push_back(random() % 5 == 0 ? -1 : first);
      experts[i].push_back(random() % 3 == 0 ? -1 : (first + 1) % kExpertsOfAll);
    }
  }
  const auto row_of = [](uint32_t rank, uint32_t token, uint32_t round) {
    return static_cast<uint16_t>(rank << 15 | round << 12 | token);
  };
  const std::vector<mep_comm_t> comms = open_comms(kRanks, true);
  struct Part {
    mep_ep_t ep = nullptr;
    mep_ep_handle_t handle = nullptr;
    cudaStream_t stream = nullptr;
    uint16_t *x = nullptr, *rows = nullptr;
    int64_t* experts = nullptr;
    int32_t* tokens = nullptr;
  } parts[kRanks];
  in_threads(kRanks, [&](uint32_t i) {
    cuda(cudaSetDevice(gpu_of_comm(comms[i])));
    Part& part = parts[i];
    mep_ep_config_t config;
    mep_moe_defaults(&config, kMost, kRow, kFew, kExpertsOfAll);
    config.layout = MEP_EP_HIGH_THROUGHPUT;
    need(mep_ep_create(comms[i], &config, &part.ep), "mep_ep_create");
    need(mep_ep_handle_create(part.ep, 0, &part.handle), "mep_ep_handle_create");
    cuda(cudaStreamCreateWithFlags(&part.stream, cudaStreamNonBlocking));
    part.x = device_memory<uint16_t>(kMost * kRow);
    part.rows = device_memory<uint16_t>(size_t{kRanks} * kMost * kRow);
    part.tokens = device_memory<int32_t>(size_t{kRanks} * kMost);
    part.experts = device_memory<int64_t>(experts[i].size());
    cuda(cudaMemcpy(part.experts, experts[i].data(), experts[i].size() * 8, cudaMemcpyDefault));
  });
  const auto call = [&](uint32_t i, uint32_t flags, bool early, bool sends) {
    Part& part = parts[i];
    DispatchTokens send;
    DispatchRows receive;
    send.num_tokens = tokens[i];
    send.x = part.x;
    send.flags = flags;
    if (flags == 0) send.topk_idx = part.experts;
    receive.later = early;
    receive.recv_x = part.rows;
    receive.src_info = flags == 0 ? part.tokens : nullptr;
    need(dispatch_halves(part.handle, sends ? &send : nullptr, &receive, part.stream),
         "mep_dispatch");
  };
  const auto all_idle = [&] {
    for (uint32_t i = 0; i < kRanks; ++i) {
      cuda(cudaSetDevice(gpu_of_comm(comms[i])));
      cuda(cudaDeviceSynchronize());
    }
  };
  for (uint32_t round = 0; round < 4; ++round) {
    for (uint32_t i = 0; i < kRanks; ++i) {
      std::vector<uint16_t> x(size_t{kMost} * kRow);
      for (size_t at = 0; at < x.size(); ++at)
        x[at] = row_of(i, static_cast<uint32_t>(at / kRow), round);
      cuda(cudaSetDevice(gpu_of_comm(comms[i])));
      cuda(cudaMemcpy(parts[i].x, x.data(), x.size() * 2, cudaMemcpyDefault));
      cuda(cudaMemset(parts[i].rows, kPoison, size_t{kRanks} * kMost * kRow * 2));
    }
    const bool replays = round % 2 != 0;
    const bool late = round == 2;
    for (uint32_t i = 0; i < kRanks; ++i) call(i, replays ? MEP_DISPATCH_REPLAY : 0, late, true);
    for (uint32_t i = 0; i < kRanks && late; ++i) call(i, 0, false, false);
    all_idle();
    for (uint32_t i = 0; i < kRanks; ++i) {
      const auto rows = copied(parts[i].rows, size_t{kRanks} * kMost * kRow);
      const auto infos = copied(parts[i].tokens, size_t{kRanks} * kMost);
      size_t row = 0;
      for (uint32_t source = 0; source < kRanks; ++source) {
        for (uint32_t token = 0; token < tokens[source]; ++token) {
          const int64_t* named = experts[source].data() + token * kFew;
          const bool comes = std::any_of(named, named + kFew, [&](int64_t expert) {
            return expert >= 0 && expert / (kExpertsOfAll / kRanks) == i;
          });
          if (!comes) continue;
          GPU_CHECK(std::count(rows.begin() + static_cast<int64_t>(row * kRow),
                               rows.begin() + static_cast<int64_t>((row + 1) * kRow),
                               row_of(source, token, round)) == kRow &&
                        infos[row] == static_cast<int32_t>(token),
                    "round %u: row %zu of rank %u is not token %u of rank %u", round, row, i, token,
                    source);
          ++row;
        }
      }
      GPU_CHECK(rows[row * kRow] == 0x0101u * kPoison, "round %u: a row behind the last", round);
    }
  }
  for (Part& part : parts) {
    need(mep_ep_handle_destroy(part.handle), "mep_ep_handle_destroy");
    need(mep_ep_destroy(part.ep), "mep_ep_destroy");
    cuda(cudaStreamDestroy(part.stream));
    for (void* memory : {static_cast<void*>(part.x), static_cast<void*>(part.rows),
                         static_cast<void*>(part.experts), static_cast<void*>(part.tokens)}) {
      cuda(cudaFree(memory));
    }
  }
  close_comms(comms);
  std::printf("  high throughput into the caller's memory; seed %llu\n",
              static_cast<unsigned long long>(seed));
}

// mep_dispatch_layout against the same call on hosts; the second of two equal entries and bad ones count as -1.
inline void counts_layouts(uint64_t seed) {
  constexpr uint32_t kSome = 1500, kExpertsOfAll = 2600;  // several blocks for a rank
  Group group({2, false});
  std::mt19937_64 random(seed);
  std::vector<int64_t> good(size_t{kSome} * kTopK, -1);
  for (size_t at = 0; at < good.size(); at += kTopK) {
    const uint64_t first = random();
    for (uint32_t k = 0; k < kTopK; ++k) {
      if (random() % 5 != 0) good[at + k] = static_cast<int64_t>((first + 7 * k) % kExpertsOfAll);
    }
  }
  std::vector<int64_t> given = good;
  for (size_t at = 0; at < given.size(); at += kTopK) {
    if (good[at + 1] == -1) given[at + 1] = at % 3 == 0 ? kExpertsOfAll : good[at];
  }
  const std::vector<int32_t> narrow(given.begin(), given.end());
  std::vector<int32_t> per_rank(2), per_expert(kExpertsOfAll);
  std::vector<uint8_t> in_rank(size_t{kSome} * 2);
  const std::vector<mep_comm_t> hosts = open_comms(2, false);
  need(mep_dispatch_layout(hosts[0], good.data(), 0, kSome, kTopK, kExpertsOfAll, per_rank.data(),
                           per_expert.data(), in_rank.data(), nullptr),
       "mep_dispatch_layout on hosts");
  close_comms(hosts);
  Rank& r = group.use(0);
  auto* index = device_memory<int64_t>(given.size());
  auto* ranks = device_memory<int32_t>(2);
  auto* experts = device_memory<int32_t>(kExpertsOfAll);
  auto* there = device_memory<uint8_t>(in_rank.size());
  for (const bool is_narrow : {false, true}) {
    (void)group.use(0);
    const void* from = is_narrow ? static_cast<const void*>(narrow.data()) : given.data();
    cuda(cudaMemcpy(index, from, given.size() * (is_narrow ? 4 : 8), cudaMemcpyDefault));
    cuda(cudaMemset(ranks, kPoison, 8));
    cuda(cudaMemset(experts, kPoison, kExpertsOfAll * 4));
    cuda(cudaMemset(there, kPoison, in_rank.size()));
    need(mep_dispatch_layout(r.comm, index, is_narrow ? MEP_INT32 : MEP_INT64, kSome, kTopK,
                             kExpertsOfAll, ranks, experts, there, r.stream),
         "mep_dispatch_layout");
    group.synchronize();
    GPU_CHECK(copied(ranks, 2) == per_rank, "tokens per rank");
    GPU_CHECK(copied(experts, kExpertsOfAll) == per_expert, "tokens per expert");
    GPU_CHECK(copied(there, in_rank.size()) == in_rank, "is_token_in_rank");
    need(mep_dispatch_layout(r.comm, index, MEP_INT64, 1, kTopK, 9, nullptr, nullptr, nullptr,
                             r.stream),
         "mep_dispatch_layout without outputs");
    group.synchronize();
  }
  GPU_CHECK(mep_dispatch_layout(r.comm, nullptr, 0, 1, kTopK, 9, ranks, experts, there, r.stream) ==
                MEP_ERR_INVALID_ARGUMENT,
            "no topk_idx");
  for (void* memory : {static_cast<void*>(index), static_cast<void*>(ranks),
                       static_cast<void*>(experts), static_cast<void*>(there)}) {
    cuda(cudaFree(memory));
  }
  std::printf("  mep_dispatch_layout; seed %llu\n", static_cast<unsigned long long>(seed));
}

}  // namespace ep_device
