// Dispatch and combine with ranks that are processes (without MPS those of one GPU take turns there): the
// same bytes as on host communicators, and one rank killed while its kernel runs. Started without
// --rank it starts the ranks. --scene N runs that scene alone. The seed is printed; MEP_TEST_SEED replays it.
#include "ep_device_rig.hpp"

namespace {

using namespace ep_device;

// How the last rank is killed, and what the others do meanwhile.
enum class Fault {
  kBusy,     // it runs a kernel of its own while the others wait for it in a dispatch
  kWaiting,  // it waits in a dispatch, as all but rank 0 do, which has not called
};

struct Scene {
  Shape s;
  Fault fault;
};
const Scene kScenes[] = {{{2, false}, Fault::kBusy},
                         {{4, true}, Fault::kWaiting},
                         {{4, false, true}, Fault::kBusy},
                         {{4, true, false, false, true}, Fault::kBusy},
                         {{2, false, false, false, true, true}, Fault::kBusy}};

void agrees(Group& group, const Reference& ref, uint32_t rank) {
  for (const bool apart : {false, true}) {
    for (const bool library_y : {false, true}) {
      group.upload(ref);
      group.enqueue(rank, ref, apart ? 1 : 0, apart, library_y);
      group.synchronize();
      group.compare(ref, apart ? "processes, phases apart" : "processes");
    }
  }
}

// This rank's dispatch waits for the killed one, or rank 0 sees the view without it. Either way the
// next call on each buffer tells the report; that may be the dispatch itself.
void is_told(Group& group, const Reference& ref, uint32_t rank, Fault fault) {
  const Rank& r = group.ranks[rank];
  uint32_t told_buffers = 0;
  const bool waits = fault == Fault::kWaiting && rank == 0;
  const mep_result_t called = waits
                                  ? mep_result_t{MEP_SUCCESS}
                                  : group.dispatch(rank, 0, ref.inputs[rank].tokens, Halves::kBoth);
  if (waits) {
    uint64_t epoch = 0;
    need(mep_comm_epoch(r.comm, &epoch), "mep_comm_epoch");
    if (epoch == 1) need(mep_comm_wait_view(r.comm, 1, 20'000), "mep_comm_wait_view");
  } else if (called == MEP_ERR_PEER_FAILED) {
    told_buffers = 1;
  } else {
    need(called, "mep_dispatch");
    group.synchronize();
    GPU_CHECK(r.statuses[0].head.result == MEP_ERR_PEER_FAILED, "rank %u: op_status says %s", rank,
              mep_result_string(r.statuses[0].head.result));
    const mep_result_t told = mep_comm_async_result(r.comm);
    GPU_CHECK(told == MEP_ERR_PEER_FAILED, "rank %u: %s: %s", rank, mep_result_string(told),
              mep_last_error());
    std::vector<int32_t> counts(kLocalExperts);
    cuda(cudaMemcpy(counts.data(), r.counts, kLocalExperts * 4, cudaMemcpyDefault));
    for (const int32_t count : counts) GPU_CHECK(count == 0, "rank %u: %d rows", rank, count);
  }
  for (uint32_t buffer = told_buffers; buffer < 2; ++buffer) {
    // Until the view has come here, too, calls go to the old one and end with it.
    mep_result_t news = MEP_SUCCESS;
    for (int tries = 0; tries < 10'000 && news == MEP_SUCCESS; ++tries) {
      news = group.dispatch(rank, buffer, 0, Halves::kBoth);
      cuda(cudaStreamSynchronize(r.stream));
    }
    GPU_CHECK(news == MEP_ERR_PEER_FAILED, "rank %u: the report are %s", rank,
              mep_result_string(news));
  }
  (void)mep_comm_async_result(r.comm);
}

[[noreturn]] void die(Group& group, const Reference& ref, uint32_t rank, Fault fault) {
  const Mark begun;
  // With kWaiting the dispatch follows in the stream.
  const uint64_t ns = fault == Fault::kBusy ? 5'000'000'000 : 0;
  mep::device::launch_kernel(busy_for, 1, 1, 0, group.use(rank).stream, ns, begun.word());
  if (fault == Fault::kWaiting) {
    need(group.dispatch(rank, 0, ref.inputs[rank].tokens, Halves::kBoth), "mep_dispatch");
  }
  begun.wait();
  die_now();
}

int rank_main(const Scene& scene, uint64_t seed) {
  const Shape& s = scene.s;
  const uint32_t live = s.ranks - 1;
  const Reference before = on_hosts(s, s.ranks, seed);
  // Tokens of the graphs: they name experts of those who will survive.
  const Reference after = on_hosts(s, live, seed + 1);
  const mep_comm_t comm = open_own_comm();
  int32_t own = 0;
  need(mep_comm_rank(comm, &own), "mep_comm_rank");
  const auto rank = static_cast<uint32_t>(own);
  double told_ms = 0;
  {
    Group group(s, {comm}, rank);
    agrees(group, before, rank);
    group.upload(after);
    const std::vector<cudaGraphExec_t> graphs = group.capture(after);
    group.replay(graphs, 10);
    group.live = live;
    group.compare(after, "replayed");
    group.expect_no_failure("before the fault");
    // The victim's NIC may still hold bytes of the last replay, which would die with it.
    need(mep_barrier(comm, group.use(rank).stream), "mep_barrier");
    group.synchronize();
    if (rank == live) die(group, before, rank, scene.fault);
    group.upload(before);
    const double begin = now_s();
    is_told(group, before, rank, scene.fault);
    told_ms = (now_s() - begin) * 1e3;
    group.upload(after);
    group.replay(graphs, 10);
    group.compare(after, "replayed after the fault");
    group.poison();
    group.enqueue(rank, after, 1, true, true);
    group.synchronize();
    group.compare(after, "eager after the fault");
    group.expect_no_failure("after the fault");
    for (const cudaGraphExec_t graph : graphs) cuda(cudaGraphExecDestroy(graph));
  }
  if (rank == 0) {
    std::printf(
        "  %u processes, %s%s%s: dispatch and combine; one killed in mid-kernel, the others told "
        "after %.0f ms; 10 replays of the old graph\n",
        s.ranks, s.fp8 ? "fp8" : "bf16", s.slotted ? ", slotted" : "",
        s.throughput ? ", high throughput" : "", told_ms);
  }
  return failure_count() == 0 ? 0 : 1;
}

int start(const char* program, size_t index, uint64_t seed) {
  return start_ranks(program, kScenes[index].s.ranks, "ep" + std::to_string(index) + ".",
                     {"--rank", std::to_string(index), std::to_string(seed)});
}

}  // namespace

int main(int argc, char** argv) {
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc > 3 && std::strcmp(argv[1], "--rank") == 0) {
    return rank_main(kScenes[std::strtoul(argv[2], nullptr, 10)],
                     std::strtoull(argv[3], nullptr, 10));
  }
  if (!gpu_is_there()) return kSkipped;
  std::printf("ranks are dealt to %d GPU(s)\n", gpu_count());
  const uint64_t seed = seed_of_run();
  int failed = 0;
  const bool one = argc > 2 && std::strcmp(argv[1], "--scene") == 0;
  const size_t only = one ? std::strtoul(argv[2], nullptr, 10) : 0;
  for (size_t i = 0; i < std::size(kScenes); ++i)
    if (!one || i == only) failed |= start(argv[0], i, seed + 10 * i);
  std::printf(failed == 0 ? "ep_process_test: passed\n" : "ep_process_test: FAILED\n");
  return failed;
}
