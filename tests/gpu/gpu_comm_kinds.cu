// The kinds in which ranks get different things (reduce, gather, scatter, reduce_scatter, alltoall), through the C ABI
// on GPUs: of themselves, in graphs that are replayed, and in place.
#include "gpu_comm_rig.hpp"

namespace gpu_test {

// Each kind of itself and in a graph with a barrier behind it, which is replayed.
void kinds(uint32_t count) {
  std::vector<Rank> ranks = open_ranks(count, 20'000);
  const uint32_t root = count - 1;
  each_kind(ranks, count, "eager");
  for (const Kind kind : kKinds) {
    std::vector<cudaGraphExec_t> graphs;
    for (uint32_t i = 0; i < count; ++i) {
      graphs.push_back(capture(ranks[i], [&] {
        need(enqueue_kind(ranks[i], kind, i, root), name_of(kind));
        need(mep_barrier(ranks[i].comm, ranks[i].stream), "mep_barrier");
      }));
    }
    for (int replay = 0; replay < 5; ++replay) {
      poison(ranks);
      for (uint32_t i = 0; i < count; ++i) cuda(cudaGraphLaunch(graphs[i], ranks[i].stream));
      synchronize_all();
      expect_kind(ranks, kind, root, (uint64_t{1} << count) - 1, "replayed");
    }
    for (const cudaGraphExec_t graph : graphs) cuda(cudaGraphExecDestroy(graph));
  }
  close_ranks(&ranks);
  std::printf("  %u ranks: reduce, gather, scatter, reduce_scatter and alltoall\n", count);
}

// The forms in place, and what is refused of overlapping buffers.
void kinds_in_place(uint32_t count) {
  std::vector<Rank> ranks = open_ranks(count, 20'000);
  const uint64_t all = (uint64_t{1} << count) - 1;
  const uint32_t root = count / 2;
  const auto to = static_cast<int32_t>(root);
  GPU_CHECK(mep_alltoall(ranks[0].send, ranks[0].send, kCount, MEP_UINT32, ranks[0].comm,
                         ranks[0].stream) == MEP_ERR_INVALID_ARGUMENT,
            "alltoall has no form in place");
  const auto expect = [&](const char* name, uint32_t rank, uint32_t block, uint32_t right) {
    const uint32_t* got = ranks[rank].send + block * kCount;
    GPU_CHECK(got[0] == right && got[kCount - 1] == right,
              "%s in place, rank %u, block %u: %x, not %x", name, rank, block, got[0], right);
  };
  for (uint32_t i = 0; i < count; ++i) {
    const Rank& r = ranks[i];
    uint32_t* own = r.send + i * kCount;
    // One after the other on the same buffer: the root's block 0 becomes a sum, which it then scatters.
    need(mep_reduce(r.send, i == root ? r.send : nullptr, kCount, MEP_UINT32, MEP_SUM, to, r.comm,
                    r.stream),
         "mep_reduce");
    need(mep_scatter(r.send, i == root ? own : r.receive, kCount, MEP_UINT32, to, r.comm, r.stream),
         "mep_scatter");
  }
  synchronize_all();
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t sum = wanted(Kind::kReduce, root, 0, root, all);
    const uint32_t right = i == 0 ? sum : value(root, i);
    if (i != root) {
      GPU_CHECK(ranks[i].receive[0] == right && ranks[i].receive[kCount - 1] == right,
                "scatter of a sum, rank %u: %x, not %x", i, ranks[i].receive[0], right);
    }
    expect("scatter", root, i, right);
  }
  for (uint32_t i = 0; i < count; ++i) {
    for (size_t k = 0; k < kCount * count; ++k) {
      ranks[i].send[k] = value(i, static_cast<uint32_t>(k / kCount));
    }
    uint32_t* own = ranks[i].send + i * kCount;
    need(mep_reduce_scatter(ranks[i].send, own, kCount, MEP_UINT32, MEP_SUM, ranks[i].comm,
                            ranks[i].stream),
         "mep_reduce_scatter");
    need(mep_gather(own, i == root ? ranks[i].send : nullptr, kCount, MEP_UINT32, to, ranks[i].comm,
                    ranks[i].stream),
         "mep_gather");
  }
  synchronize_all();
  for (uint32_t block = 0; block < count; ++block) {
    expect("gather", root, block, wanted(Kind::kReduceScatter, block, 0, root, all));
  }
  for (const Rank& rank : ranks) {
    GPU_CHECK(mep_comm_async_result(rank.comm) == MEP_SUCCESS, "in place: %s", mep_last_error());
  }
  close_ranks(&ranks);
  std::printf("  %u ranks: the same in place\n", count);
}

}  // namespace gpu_test
