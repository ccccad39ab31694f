// Dispatch and combine on one GPU with ranks that are processes (without MPS they take turns there): the
// same bytes as on host communicators, and one rank killed while its kernel runs. Started without
// arguments it starts the ranks. The seed is printed; MEP_TEST_SEED replays it.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

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
const Scene kScenes[] = {
    {{2, false}, Fault::kBusy}, {{4, true}, Fault::kWaiting}, {{4, false, true}, Fault::kBusy}};

__global__ void busy_for(uint64_t ns) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < ns);
}

double now_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

mep_comm_t open_comm() {
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  config.flags = MEP_COMM_SET_DEVICE;
  config.timeout_ms = 20'000;
  mep_comm_t comm = nullptr;
  need(mep_comm_init(&config, &comm), "mep_comm_init");
  return comm;
}

void agrees(Group& group, const Reference& ref, uint32_t rank) {
  for (const bool apart : {false, true}) {
    for (const bool library_y : {false, true}) {
      group.upload(ref);
      group.enqueue(rank, ref, apart ? 1 : 0, apart, library_y);
      CUDA(cudaDeviceSynchronize());
      group.compare(ref, apart ? "processes, phases apart" : "processes");
    }
  }
}

// This rank's dispatch waits for the killed one, or rank 0 sees the view without it. Either way the
// next call on each buffer tells the news.
void is_told(Group& group, const Reference& ref, uint32_t rank, Fault fault) {
  const Rank& r = group.ranks[rank];
  if (fault == Fault::kWaiting && rank == 0) {
    uint64_t epoch = 0;
    need(mep_comm_epoch(r.comm, &epoch), "mep_comm_epoch");
    if (epoch == 1) need(mep_comm_wait_view(r.comm, 1, 20'000), "mep_comm_wait_view");
  } else {
    need(group.dispatch(rank, 0, ref.inputs[rank].tokens, MEP_PHASE_BOTH), "mep_dispatch");
    CUDA(cudaDeviceSynchronize());
    CHECK(r.statuses[0].result == MEP_ERR_PEER_FAILED, "rank %u: op_status says %s", rank,
          mep_result_string(r.statuses[0].result));
    const mep_result_t told = mep_comm_async_result(r.comm);
    CHECK(told == MEP_ERR_PEER_FAILED, "rank %u: %s: %s", rank, mep_result_string(told),
          mep_last_error());
    std::vector<int32_t> counts(kLocalExperts);
    CUDA(cudaMemcpy(counts.data(), r.counts, kLocalExperts * 4, cudaMemcpyDefault));
    for (const int32_t count : counts) CHECK(count == 0, "rank %u: %d rows", rank, count);
  }
  for (uint32_t buffer = 0; buffer < 2; ++buffer) {
    // Until the view has come here, too, calls go to the old one and end with it.
    mep_result_t news = MEP_SUCCESS;
    for (int tries = 0; tries < 10'000 && news == MEP_SUCCESS; ++tries) {
      news = group.dispatch(rank, buffer, 0, MEP_PHASE_BOTH);
      CUDA(cudaStreamSynchronize(r.stream));
    }
    CHECK(news == MEP_ERR_PEER_FAILED, "rank %u: the news are %s", rank, mep_result_string(news));
  }
  (void)mep_comm_async_result(r.comm);
}

[[noreturn]] void die(Group& group, const Reference& ref, uint32_t rank, Fault fault) {
  if (fault == Fault::kBusy) {
    busy_for<<<1, 1, 0, group.ranks[rank].stream>>>(5'000'000'000);
  } else {
    need(group.dispatch(rank, 0, ref.inputs[rank].tokens, MEP_PHASE_BOTH), "mep_dispatch");
  }
  (void)usleep(200'000);  // most likely the kernel runs by now
  (void)kill(getpid(), SIGKILL);
  std::abort();
}

int rank_main(const Scene& scene, uint64_t seed) {
  const Shape& s = scene.s;
  const uint32_t live = s.ranks - 1;
  const Reference before = on_hosts(s, s.ranks, seed);
  // Tokens of the graphs: they name experts of those who will survive.
  const Reference after = on_hosts(s, live, seed + 1);
  const mep_comm_t comm = open_comm();
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
    if (rank == live) die(group, before, rank, scene.fault);
    group.upload(before);
    const double begin = now_ms();
    is_told(group, before, rank, scene.fault);
    told_ms = now_ms() - begin;
    group.upload(after);
    group.replay(graphs, 10);
    group.compare(after, "replayed after the fault");
    group.poison();
    group.enqueue(rank, after, 1, true, true);
    CUDA(cudaDeviceSynchronize());
    group.compare(after, "eager after the fault");
    group.expect_no_failure("after the fault");
    for (const cudaGraphExec_t graph : graphs) CUDA(cudaGraphExecDestroy(graph));
  }
  if (rank == 0) {
    std::printf(
        "  %u processes, %s%s: dispatch and combine; one killed in mid-kernel, the others told "
        "after %.0f ms; 10 replays of the old graph\n",
        s.ranks, s.fp8 ? "fp8" : "bf16", s.slotted ? ", slotted" : "", told_ms);
  }
  return failures == 0 ? 0 : 1;
}

int start(const char* program, size_t index, uint64_t seed) {
  const uint32_t ranks = kScenes[index].s.ranks;
  const std::string job = "ep" + std::to_string(getpid()) + "." + std::to_string(index);
  (void)setenv("MEP_SIZE", std::to_string(ranks).c_str(), 1);
  (void)setenv("MEP_JOB", job.c_str(), 1);
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      (void)setenv("MEP_RANK", std::to_string(rank).c_str(), 1);
      (void)execl(program, program, "--rank", std::to_string(index).c_str(),
                  std::to_string(seed).c_str(), nullptr);
      _exit(2);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    int status = 0;
    (void)waitpid(children[rank], &status, 0);
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    const bool good = rank == ranks - 1 ? killed : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (good) continue;
    std::printf("FAILED: rank %u of %u ended with status 0x%x\n", rank, ranks, status);
    failed = 1;
  }
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc > 3 && std::strcmp(argv[1], "--rank") == 0) {
    return rank_main(kScenes[std::strtoul(argv[2], nullptr, 10)],
                     std::strtoull(argv[3], nullptr, 10));
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no usable GPU: skipped\n");
    return kSkipped;
  }
  const char* given = std::getenv("MEP_TEST_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::printf("MEP_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  int failed = 0;
  for (size_t i = 0; i < std::size(kScenes); ++i) failed |= start(argv[0], i, seed + 10 * i);
  std::printf(failed == 0 ? "ep_process_test: passed\n" : "ep_process_test: FAILED\n");
  return failed;
}
