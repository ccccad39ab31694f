// Ranks that are processes are killed on GPUs, one after the other, and replaced: collectives, dispatch and combine, eager
// and by graphs that survivors captured before the first death, give the same bytes as on hosts after each
// replacement. At last a rank comes in addition. Started without --rank it starts the ranks, and replacements of those
// that die. The seed is printed; MEP_TEST_SEED replays it. REPLACE_CYCLES=N: so many deaths, one scene; each replacement
// is ready before it is admitted, and rank 0, which stays, prints how long that takes and what is held afterwards. --scene N
// runs that scene alone.
#include <chrono>
#include <fstream>
#include <iterator>

#include "ep_device_rig.hpp"

namespace {

using namespace ep_device;

uint32_t cycles() {
  static const char* const given = std::getenv("REPLACE_CYCLES");
  return given != nullptr ? static_cast<uint32_t>(std::atoi(given)) : 3;
}
bool is_timed() {
  return std::getenv("REPLACE_CYCLES") != nullptr;
}
constexpr size_t kCount = 20'000;
constexpr int kReplays = 3;

struct Scene {
  Shape s;
  bool is_flaky = false;     // the first replacement dies at once
  bool dies_inside = false;  // rank 1 dies while it takes the first replacement in

  // The rank that dies in a cycle; the last is first.
  uint32_t victim(uint32_t cycle) const {
    if (is_flaky) cycle /= 2;
    if (dies_inside && cycle == 1) return 1;
    return s.ranks - 1 - cycle % (is_timed() ? s.ranks - 1 : s.ranks);
  }
  // A rank has died again before anything was done.
  bool is_broken(uint32_t cycle) const { return (is_flaky || dies_inside) && cycle == 1; }
};
const Scene kScenes[] = {{{3, false}},
                         {{2, true, true}},
                         {{4, false, false, true}, true},
                         {{4, true}, false, true},
                         {{3, true, false, false, true, true}}};

size_t lines_of(const char* file) {
  std::ifstream from(file);
  return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(from), {}, '\n'));
}

void tell_times(double began_s, double admitted_s) {
  size_t free_bytes = 0, all_bytes = 0;
  cuda(cudaMemGetInfo(&free_bytes, &all_bytes));
  const auto descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  std::printf(
      "  admitted in %.1f ms, all work after %.1f ms; %zu MiB of the GPU in use, %td descriptors, "
      "%zu mappings\n",
      (admitted_s - began_s) * 1e3, (now_s() - began_s) * 1e3, (all_bytes - free_bytes) >> 20,
      descriptors, lines_of("/proc/self/maps"));
}

struct Sums {
  uint32_t* send = nullptr;
  uint32_t* receive = nullptr;
  cudaGraphExec_t graph = nullptr;

  Sums(mep_comm_t comm, uint32_t rank, cudaStream_t stream) {
    cuda(cudaMallocHost(&send, kCount * 4));
    cuda(cudaMallocHost(&receive, kCount * 4));
    for (size_t i = 0; i < kCount; ++i) send[i] = static_cast<uint32_t>(i << (4 * rank));
    cudaGraph_t captured = nullptr;
    cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    need(mep_allreduce(send, receive, kCount, MEP_UINT32, MEP_SUM, comm, stream), "mep_allreduce");
    cuda(cudaStreamEndCapture(stream, &captured));
    cuda(cudaGraphInstantiate(&graph, captured, 0));
    cuda(cudaGraphDestroy(captured));
  }
  ~Sums() {
    cuda(cudaGraphExecDestroy(graph));
    cuda(cudaFreeHost(send));
    cuda(cudaFreeHost(receive));
  }
  Sums(const Sums&) = delete;

  void replay(uint32_t ranks, cudaStream_t stream, const char* where) {
    for (int i = 0; i < kReplays; ++i) {
      std::memset(receive, 0xa5, kCount * 4);
      cuda(cudaGraphLaunch(graph, stream));
      cuda(cudaStreamSynchronize(stream));
      size_t wrong = 0;
      for (size_t at = 0; at < kCount; ++at) {
        uint32_t sum = 0;
        for (uint32_t rank = 0; rank < ranks; ++rank)
          sum += static_cast<uint32_t>(at << (4 * rank));
        wrong += receive[at] != sum ? 1 : 0;
      }
      GPU_CHECK(wrong == 0, "%s: %zu sums are wrong", where, wrong);
    }
  }
};

// A number from every rank, and one for every pair.
void exchange(mep_comm_t comm, uint32_t rank, uint32_t ranks, cudaStream_t stream) {
  uint32_t *given = nullptr, *got = nullptr;
  cuda(cudaMallocHost(&given, ranks * 4));
  cuda(cudaMallocHost(&got, (2 * ranks + 1) * 4));
  for (uint32_t other = 0; other < ranks; ++other) given[other] = rank * 100 + other;
  need(mep_allgather(given, got, 1, MEP_UINT32, comm, stream), "mep_allgather");
  need(mep_alltoall(given, got + ranks, 1, MEP_UINT32, comm, stream), "mep_alltoall");
  const uint32_t after = (rank + 1) % ranks;
  const uint32_t before = (rank + ranks - 1) % ranks;
  need(mep_sendrecv(given + after, 1, static_cast<int32_t>(after), 2, got + 2 * ranks, 1,
                    static_cast<int32_t>(before), 2, MEP_UINT32, comm, nullptr, stream),
       "mep_sendrecv");
  cuda(cudaStreamSynchronize(stream));
  for (uint32_t other = 0; other < ranks; ++other) {
    GPU_CHECK(got[other] == other * 100 && got[ranks + other] == other * 100 + rank,
              "rank %u: %u and %u of rank %u", rank, got[other], got[ranks + other], other);
  }
  GPU_CHECK(got[2 * ranks] == before * 100 + rank, "rank %u: a message of %u from rank %u", rank,
            got[2 * ranks], before);
  cuda(cudaFreeHost(given));
  cuda(cudaFreeHost(got));
}

// Until the call on each buffer has told that a rank is gone.
void hear_of_it(Group& group, uint32_t rank) {
  for (uint32_t buffer = 0; buffer < 2; ++buffer) {
    mep_result_t news = MEP_SUCCESS;
    for (int tries = 0; tries < 10'000 && news == MEP_SUCCESS; ++tries) {
      news = group.dispatch(rank, buffer, 0, Halves::kBoth);
      group.synchronize();
    }
    GPU_CHECK(news == MEP_ERR_PEER_FAILED, "rank %u: the report is %s", rank,
              mep_result_string(news));
  }
}

// child: a split of all ranks, whose members meet a replacement in this call.
void works(Group& group, Sums& sums, const Reference& ref,
           const std::vector<cudaGraphExec_t>& graphs, uint32_t rank, mep_comm_t child) {
  const Rank& r = group.use(rank);
  sums.replay(group.s.ranks, r.stream, "replayed sums");
  exchange(r.comm, rank, group.s.ranks, r.stream);
  exchange(child, rank, group.s.ranks, r.stream);
  while (mep_comm_async_result(child) ==
         MEP_ERR_PEER_FAILED) {  // no call on it has told of the death
  }
  group.poison();
  group.replay(graphs, kReplays);
  group.compare(ref, "replayed");
  group.poison();
  group.enqueue(rank, ref, 1, true, true);
  group.synchronize();
  group.compare(ref, "eager");
  group.expect_no_failure("whole");
}

mep_comm_config_t config_of_rank(uint32_t rank, uint32_t ranks) {
  cuda(cudaSetDevice(gpu_of(rank)));
  mep_comm_config_t config = comm_config(true, 20'000);
  config.max_size = static_cast<int32_t>(ranks) + 1;
  return config;
}

mep_comm_t join(uint32_t rank, uint32_t ranks) {
  mep_comm_config_t config = config_of_rank(rank, ranks);
  mep_comm_t comm = nullptr;
  if (ranks == 2 && rank < ranks) {
    config.device_type = MEP_DEVICE_HOST;
    const mep_result_t refused = mep_comm_join(&config, &comm);
    GPU_CHECK(refused == MEP_ERR_MISMATCH, "joined without a GPU: %s", mep_result_string(refused));
    config = config_of_rank(rank, ranks);
  }
  need(mep_comm_join(&config, &comm), "mep_comm_join");
  return comm;
}

// The others are told, by a collective and by each buffer before or after the replacement, and admit it.
void replace(Group& group, Sums& sums, uint32_t rank, uint32_t cycle, const Scene& scene,
             bool has_heard = false) {
  const Rank& r = group.use(rank);
  cuda(cudaGraphLaunch(sums.graph, r.stream));
  cuda(cudaStreamSynchronize(r.stream));
  const mep_result_t told = mep_comm_async_result(r.comm);
  GPU_CHECK(told == MEP_ERR_PEER_FAILED, "rank %u: %s", rank, mep_result_string(told));
  if (cycle % 2 == 0) hear_of_it(group, rank);
  while (mep_comm_async_result(r.comm) != MEP_SUCCESS) {
  }
  const auto gone = static_cast<int32_t>(scene.victim(cycle));
  int32_t admitted = 0;
  if (is_timed()) std::this_thread::sleep_for(std::chrono::seconds(4));  // the replacement starts
  const double began = now_s();
  const mep_result_t recovered = mep_recover_ranks(r.comm, &gone, 1, 30'000, &admitted);
  // It may have gone again by the end of the call.
  if (recovered != MEP_ERR_TIMEOUT || !scene.is_broken(cycle + 1)) {
    need(recovered, "mep_recover_ranks");
    GPU_CHECK(admitted == 1, "rank %u: %d were admitted", rank, admitted);
  }
  const double done = now_s();
  if (is_timed()) {
    sums.replay(group.s.ranks, r.stream, "at once");
    if (rank == 0) tell_times(began, done);
  }
  if (cycle % 2 != 0 && !has_heard) hear_of_it(group, rank);
}

mep_comm_t begin(uint32_t rank, uint32_t ranks) {
  const mep_comm_config_t config = config_of_rank(rank, ranks);
  mep_comm_t comm = nullptr;
  need(mep_comm_init(&config, &comm), "mep_comm_init");
  return comm;
}

// All ranks and one more.
void use_grown(mep_comm_t grown, uint32_t rank, uint32_t ranks, cudaStream_t stream) {
  GPU_CHECK(gpu_of_comm(grown) == gpu_of(rank), "rank %u: the grown communicator is elsewhere",
            rank);
  Sums sums(grown, rank, stream);
  sums.replay(ranks + 1, stream, "sums of a grown communicator");
  exchange(grown, rank, ranks + 1, stream);
}

int newcomer_main(size_t scene) {
  const uint32_t ranks = kScenes[scene].s.ranks;
  cudaStream_t stream = nullptr;
  const mep_comm_t comm = join(ranks, ranks);
  cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  use_grown(comm, ranks, ranks, stream);
  need(mep_comm_destroy(comm), "mep_comm_destroy");
  return failure_count() == 0 ? 0 : 1;
}

mep_comm_t get_child(mep_comm_t comm, uint32_t rank, bool joined) {
  mep_comm_t child = nullptr;
  if (joined) {
    need(mep_comm_attach(comm, "child", &child), "mep_comm_attach");
    return child;
  }
  need(mep_comm_split(comm, 0, static_cast<int32_t>(rank), &child), "mep_comm_split");
  need(mep_comm_set_name(child, "child"), "mep_comm_set_name");
  return child;
}

int rank_main(size_t index, uint64_t seed, uint32_t first_cycle) {
  const Scene& scene = kScenes[index];
  const Shape& s = scene.s;
  const bool joined = first_cycle != 0;
  const auto rank = static_cast<uint32_t>(std::atoi(std::getenv("MEP_RANK")));
  if (scene.dies_inside && !joined && rank == 1) {
    (void)setenv("MEP_FAILPOINT", "joiner map=kill", 1);
  }
  const Reference ref = on_hosts(s, s.ranks, seed);
  const mep_comm_t comm = joined ? join(rank, s.ranks) : begin(rank, s.ranks);
  if (joined && scene.is_flaky && first_cycle == 1) die_now();
  const mep_comm_t child = get_child(comm, rank, joined);
  Group group(s, {comm}, rank, joined);
  // Rank 1 goes meanwhile: this rank captures in the view that follows.
  const bool has_heard = joined && scene.is_broken(first_cycle);
  if (has_heard) hear_of_it(group, rank);
  group.upload(ref);
  const std::vector<cudaGraphExec_t> graphs = group.capture(ref);
  {
    Sums sums(comm, rank, group.use(rank).stream);
    if (joined && is_timed()) sums.replay(s.ranks, group.use(rank).stream, "at once");
    for (uint32_t cycle = first_cycle;; ++cycle) {
      if (scene.is_broken(cycle)) {
        replace(group, sums, rank, cycle, scene, has_heard);
        continue;
      }
      works(group, sums, ref, graphs, rank, child);
      if (cycle == cycles()) break;
      need(mep_barrier(comm, group.use(rank).stream), "mep_barrier");
      group.synchronize();
      if (scene.victim(cycle) != rank) {
        replace(group, sums, rank, cycle, scene);
        continue;
      }
      const Mark begun;
      mep::device::launch_kernel(busy_for, 1, 1, 0, group.use(rank).stream, 5'000'000'000,
                                 begun.word());
      begun.wait();
      die_now();
    }
    mep_comm_t grown = nullptr;
    need(mep_comm_grow(comm, 1, 30'000, &grown), "mep_comm_grow");
    use_grown(grown, rank, s.ranks, group.use(rank).stream);
    need(mep_comm_destroy(grown), "mep_comm_destroy of the grown one");
    works(group, sums, ref, graphs, rank, child);
    need(mep_comm_destroy(child), "mep_comm_destroy of the split");
  }
  for (const cudaGraphExec_t graph : graphs) cuda(cudaGraphExecDestroy(graph));
  return failure_count() == 0 ? 0 : 1;
}

pid_t start_rank(const char* program, uint32_t rank, size_t scene, uint64_t seed, uint32_t cycle) {
  const pid_t child = fork();
  if (child != 0) return child;
  (void)setenv("MEP_RANK", std::to_string(rank).c_str(), 1);
  (void)execl(program, program, "--rank", std::to_string(scene).c_str(),
              std::to_string(seed).c_str(), std::to_string(cycle).c_str(), nullptr);
  _exit(2);
}

int start(const char* program, size_t scene, uint64_t seed) {
  const Shape& s = kScenes[scene].s;
  (void)setenv("MEP_SIZE", std::to_string(s.ranks).c_str(), 1);
  (void)setenv("MEP_JOB",
               ("replace" + std::to_string(scene) + "." + std::to_string(getpid())).c_str(), 1);
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < s.ranks; ++rank) {
    children.push_back(start_rank(program, rank, scene, seed, 0));
  }
  uint32_t deaths = 0;
  int failed = 0;
  for (size_t ended = 0; ended < children.size() + deaths;) {
    int status = 0;
    const pid_t child = waitpid(-1, &status, 0);
    if (child < 0) return 1;
    ++ended;
    const auto rank = static_cast<uint32_t>(std::find(children.begin(), children.end(), child) -
                                            children.begin());
    const bool is_victim = failed == 0 && deaths < cycles() &&
                           rank == kScenes[scene].victim(deaths) && WIFSIGNALED(status) &&
                           WTERMSIG(status) == SIGKILL;
    if (is_victim) {
      ++deaths;
      children[rank] = start_rank(program, rank, scene, seed, deaths);
      if (deaths == cycles()) children.push_back(start_rank(program, s.ranks, scene, seed, deaths));
    } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      std::printf("FAILED: rank %u ended with status 0x%x\n", rank, status);
      for (const pid_t other : children) (void)kill(other, SIGKILL);
      failed = 1;
    }
  }
  if (deaths != cycles()) failed = 1;
  std::printf("  %u processes, %s%s%s%s: %u replaced, one more came\n", s.ranks,
              s.fp8 ? "fp8" : "bf16", s.slotted ? ", slotted" : "",
              s.with_map ? ", mapped experts" : "", s.throughput ? ", high throughput" : "",
              deaths);
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc > 4 && std::strcmp(argv[1], "--rank") == 0) {
    const size_t scene = std::strtoul(argv[2], nullptr, 10);
    const auto rank = static_cast<uint32_t>(std::atoi(std::getenv("MEP_RANK")));
    if (rank == kScenes[scene].s.ranks) return newcomer_main(scene);
    return rank_main(scene, std::strtoull(argv[3], nullptr, 10),
                     static_cast<uint32_t>(std::strtoul(argv[4], nullptr, 10)));
  }
  if (!gpu_is_there()) return kSkipped;
  std::printf("ranks are dealt to %d GPU(s)\n", gpu_count());
  const uint64_t seed = seed_of_run();
  int failed = 0;
  const bool one = argc > 2 && std::strcmp(argv[1], "--scene") == 0;
  const size_t first = one ? std::strtoul(argv[2], nullptr, 10) : 0;
  const size_t end = one || is_timed() ? first + 1 : std::size(kScenes);
  for (size_t i = first; i < end && i < std::size(kScenes) && failed == 0; ++i) {
    failed |= start(argv[0], i, seed + 10 * i);
  }
  std::printf(failed == 0 ? "replace_process_test: passed\n" : "replace_process_test: FAILED\n");
  return failed;
}
