// Collectives with a length for each block, through the C ABI on GPUs: random lengths, gaps and unaligned places, eager and
// in graphs, and lengths that do not fit together. Each byte that is given says who gives it, to whom and where in the block;
// a reduce-scatter takes all bytes of a place by MEP_XOR.
#include <numeric>
#include <random>

#include "gpu_comm_rig.hpp"

namespace gpu_test {
namespace {

constexpr uint8_t kEmpty = 0xee;
enum class Counted { kAllgatherv, kGatherv, kScatterv, kReduceScatterv, kAlltoallv };
constexpr const char* kCountedNames[] = {"allgatherv", "gatherv", "scatterv", "reduce_scatterv",
                                         "alltoallv"};

uint8_t byte_of(uint64_t seed, uint32_t from, uint32_t to, uint64_t i) {
  const uint64_t mix = (seed + from * 131 + to * 17 + i) * 0x9e3779b97f4a7c15u;
  return static_cast<uint8_t>(mix >> 56);
}

// One call of all ranks: the length of each block, and where each rank has its blocks.
struct Shape {
  Counted kind;
  uint32_t ranks, root;
  uint64_t seed;
  std::vector<std::vector<uint64_t>> lengths;              // [from][to]
  std::vector<std::vector<uint64_t>> send_at, receive_at;  // [rank][other]
  std::vector<uint64_t> send_bytes, receive_bytes;         // of the buffers

  bool is_given(uint32_t from, uint32_t to) const {
    if (kind == Counted::kGatherv) return to == root;
    return kind != Counted::kScatterv || from == root;
  }
  // All ranks are given the same of one.
  uint32_t named(uint32_t to) const { return kind == Counted::kAllgatherv ? 0 : to; }
};

// Blocks in an order of their own, with gaps of up to 40 bytes.
uint64_t place(const std::vector<uint64_t>& lengths, std::mt19937_64* random,
               std::vector<uint64_t>* at) {
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), *random);
  at->assign(lengths.size(), 0);
  uint64_t end = 0;
  for (const size_t each : order) {
    end += (*random)() % 41;
    (*at)[each] = end;
    end += lengths[each];
  }
  return end;
}

Shape draw_shape(Counted kind, uint32_t ranks, uint64_t most, uint64_t seed) {
  std::mt19937_64 random(seed);
  Shape s{kind, ranks, static_cast<uint32_t>(random() % ranks), seed, {}, {}, {}, {}, {}};
  s.lengths.assign(ranks, std::vector<uint64_t>(ranks));
  for (uint32_t from = 0; from < ranks; ++from) {
    for (uint32_t to = 0; to < ranks; ++to) {
      const uint64_t limit = random() % 4 == 0 ? std::min<uint64_t>(most, 20) : most;
      const uint64_t drawn = random() % (limit + 1);
      const bool is_copy = kind == Counted::kAllgatherv && to != 0;
      s.lengths[from][to] = is_copy ? s.lengths[from][0] : s.is_given(from, to) ? drawn : 0;
      if (kind == Counted::kReduceScatterv) s.lengths[from][to] = s.lengths[0][to];
    }
  }
  s.send_at.resize(ranks);
  s.receive_at.resize(ranks);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    std::vector<uint64_t> gotten;
    for (uint32_t from = 0; from < ranks; ++from) gotten.push_back(s.lengths[from][rank]);
    uint64_t sent = place(s.lengths[rank], &random, &s.send_at[rank]);
    uint64_t received = place(gotten, &random, &s.receive_at[rank]);
    // Buffers of one block have it at their begin.
    if (kind == Counted::kAllgatherv || kind == Counted::kGatherv) {
      s.send_at[rank].assign(ranks, 0);
      sent = *std::max_element(s.lengths[rank].begin(), s.lengths[rank].end());
    }
    if (kind == Counted::kScatterv || kind == Counted::kReduceScatterv) {
      s.receive_at[rank].assign(ranks, 0);
      received = gotten[s.root];
    }
    s.send_bytes.push_back(sent);
    s.receive_bytes.push_back(received);
  }
  return s;
}

struct Buffers {
  uint8_t* send = nullptr;
  uint8_t* receive = nullptr;
};

// off: bytes off 16, of all buffers.
std::vector<Buffers> make_buffers(const Shape& s, uint32_t off) {
  std::vector<Buffers> all(s.ranks);
  for (uint32_t rank = 0; rank < s.ranks; ++rank) {
    cuda(cudaMallocHost(&all[rank].send, s.send_bytes[rank] + 16));
    cuda(cudaMallocHost(&all[rank].receive, s.receive_bytes[rank] + 16));
    all[rank].send += off;
    all[rank].receive += off;
    std::memset(all[rank].receive, kEmpty, s.receive_bytes[rank]);
    for (uint32_t to = 0; to < s.ranks; ++to) {
      for (uint64_t i = 0; i < s.lengths[rank][to]; ++i) {
        all[rank].send[s.send_at[rank][to] + i] = byte_of(s.seed, rank, s.named(to), i);
      }
    }
  }
  return all;
}

mep_result_t call(const Shape& s, const Rank& r, const Buffers& b, uint32_t rank,
                  uint64_t more_expected) {
  const auto root = static_cast<int32_t>(s.root);
  std::vector<uint64_t> gotten;
  for (uint32_t from = 0; from < s.ranks; ++from) gotten.push_back(s.lengths[from][rank]);
  gotten[(rank + 1) % s.ranks] += more_expected;
  const uint64_t* given = s.lengths[rank].data();
  const uint64_t* at = s.receive_at[rank].data();
  switch (s.kind) {
    case Counted::kAllgatherv:
      return mep_allgatherv(b.send, b.receive, gotten.data(), at, MEP_UINT8, r.comm, r.stream);
    case Counted::kGatherv:
      return mep_gatherv(b.send, b.receive, given[s.root], gotten.data(), at, MEP_UINT8, root,
                         r.comm, r.stream);
    case Counted::kScatterv:
      return mep_scatterv(b.send, b.receive, gotten[s.root], given, s.send_at[rank].data(),
                          MEP_UINT8, root, r.comm, r.stream);
    case Counted::kReduceScatterv:
      return mep_reduce_scatterv(b.send, b.receive, given, s.send_at[rank].data(), MEP_UINT8,
                                 MEP_XOR, r.comm, r.stream);
    case Counted::kAlltoallv:
      break;
  }
  return mep_alltoallv(b.send, b.receive, given, s.send_at[rank].data(), gotten.data(), at,
                       MEP_UINT8, r.comm, r.stream);
}

void expect_blocks(const Shape& s, const std::vector<Buffers>& all, const char* where) {
  for (uint32_t rank = 0; rank < s.ranks; ++rank) {
    const bool reduces = s.kind == Counted::kReduceScatterv;
    std::vector<uint8_t> right(s.receive_bytes[rank], reduces ? uint8_t{0} : kEmpty);
    for (uint32_t from = 0; from < s.ranks; ++from) {
      for (uint64_t i = 0; i < s.lengths[from][rank]; ++i) {
        uint8_t& byte = right[s.receive_at[rank][from] + i];
        byte = byte_of(s.seed, from, s.named(rank), i) ^ (reduces ? byte : uint8_t{0});
      }
    }
    size_t first = 0;
    while (first < right.size() && right[first] == all[rank].receive[first]) ++first;
    GPU_CHECK(first == right.size(), "%s: %s of %u ranks, seed %llu: byte %zu of rank %u", where,
              kCountedNames[static_cast<size_t>(s.kind)], s.ranks,
              static_cast<unsigned long long>(s.seed), first, rank);
  }
}

void free_buffers(const std::vector<Buffers>& all, uint32_t off) {
  for (const Buffers& each : all) {
    cuda(cudaFreeHost(each.send - off));
    cuda(cudaFreeHost(each.receive - off));
  }
}

void run_shape(const std::vector<Rank>& ranks, const Shape& s, bool in_graph) {
  const uint32_t off = s.seed % 3 == 0 ? static_cast<uint32_t>(s.seed % 16) : 0;
  const std::vector<Buffers> all = make_buffers(s, off);
  for (uint32_t rank = 0; rank < s.ranks && !in_graph; ++rank) {
    need(call(s, ranks[rank], all[rank], rank, 0), "a call with counts");
  }
  std::vector<cudaGraphExec_t> graphs;
  for (uint32_t rank = 0; rank < s.ranks && in_graph; ++rank) {
    graphs.push_back(capture(ranks[rank], [&] {
      need(call(s, ranks[rank], all[rank], rank, 0), "a call with counts");
    }));
  }
  for (int replay = 0; replay < 3 && in_graph; ++replay) {
    for (uint32_t rank = 0; rank < s.ranks; ++rank) {
      cuda(cudaGraphLaunch(graphs[rank], ranks[rank].stream));
    }
  }
  synchronize_all();
  expect_blocks(s, all, in_graph ? "replayed" : "eager");
  for (const cudaGraphExec_t graph : graphs) cuda(cudaGraphExecDestroy(graph));
  free_buffers(all, off);
}

// One rank expects more than it gets, or all do: all fail alike, and the next call is in step.
void lengths_differ(const std::vector<Rank>& ranks, bool all_expect, uint64_t seed) {
  const Shape s = draw_shape(Counted::kAlltoallv, static_cast<uint32_t>(ranks.size()), 5'000, seed);
  const std::vector<Buffers> all = make_buffers(s, 0);
  for (uint32_t rank = 0; rank < s.ranks; ++rank) {
    const uint64_t more = all_expect || rank == s.root ? 1 : 0;
    need(call(s, ranks[rank], all[rank], rank, more), "a call with counts");
  }
  synchronize_all();
  for (uint32_t rank = 0; rank < s.ranks; ++rank) {
    const mep_result_t result = mep_comm_async_result(ranks[rank].comm);
    GPU_CHECK(result == MEP_ERR_MISMATCH, "lengths differ, rank %u: %s", rank,
              mep_result_string(result));
  }
  free_buffers(all, 0);
  run_shape(ranks, draw_shape(Counted::kAlltoallv, s.ranks, 5'000, seed + 1), false);
}

}  // namespace

void counts(uint32_t count, uint64_t seed) {
  std::vector<Rank> ranks = open_ranks(count, 20'000);
  for (const Counted kind : {Counted::kAllgatherv, Counted::kGatherv, Counted::kScatterv,
                             Counted::kReduceScatterv, Counted::kAlltoallv}) {
    uint64_t drawn = seed + static_cast<uint64_t>(kind) * 100;
    for (const uint64_t most : {0u, 1u, 60u, 3'000u, 200'000u}) {
      run_shape(ranks, draw_shape(kind, count, most, ++drawn), most == 3'000);
    }
  }
  // Several chunks.
  for (const Counted kind : {Counted::kAlltoallv, Counted::kReduceScatterv}) {
    run_shape(ranks, draw_shape(kind, count, (20u << 20) / count, seed + 7), false);
  }
  lengths_differ(ranks, false, seed + 11);
  lengths_differ(ranks, true, seed + 21);
  for (const Rank& rank : ranks) {
    GPU_CHECK(mep_comm_async_result(rank.comm) == MEP_SUCCESS, "with counts: %s", mep_last_error());
  }
  close_ranks(&ranks);
  std::printf("  %u ranks: calls with counts\n", count);
}

}  // namespace gpu_test
