// Dispatch and combine on communicators with a GPU, through the C ABI alone: ranks are threads of this
// process, and the same calls on host communicators say what must come out, bit by bit. Every seed is
// printed; MEP_TEST_SEED replays one.
#include "ep_device_calls.hpp"
#include "support/ep_halves.hpp"

namespace {

using namespace ep_device;

// --- Tests ----------------------------------------------------------------------------------------

// Rounds of one case, and how often a graph is launched before the outputs are looked at, in it and after a fault.
#ifdef MEP_CUDA_ON_HOST
constexpr int kRounds = 1;
constexpr int kReplays = 3;
constexpr int kLaterReplays = 10;
#else
constexpr int kRounds = 3;
constexpr int kReplays = 50;
constexpr int kLaterReplays = 50;
#endif

// The routing without rows: what the replay before has left stays, but for the sums, which are made again.
void combine_again(Group& group, const Reference& ref, uint32_t buffer, bool library_y) {
  for (uint32_t i = 0; i < group.s.ranks; ++i) {
    Rank& r = group.use(i);
    cuda(cudaMemsetAsync(r.out, kPoison, ref.replayed[i].out.size(), r.stream));
    group.enqueue(i, ref, buffer, false, library_y, MEP_DISPATCH_REPLAY | MEP_DISPATCH_NO_ROWS);
  }
  group.synchronize();
  group.compare(ref.replayed, "MEP_DISPATCH_NO_ROWS");
}

// Other rows by the routing of a dispatch: after its combine and after none, eager and from a graph.
void replays(Group& group, const Reference& ref) {
  group.upload(ref);
  for (const bool apart : {false, true}) {
    for (uint32_t i = 0; i < group.s.ranks; ++i) {
      group.enqueue(i, ref, 0, false, true);
      need(group.dispatch(i, 1, ref.inputs[i].tokens, Halves::kBoth), "mep_dispatch");
    }
    group.synchronize();
    for (const uint32_t buffer : {0u, 1u}) {
      for (int round = 0; round < 3; ++round) {
        group.poison();
        for (uint32_t i = 0; i < group.s.ranks; ++i) {
          group.enqueue(i, ref, buffer, apart, round == 1, MEP_DISPATCH_REPLAY);
        }
        group.synchronize();
        group.compare(ref.replayed,
                      apart ? "MEP_DISPATCH_REPLAY, phases apart" : "MEP_DISPATCH_REPLAY");
        combine_again(group, ref, buffer, round == 2);
      }
    }
  }
  std::vector<cudaGraphExec_t> graphs;
  for (uint32_t i = 0; i < group.s.ranks; ++i) {
    cudaGraph_t graph = nullptr;
    cuda(cudaStreamBeginCapture(group.use(i).stream, cudaStreamCaptureModeThreadLocal));
    group.enqueue(i, ref, 0, false, false);
    group.enqueue(i, ref, 0, false, true, MEP_DISPATCH_REPLAY);
    group.enqueue(i, ref, 0, false, false, MEP_DISPATCH_REPLAY | MEP_DISPATCH_NO_ROWS);
    cuda(cudaStreamEndCapture(group.ranks[i].stream, &graph));
    cuda(cudaGraphInstantiate(&graphs.emplace_back(), graph, 0));
    cuda(cudaGraphDestroy(graph));
  }
  group.poison();
  group.replay(graphs, kReplays);
  group.compare(ref.replayed, "MEP_DISPATCH_REPLAY in a graph");
  for (const cudaGraphExec_t graph : graphs) cuda(cudaGraphExecDestroy(graph));
  const uint32_t tokens = ref.inputs[0].tokens;
  GPU_CHECK(group.dispatch(0, 0, tokens == kTokens ? tokens - 1 : tokens + 1, Halves::kBoth,
                           MEP_DISPATCH_REPLAY) == MEP_ERR_INVALID_ARGUMENT,
            "a replay of other tokens");
}

void agrees(const Shape& s, uint64_t seed) {
  const Reference first = on_hosts(s, s.ranks, seed);
  const Reference second = on_hosts(s, s.ranks, seed + 1);
  Group group(s);
  for (const Reference* ref : {&first, &second}) {
    for (const bool apart : {false, true}) {
      for (const bool library_y : {false, true}) {
        for (int round = 0; round < kRounds; ++round) {
          group.upload(*ref);
          for (uint32_t i = 0; i < s.ranks; ++i) {
            group.enqueue(i, *ref, apart ? 1 : 0, apart, library_y);
          }
          group.synchronize();
          group.compare(*ref, apart ? "eager, phases apart" : "eager");
          if (s.throughput && apart && library_y) group.compare_early(*ref);
        }
      }
    }
  }
  if (s.throughput) replays(group, first);
  group.upload(first);
  const std::vector<cudaGraphExec_t> graphs = group.capture(first);
  for (int round = 0; round <= kRounds; ++round) {
    group.poison();
    group.replay(graphs, kReplays);
    group.compare(first, "replayed");
    group.upload(second);  // eager between replays, other tokens
    for (uint32_t i = 0; i < s.ranks; ++i) group.enqueue(i, second, 0, false, true);
    group.synchronize();
    group.compare(second, "eager between replays");
    group.upload(first);
  }
  group.expect_no_failure("at the end");
  for (const cudaGraphExec_t graph : graphs) cuda(cudaGraphExecDestroy(graph));
  std::printf("  %u ranks, %s%s%s%s: eager, phases apart, %d replays of 2 pairs; seed %llu\n",
              s.ranks, s.rows_name(), s.slotted ? ", slotted" : "", s.with_map ? ", mapped" : "",
              s.throughput ? ", high throughput" : "", (kRounds + 1) * kReplays,
              static_cast<unsigned long long>(seed));
}

// Rank 1 receives late. Rank 0 has received and sends other rows: they must wait until rank 1 has read what came before.
void spares_unread_rows(const Shape& s, uint64_t seed) {
  const Reference first = on_hosts(s, s.ranks, seed);
  const Reference second = on_hosts(s, s.ranks, seed + 1);
  Group group(s);
  group.upload(first);
  const uint32_t tokens[] = {first.inputs[0].tokens, first.inputs[1].tokens};
  // After a combine, and after a dispatch without one. In this pair each kernel runs once: what is left to load then would
  // wait for a kernel that waits.
  for (uint32_t i = 0; i < 2; ++i) group.enqueue(i, first, 0, true, true);
  group.synchronize();
  need(group.dispatch(1, 0, tokens[1], Halves::kSend), "mep_dispatch send");
  need(group.dispatch(0, 0, tokens[0], Halves::kBoth), "mep_dispatch");
  group.use(0);
  cuda(cudaStreamSynchronize(group.ranks[0].stream));
  const std::vector<uint16_t>& x = second.inputs[0].x;
  cuda(cudaMemcpy(group.ranks[0].x, x.data(), x.size() * 2, cudaMemcpyDefault));
  need(group.dispatch(0, 0, tokens[0], Halves::kSend), "mep_dispatch send");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time to do it wrong
  group.use(1);
  need(group.dispatch(1, 0, tokens[1], Halves::kReceive), "mep_dispatch receive");
  cuda(cudaStreamSynchronize(group.ranks[1].stream));
  std::vector<uint8_t> got(first.outputs[1].recv_x.size());
  cuda(cudaMemcpy(got.data(), group.ranks[1].recv_x, got.size(), cudaMemcpyDefault));
  GPU_CHECK(got == first.outputs[1].recv_x, "rows that were not read yet were written over");
  need(group.dispatch(1, 0, tokens[1], Halves::kBoth), "mep_dispatch");
  need(group.dispatch(0, 0, tokens[0], Halves::kReceive), "mep_dispatch receive");
  group.synchronize();
  group.expect_no_failure("late receivers");
  std::printf("  %s: rows that a late receiver has not read are spared; seed %llu\n",
              s.throughput ? "high throughput" : "low latency",
              static_cast<unsigned long long>(seed));
}

// The last rank stops calling; the others run out of time, and then all go on together.
void outlasts(const Shape& s, uint64_t seed) {
  const Reference ref = on_hosts(s, s.ranks, seed);
  Group group(s, kSoonMs);
  group.upload(ref);
  const std::vector<cudaGraphExec_t> graphs = group.capture(ref);
  group.replay(graphs, 5);
  group.compare(ref, "before");
  group.poison();
  for (uint32_t i = 0; i + 1 < s.ranks; ++i) {
    need(group.dispatch(i, 0, ref.inputs[i].tokens, Halves::kBoth), "mep_dispatch");
  }
  group.synchronize();
  // Some run out of time themselves, the first of them ends the others' waits.
  uint32_t timeouts = 0;
  for (uint32_t i = 0; i + 1 < s.ranks; ++i) {
    const mep_result_t result = group.ranks[i].statuses[0].head.result;
    GPU_CHECK(result == MEP_ERR_TIMEOUT || result == MEP_ERR_PEER_FAILED,
              "rank %u: op_status says %s", i, mep_result_string(result));
    const mep_result_t told = mep_comm_async_result(group.ranks[i].comm);
    GPU_CHECK(told == MEP_ERR_TIMEOUT, "rank %u: %s", i, mep_result_string(told));
    timeouts += result == MEP_ERR_TIMEOUT ? 1 : 0;
  }
  GPU_CHECK(timeouts != 0, "nobody's time was over");
  // Until the new view has come calls still go to the old one, and end with it.
  for (uint32_t buffer = 0; buffer < 2; ++buffer) {
    for (uint32_t i = 0; i < s.ranks; ++i) {
      mep_result_t news = MEP_SUCCESS;
      for (int tries = 0; tries < 10'000 && news == MEP_SUCCESS; ++tries) {
        news = group.dispatch(i, buffer, 0, Halves::kBoth);
        cuda(cudaStreamSynchronize(group.ranks[i].stream));
      }
      GPU_CHECK(news == MEP_ERR_TIMEOUT, "rank %u: the report are %s", i, mep_result_string(news));
    }
  }
  for (Rank& r : group.ranks) (void)mep_comm_async_result(r.comm);
  group.upload(ref);
  group.replay(graphs, kLaterReplays);
  group.compare(ref, "replayed after the timeout");
  group.poison();
  for (uint32_t i = 0; i < s.ranks; ++i) group.enqueue(i, ref, 0, true, true);
  group.synchronize();
  group.compare(ref, "eager after the timeout");
  group.expect_no_failure("after the timeout");
  for (const cudaGraphExec_t graph : graphs) cuda(cudaGraphExecDestroy(graph));
  std::printf("  %u ranks, %s: one stops calling, all go on in the next view; seed %llu\n", s.ranks,
              s.rows_name(), static_cast<unsigned long long>(seed));
}

// Operations without op_status are told by mep_ep_last_op.
void tells(uint64_t seed) {
  const Shape s{2, false};
  const Reference ref = on_hosts(s, s.ranks, seed);
  Group group(s);
  group.upload(ref);
  for (Rank& r : group.ranks) {
    const uint32_t i = static_cast<uint32_t>(&r - group.ranks.data());
    DispatchTokens send;
    DispatchRows receive;
    send.num_tokens = ref.inputs[i].tokens;
    send.x = r.x;
    send.topk_idx = r.experts;
    need(dispatch_halves(r.handles[1], &send, &receive, r.stream), "mep_dispatch");
  }
  group.synchronize();
  for (uint32_t i = 0; i < s.ranks; ++i) {
    const Rank& r = group.ranks[i];
    uint64_t contributors = 0;
    mep_op_info_t info;
    mep_op_info_defaults(&info);
    info.contributors = &contributors;
    info.contributors_words = 1;
    GPU_CHECK(mep_ep_last_op(r.ep, 0, &info) == MEP_ERR_NOT_FOUND, "nothing ran on buffer 0");
    need(mep_ep_last_op(r.ep, 1, &info), "mep_ep_last_op");
    GPU_CHECK(info.result == MEP_SUCCESS && info.seq == 1 && info.epoch == 1 && contributors == 3,
              "result %d, operation %llu of epoch %llu, contributors %llx", info.result,
              static_cast<unsigned long long>(info.seq),
              static_cast<unsigned long long>(info.epoch),
              static_cast<unsigned long long>(contributors));
    // Counts that the library keeps have their own place.
    mep_ep_view_t view;
    mep_ep_view_defaults(&view);
    need(mep_ep_buffer_view(r.ep, 1, &view), "mep_ep_buffer_view");
    std::vector<uint8_t> counts(kLocalExperts * 4);
    cuda(cudaSetDevice(r.gpu));  // the library maps them on this GPU alone
    cuda(cudaMemcpy(counts.data(), view.recv_count, counts.size(), cudaMemcpyDefault));
    GPU_CHECK(counts == ref.outputs[i].counts, "recv_count of the view");
  }
  std::printf("  mep_ep_last_op and mep_ep_buffer_view; seed %llu\n",
              static_cast<unsigned long long>(seed));
}

// The last rank aborts while the others wait for it in a dispatch.
void survives(const Shape& s, bool graphs_only, uint64_t seed) {
  const uint32_t live = s.ranks - 1;
  const Reference before = on_hosts(s, s.ranks, seed);
  const Reference after = on_hosts(s, live, seed + 1);
  // Graphs have the token counts of `after` in them: captured first, replayed before and after the fault.
  Group group(s);
  group.upload(after);
  const std::vector<cudaGraphExec_t> graphs = group.capture(after);
  group.replay(graphs, 10);
  group.live = live;
  group.compare(after, "before the fault");
  group.live = s.ranks;
  group.upload(before);
  for (uint32_t i = 0; i < s.ranks; ++i) group.enqueue(i, before, 0, false, false);
  group.synchronize();
  group.compare(before, "before the fault, eager");

  group.poison();
  group.live = live;
  for (uint32_t i = 0; i < live; ++i) {
    need(group.dispatch(i, 0, before.inputs[i].tokens, Halves::kBoth), "mep_dispatch");
  }
  need(mep_comm_abort(group.ranks[live].comm), "mep_comm_abort");
  group.synchronize();
  for (uint32_t i = 0; i < live; ++i) {
    const Rank& r = group.ranks[i];
    GPU_CHECK(r.statuses[0].head.result == MEP_ERR_PEER_FAILED, "rank %u: op_status says %s", i,
              mep_result_string(r.statuses[0].head.result));
    const mep_result_t told = mep_comm_async_result(r.comm);
    GPU_CHECK(told == MEP_ERR_PEER_FAILED, "rank %u: %s: %s", i, mep_result_string(told),
              mep_last_error());
    std::vector<int32_t> counts(kLocalExperts);
    cuda(cudaMemcpy(counts.data(), r.counts, kLocalExperts * 4, cudaMemcpyDefault));
    for (const int32_t count : counts)
      GPU_CHECK(count == 0, "rank %u: %d rows of nothing", i, count);
  }
  GPU_CHECK(group.dispatch(live, 0, 0, Halves::kBoth) == MEP_ERR_ABORTED, "the aborted rank");
  // The next call on each buffer meets the new view.
  for (uint32_t buffer = 0; buffer < 2; ++buffer) {
    for (uint32_t i = 0; i < live; ++i) {
      if (graphs_only) {
        mep_op_info_t info;
        mep_op_info_defaults(&info);
        GPU_CHECK(mep_ep_last_op(group.ranks[i].ep, buffer, &info) == MEP_ERR_NOT_FOUND,
                  "last_op: %s", mep_last_error());
      } else {
        const mep_result_t news = group.dispatch(i, buffer, 0, Halves::kBoth);
        GPU_CHECK(news == MEP_ERR_PEER_FAILED, "rank %u: the report are %s", i,
                  mep_result_string(news));
      }
    }
  }
  group.upload(after);
  group.replay(graphs, kLaterReplays);
  group.compare(after, "replayed after the fault");
  group.poison();
  for (uint32_t i = 0; i < live; ++i) group.enqueue(i, after, 1, true, true);
  group.synchronize();
  group.compare(after, "eager after the fault");
  group.expect_no_failure("after the fault");
  for (const cudaGraphExec_t graph : graphs) cuda(cudaGraphExecDestroy(graph));
  std::printf("  %u ranks, %s: one aborts; the others go on %s; seed %llu\n", s.ranks,
              s.rows_name(), graphs_only ? "by mep_ep_last_op" : "by their next call",
              static_cast<unsigned long long>(seed));
}

void refuses() {
  Group group({2, false});
  Rank& r = group.ranks[0];
  DispatchTokens send;
  DispatchRows receive;
  send.num_tokens = 1;
  send.x = r.x;
  send.topk_idx = r.experts;
  const auto refused = [&](cudaStream_t stream, const char* what) {
    GPU_CHECK(dispatch_halves(r.handles[0], &send, &receive, stream) == MEP_ERR_INVALID_ARGUMENT,
              "%s is taken", what);
  };
  if (gpu_count() == 1) {
    refused(nullptr, "the NULL stream");
  } else {
    refused(group.ranks[1].stream, "a stream of another GPU");
    send.x = group.ranks[1].x;
    refused(r.stream, "memory of another GPU");
    send.x = r.x;
  }
  send.num_tokens = kTokens + 1;
  refused(r.stream, "T > M");
  send.num_tokens = 1;
  send.x = reinterpret_cast<const std::byte*>(r.x) + 2;
  refused(r.stream, "a row off its alignment");
  send.x = r.x;
  receive.op_status = &r.statuses[0].head;
  refused(r.stream, "an op_status of no bytes");
  receive.op_status = reinterpret_cast<mep_op_status_t*>(&r.statuses[0].head.result - 1);
  receive.op_status_bytes = kStatusBytes;
  refused(r.stream, "an op_status off its alignment");
  receive.op_status = nullptr;
  mep_ep_view_t view;
  mep_ep_view_defaults(&view);
  need(mep_ep_buffer_view(r.ep, 0, &view), "mep_ep_buffer_view");
  receive.recv_x = const_cast<void*>(view.recv_x);
  refused(r.stream, "the library's recv_x");
  receive.recv_x = nullptr;
  receive.statistics_type = MEP_FLOAT32;
  refused(r.stream, "statistics of floats");
  const auto unsupported = [&](const char* part) {
    GPU_CHECK(dispatch_halves(r.handles[0], &send, &receive, r.stream) == MEP_ERR_UNSUPPORTED &&
                  std::strstr(mep_last_error(), part) != nullptr,
              "%s is taken, or refused by \"%s\"", part, mep_last_error());
    receive = DispatchRows();
  };
  receive.statistics_type = MEP_INT32;
  unsupported("statistics_type");
  receive.timeout_ms = 1;
  unsupported("timeout_ms");
  receive.wait_ns = r.experts;
  unsupported("wait_ns");
  mep_dispatch_options_t options;
  mep_dispatch_options_defaults(&options);
  options.timeout_ms = 1;
  GPU_CHECK(mep_dispatch_send(r.handles[0], r.x, r.experts, nullptr, 1, &options, r.stream) ==
                MEP_ERR_UNSUPPORTED,
            "a timeout of a send is taken");
  GPU_CHECK(
      mep_dispatch_receive(r.handles[0], nullptr, nullptr, r.stream) == MEP_ERR_INVALID_ARGUMENT &&
          group.dispatch(0, 0, 1, Halves::kReceive) == MEP_ERR_INVALID_ARGUMENT &&
          group.combine(0, 0, Halves::kReceive, false) == MEP_ERR_INVALID_ARGUMENT,
      "nothing, or what was not sent");
  GPU_CHECK(group.combine(0, 0, Halves::kBoth, false) == MEP_ERR_INVALID_ARGUMENT, "no dispatch");
  mep_ep_config_t config = ep_config(group.s);
  mep_ep_size_t size;
  mep_ep_size_defaults(&size);
  need(mep_ep_buffer_size(r.comm, &config, &size), "mep_ep_buffer_size");
  GPU_CHECK(size.window_bytes + size.private_bytes > uint64_t{2} * group.s.rows() * kHidden * 4,
            "size of windows");
  GPU_CHECK(group.dispatch(0, 0, 1, Halves::kBoth, MEP_DISPATCH_REPLAY) == MEP_ERR_INVALID_ARGUMENT,
            "a replay in low latency");
  group.expect_no_failure("refusals");
  std::printf("  what is refused is refused\n");
}

// A reach that is given changes what carries a row and not the row: each number of ranks that have peers, in one wire
// format.
bool is_left_out(uint32_t ranks, bool fp8) {
  return !asked_reach().empty() && (ranks == 1 || fp8 == (ranks == 4));
}

// Each layout and number of ranks in each wire format, and each form of rows.
void matrix(uint64_t seed) {
  // Several ranks first: this thread enqueues all of a rank's operations before those of the next, so a
  // kernel whose first launch waited for one that runs would wait for ever.
  for (const bool fp8 : {false, true}) {
    for (const uint32_t ranks : {8u, 4u, 2u, 1u}) {
      if (!is_left_out(ranks, fp8)) agrees({ranks, fp8}, seed + ranks);
    }
  }
  agrees({4, true, true, false}, seed + 50);
  agrees({8, false, false, true}, seed + 60);
  for (const bool throughput : {false, true}) {
    for (const bool second : {false, true}) {  // slotted, or expanded
      const bool slotted = second && !throughput;
      agrees({3, false, slotted, false, throughput, second && throughput, true}, seed + 61);
    }
  }
  for (const bool fp8 : {false, true}) {
    for (const uint32_t ranks : {8u, 4u, 2u, 1u}) {
      if (is_left_out(ranks, fp8)) continue;
      agrees({ranks, fp8, false, ranks == 4, true}, seed + 600 + ranks);
      agrees({ranks, fp8, false, ranks == 4, true, true}, seed + 700 + ranks);
    }
  }
  for (const bool throughput : {false, true}) {
    agrees({.ranks = 3, .fp8 = true, .throughput = throughput, .scale_type = MEP_SCALE_UE8M0_32},
           seed + 63);
  }
  for (const bool throughput : {false, true})
    spares_unread_rows({2, false, false, false, throughput}, seed + 65);
  tells(seed + 70);
  tells_tokens({2, false, false, false, true, true}, seed + 75);
  tells_tokens({8, true, false, false, true, true}, seed + 76);
  counts_layouts(seed + 77);
  fills_callers_rows(seed + 78);
  outlasts({4, false}, seed + 400);
  outlasts({8, true, true}, seed + 500);
  outlasts({4, true, false, false, true}, seed + 510);
  survives({4, false}, false, seed + 100);
  survives({8, true}, false, seed + 200);
  survives({4, true}, true, seed + 300);
  survives({4, true, false, false, true}, false, seed + 310);
  survives({4, true, false, false, true, true}, false, seed + 320);
}

// Each layout, each form of rows and each kind of fault once, with peers on both GPUs and on the other one alone.
void slice(uint64_t seed) {
  agrees({8, true}, seed + 8);
  agrees({3, false, true, false, false, false, true}, seed + 61);
  agrees({2, false, false, false, true, true}, seed + 702);
  agrees({4, false, false, true, true}, seed + 604);
  agrees({3, false, false, false, true, true, true}, seed + 61);
  agrees({.ranks = 3, .fp8 = true, .scale_type = MEP_SCALE_UE8M0_32}, seed + 63);
  for (const bool throughput : {false, true})
    spares_unread_rows({2, false, false, false, throughput}, seed + 65);
  fills_callers_rows(seed + 78);
  outlasts({4, true, false, false, true}, seed + 510);
  survives({4, true}, true, seed + 300);
  survives({4, true, false, false, true, true}, false, seed + 320);
}

}  // namespace

// --slice: the part that the gate has of a reach of its own.
int main(int argc, char** argv) {
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gpu_is_there()) return kSkipped;
  std::printf("ranks are dealt to %d GPU(s)\n", gpu_count());
  const uint64_t seed = seed_of_run();
  refuses();
  const bool is_slice = argc > 1 && std::strcmp(argv[1], "--slice") == 0;
  (is_slice ? slice : matrix)(seed);
  std::printf(failure_count() == 0 ? "ep_device_test: passed\n" : "ep_device_test: FAILED\n");
  return failure_count() == 0 ? 0 : 1;
}
