// Dispatch and combine beside their floors: ranks as streams of one GPU, many operations back to back in
// one graph, the slowest rank counts, inputs rotated beyond the L2. ep_gpu_bench [CTAS_OF_8_RANKS [few]]
//
// B is measured in this run (bytes read and written by a copy of 1 GiB over its time), so are the one-way
// signal and an empty launch. Bytes over all R ranks, K valid entries a token:
//   dispatch         R * T * (H * s_in + K * (H * s_wire + scales))
//   (dispatch alone has no combine that gives rows back, and says so itself; combine = both - dispatch)
//   combine pulled   R * T * H * s * (K + 1), pushed: (3 K + 1)
// Floor = bytes / B + 2 signals (dispatch) or 1 (combine).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "ep_rig.hpp"
#include "kernels/cuda/device/protocol.cuh"

namespace {

using namespace rig;

constexpr uint32_t kHidden = 7168, kExperts = 256, kTopK = 8;

float elapsed_us(cudaEvent_t from, cudaEvent_t to) {
  float ms = 0;
  GPU_OK(cudaEventElapsedTime(&ms, from, to));
  return ms * 1000;
}

double measure_copy() {
  constexpr size_t kBytes = size_t{1} << 30;
  Memory from(kBytes, 1), to(kBytes, 2);
  cudaStream_t stream = nullptr;
  GPU_OK(cudaStreamCreate(&stream));
  cudaEvent_t events[2];
  for (cudaEvent_t& event : events) GPU_OK(cudaEventCreate(&event));
  std::vector<float> times;
  for (int i = 0; i < 12; ++i) {
    GPU_OK(cudaEventRecord(events[0], stream));
    GPU_OK(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, stream));
    GPU_OK(cudaEventRecord(events[1], stream));
    GPU_OK(cudaStreamSynchronize(stream));
    if (i >= 2) times.push_back(elapsed_us(events[0], events[1]));
  }
  std::sort(times.begin(), times.end());
  return 2.0 * kBytes / times[times.size() / 2];  // bytes per microsecond
}

__global__ void ping_pong(uint64_t* mine, const uint64_t* other, uint32_t rounds, uint32_t first) {
  for (uint32_t i = 1; i <= rounds; ++i) {
    if (first != 0) store_word_release(mine, i);
    while (load_word_acquire(other) < i) {
    }
    if (first == 0) store_word_release(mine, i);
  }
}

double measure_signal() {
  Memory words(1024);
  cudaStream_t streams[2];
  for (cudaStream_t& stream : streams) {
    GPU_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  cudaEvent_t events[2];
  for (cudaEvent_t& event : events) GPU_OK(cudaEventCreate(&event));
  constexpr uint32_t kRounds = 2000;
  uint64_t* a = words.as<uint64_t>();
  uint64_t* b = a + 64;
  GPU_OK(cudaMemset(a, 0, 1024));
  GPU_OK(cudaDeviceSynchronize());
  ping_pong<<<1, 1, 0, streams[1]>>>(b, a, kRounds, 0);
  GPU_OK(cudaEventRecord(events[0], streams[0]));
  ping_pong<<<1, 1, 0, streams[0]>>>(a, b, kRounds, 1);
  GPU_OK(cudaEventRecord(events[1], streams[0]));
  GPU_OK(cudaDeviceSynchronize());
  return elapsed_us(events[0], events[1]) / (2 * kRounds);
}

__global__ void __launch_bounds__(512) empty_kernel() {}

// The time of one kernel in a graph, with so many streams doing the same at once.
double measure_launch(uint32_t streams) {
  constexpr int kKernels = 400;
  std::vector<cudaStream_t> stream(streams);
  std::vector<cudaGraphExec_t> made(streams);
  std::vector<cudaEvent_t> events(2 * streams);
  for (cudaEvent_t& event : events) GPU_OK(cudaEventCreate(&event));
  for (uint32_t i = 0; i < streams; ++i) {
    GPU_OK(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking));
    cudaGraph_t graph = nullptr;
    GPU_OK(cudaStreamBeginCapture(stream[i], cudaStreamCaptureModeThreadLocal));
    for (int k = 0; k < kKernels; ++k) empty_kernel<<<33, 512, 0, stream[i]>>>();
    GPU_OK(cudaStreamEndCapture(stream[i], &graph));
    GPU_OK(cudaGraphInstantiate(&made[i], graph, 0));
    GPU_OK(cudaGraphUpload(made[i], stream[i]));
  }
  GPU_OK(cudaDeviceSynchronize());
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < streams; ++i) {
      if (round == 1) GPU_OK(cudaEventRecord(events[2 * i], stream[i]));
      GPU_OK(cudaGraphLaunch(made[i], stream[i]));
      if (round == 1) GPU_OK(cudaEventRecord(events[2 * i + 1], stream[i]));
    }
  }
  GPU_OK(cudaDeviceSynchronize());
  double worst = 0;
  for (uint32_t i = 0; i < streams; ++i) {
    worst = std::max<double>(worst, elapsed_us(events[2 * i], events[2 * i + 1]) / kKernels);
  }
  return worst;
}

__global__ void fill_random(uint16_t* values, size_t count, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    uint64_t h = (i + seed * 0x51ed27u) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9u;
    // bf16 from +-2^-4 to +-2^3
    values[i] = static_cast<uint16_t>((h >> 20 & 0x80ff) | (123 + (h >> 40) % 8) << 7);
  }
}

struct Setting {
  uint32_t ranks, tokens, max_tokens, ctas;
  bool fp8, push;
};

struct Times {
  double dispatch_us, pair_us;
};

class Bench {
 public:
  explicit Bench(const Setting& setting)
      : setting_(setting), group_(sizes(setting), 1, setting.ctas, 5'000) {
    const size_t row = size_t{kHidden} * 2;
    const size_t set_bytes = std::max<size_t>(1, setting.ranks * setting.tokens * row);
    sets_ = static_cast<uint32_t>(std::min<size_t>(64, (size_t{256} << 20) / set_bytes + 2));
    RandomStream random(11);
    for (uint32_t r = 0; r < setting.ranks; ++r) {
      x_.push_back(std::make_unique<Memory>(sets_ * setting.tokens * row));
      out_.push_back(std::make_unique<Memory>(sets_ * setting.tokens * row));
      topk_.push_back(std::make_unique<Memory>(sets_ * setting.tokens * kTopK * 8));
      status_.push_back(std::make_unique<Memory>(sizeof(OpStatus)));
      fill_random<<<512, 256>>>(x_[r]->as<uint16_t>(), sets_ * setting.tokens * row / 2, r + 1);
      const EpGeometry& g = group_[r].g;
      auto* y = reinterpret_cast<uint16_t*>(group_[r].buffers[0]->window.data() + g.combine_out);
      fill_random<<<2048, 256>>>(y, (g.window_bytes - g.combine_out) / 2, r + 77);
      std::vector<int64_t> topk;
      for (size_t token = 0; token < size_t{sets_} * setting.tokens; ++token) {
        std::vector<int64_t> chosen;
        while (chosen.size() < kTopK) {
          const auto expert = static_cast<int64_t>(random.below(kExperts));
          if (std::find(chosen.begin(), chosen.end(), expert) == chosen.end()) {
            chosen.push_back(expert);
          }
        }
        topk.insert(topk.end(), chosen.begin(), chosen.end());
      }
      topk_[r]->set(topk.data(), topk.size() * 8);
    }
    GPU_OK(cudaDeviceSynchronize());
  }

  // Prints what the last operations of rank 0 spent their time with; needs kernels built with MEP_EP_TRACE.
  void print_trace() {
    const EpState state = group_[0].buffers[0]->state();
    if (state.trace[8] == 0) return;
    const auto span = [&](int from, int to) {
      return (static_cast<double>(state.trace[to]) - static_cast<double>(state.trace[from])) / 1000;
    };
    std::printf(
        "  dispatch us: counted %.1f, all counts seen %.1f, places listed %.1f, rows of CTA 0 "
        "%.1f, last "
        "CTA %.1f, told %.1f, all rows ready %.1f, end %.1f\n  combine us: all words seen %.1f, "
        "sums of "
        "CTA 0 %.1f, end %.1f; from dispatch's end to combine %.1f\n",
        span(0, 1), span(1, 2), span(2, 3), span(3, 4), span(4, 5), span(5, 6), span(6, 7),
        span(7, 8), span(9, 10), span(10, 11), span(11, 12), span(8, 9));
  }

  // Microseconds per operation, the slowest rank's.
  double run(bool dispatches_only, uint32_t operations) {
    std::vector<cudaGraphExec_t> graphs;
    for (uint32_t r = 0; r < setting_.ranks; ++r) {
      cudaStream_t stream = group_[r].streams[0];
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t made = nullptr;
      GPU_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      for (uint32_t i = 0; i < operations; ++i) enqueue(r, i % sets_, !dispatches_only, stream);
      GPU_OK(cudaStreamEndCapture(stream, &graph));
      GPU_OK(cudaGraphInstantiate(&made, graph, 0));
      GPU_OK(cudaGraphUpload(made, stream));
      GPU_OK(cudaGraphDestroy(graph));
      graphs.push_back(made);
    }
    GPU_OK(cudaDeviceSynchronize());
    std::vector<double> best;
    for (int repeat = 0; repeat < 3; ++repeat) best.push_back(time(graphs) / (2 * operations));
    std::sort(best.begin(), best.end());
    for (cudaGraphExec_t graph : graphs) GPU_OK(cudaGraphExecDestroy(graph));
    for (uint32_t r = 0; r < setting_.ranks; ++r) {
      mep_op_status_t status{};
      std::memcpy(&status, status_[r]->get().data(), sizeof status);
      if (status.result != MEP_SUCCESS) std::printf("rank %u: result %d\n", r, status.result);
    }
    return best[1];
  }

 private:
  static EpSizes sizes(const Setting& setting) {
    EpSizes s{};
    s.ranks = setting.ranks;
    s.local_experts = kExperts / setting.ranks;
    s.experts = kExperts;
    s.top_k = kTopK;
    s.max_tokens = setting.max_tokens;
    s.hidden = kHidden;
    s.input_type = s.combine_type = MEP_BFLOAT16;
    s.wire_type = setting.fp8 ? MEP_FLOAT8_E4M3 : MEP_BFLOAT16;
    return s;
  }

  void enqueue(uint32_t r, uint32_t set, bool combines, cudaStream_t stream) {
    const EpLaunch launch = group_.launch(r, 0);
    const size_t row = size_t{kHidden} * 2;
    mep::DispatchInput d{};
    d.num_tokens = setting_.tokens;
    d.x = x_[r]->data() + set * setting_.tokens * row;
    d.topk_idx = topk_[r]->as<int64_t>() + size_t{set} * setting_.tokens * kTopK;
    d.topk_idx_type = MEP_INT64;
    mep::DispatchOutput received{};
    received.op_status = status_[r]->as<mep_op_status_t>();
    received.op_status_bytes = sizeof(OpStatus);
    GPU_OK(ep_dispatch(launch, &d, &received, stream));
    if (!combines) return;
    mep::CombineInput terms{};
    terms.y = launch.memory.window + launch.geometry.combine_out;
    mep::CombineOutput c{};
    c.out = out_[r]->data() + set * setting_.tokens * row;
    c.op_status = received.op_status;
    c.op_status_bytes = received.op_status_bytes;
    GPU_OK(ep_combine(launch, &terms, &c, setting_.push, stream));
  }

  // Graphs back to back on every rank; the first makes the ranks meet, two are timed.
  double time(const std::vector<cudaGraphExec_t>& graphs) {
    std::vector<double> times(setting_.ranks);
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < setting_.ranks; ++r) {
      threads.emplace_back([&, r] {
        cudaStream_t stream = group_[r].streams[0];
        cudaEvent_t events[2];
        for (cudaEvent_t& event : events) GPU_OK(cudaEventCreate(&event));
        GPU_OK(cudaGraphLaunch(graphs[r], stream));
        GPU_OK(cudaEventRecord(events[0], stream));
        GPU_OK(cudaGraphLaunch(graphs[r], stream));
        GPU_OK(cudaGraphLaunch(graphs[r], stream));
        GPU_OK(cudaEventRecord(events[1], stream));
        GPU_OK(cudaStreamSynchronize(stream));
        times[r] = elapsed_us(events[0], events[1]);
        for (cudaEvent_t& event : events) GPU_OK(cudaEventDestroy(event));
      });
    }
    for (std::thread& thread : threads) thread.join();
    return *std::max_element(times.begin(), times.end());
  }

  Setting setting_;
  Group group_;
  uint32_t sets_ = 1;
  std::vector<std::unique_ptr<Memory>> x_, out_, topk_, status_;
};

}  // namespace

int main(int argc, char** argv) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("SKIPPED: no GPU\n");
    return 77;
  }
  const uint32_t ctas_of_8 = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 33;
  const double bandwidth = measure_copy();
  const double signal = measure_signal();
  const double launch = measure_launch(1);
  std::printf(
      "copy of 1 GiB %.2f TB/s, one-way signal %.2f us, empty launch in a graph %.2f us, "
      "8 streams at once %.2f us\n",
      bandwidth / 1e6, signal, launch, measure_launch(8));
  std::printf(
      "hidden %u, %u experts, top-%u, %u CTAs a rank of 8; us per operation, slowest rank\n",
      kHidden, kExperts, kTopK, ctas_of_8);
  std::printf("%5s %5s %5s %6s %9s %8s %6s %9s %8s %6s %6s %6s\n", "ranks", "T", "wire", "terms",
              "dispatch", "floor", "share", "combine", "floor", "share", "both", "share");
  struct Row {
    uint32_t ranks, tokens, max_tokens;
    bool fp8, push;
  };
  const Row rows[] = {
      {8, 1, 128, true, false},     {8, 128, 128, true, false},   {8, 128, 128, true, true},
      {8, 128, 128, false, false},  {8, 512, 512, true, false},   {8, 512, 512, false, false},
      {8, 512, 512, true, true},    {8, 1024, 1024, true, false}, {8, 1024, 1024, false, false},
      {1, 1, 128, false, false},    {1, 128, 128, false, false},  {1, 512, 512, false, false},
      {1, 1024, 1024, false, false}};
  const bool few = argc > 2;  // for comparing numbers of CTAs
  for (const Row& row : rows) {
    if (few && (row.ranks == 1 || row.push)) continue;
    Bench bench({row.ranks, row.tokens, row.max_tokens, row.ranks == 1 ? 264 : ctas_of_8, row.fp8,
                 row.push});
    const double dispatch = bench.run(true, 100);
    const double pair = bench.run(false, 100);
    const double values = static_cast<double>(row.ranks) * row.tokens * kHidden;
    const double wire = row.fp8 ? 1 + 4.0 / 128 : 2;
    const double dispatch_floor = values * (2 + kTopK * wire) / bandwidth + 2 * signal;
    const double combine_floor =
        values * 2 * (row.push ? 3 * kTopK + 1 : kTopK + 1) / bandwidth + signal;
    const double combine = pair - dispatch;
    std::printf("%5u %5u %5s %6s %9.1f %8.1f %5.0f%% %9.1f %8.1f %5.0f%% %6.1f %5.0f%%\n",
                row.ranks, row.tokens, row.fp8 ? "fp8" : "bf16", row.push ? "pushed" : "pulled",
                dispatch, dispatch_floor, 100 * dispatch_floor / dispatch, combine, combine_floor,
                100 * combine_floor / combine, pair, 100 * (dispatch_floor + combine_floor) / pair);
    bench.print_trace();
    std::fflush(stdout);
  }
  return 0;
}
