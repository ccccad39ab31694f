// Times of high throughput's dispatch and combine, ranks as threads of this process, one on each GPU, or two on the only one:
// ep_throughput_bench [TOKENS]. DeepSeek-V3's shape, also with expanded rows, uniform routing. Medians over all ranks of times between events
// of one stream, so a rank's wait for the others counts.
#include <algorithm>
#include <array>
#include <random>

#include "abi_rig.hpp"
#include "support/ep_halves.hpp"

namespace {

using namespace gpu_test;

constexpr uint32_t kHidden = 7168, kTopK = 8, kExperts = 256;
constexpr uint32_t kAlignment = 128;  // of experts, expanded
constexpr int kRounds = 40, kWarmUp = 10;

enum class Wire { kBf16, kFp8, kQuantized };  // kQuantized: bf16 input, e4m3 on the wire

// Microseconds. routing: a replay without rows. pulled, pushed: combine of the library's y, of the caller's.
struct Times {
  float dispatch, replay, routing, pulled, pushed;
};
constexpr uint32_t kTurns[] = {0, MEP_DISPATCH_REPLAY, MEP_DISPATCH_REPLAY | MEP_DISPATCH_NO_ROWS};
constexpr size_t kTimed = 2 * std::size(kTurns);  // operations of a round

float median(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <class T>
T* filled(size_t count, int byte) {
  T* memory = nullptr;
  cuda(cudaMalloc(&memory, count * sizeof(T) + 16));
  cuda(cudaMemset(memory, byte, count * sizeof(T)));
  return memory;
}

struct Bench {
  mep_comm_t comm;
  uint32_t ranks, tokens, num_sms;
  Wire wire;
  bool expanded;

  // Rows of y.
  size_t rows() const {
    if (!expanded) return size_t{ranks} * tokens;
    const uint32_t experts = kExperts / ranks;
    const size_t most =
        size_t{ranks} * tokens * std::min(kTopK, experts) + size_t{experts} * (kAlignment - 1);
    return (most + kAlignment - 1) / kAlignment * kAlignment;
  }

  mep_ep_config_t config() const {
    mep_ep_config_t out;
    mep_ep_config_defaults(&out);
    out.layout = MEP_EP_HIGH_THROUGHPUT;
    out.max_tokens_per_rank = tokens;
    out.hidden = kHidden;
    out.top_k = kTopK;
    out.num_experts = kExperts;
    out.num_buffers = 1;
    out.num_sms = num_sms;
    if (expanded) {
      out.layout = MEP_EP_EXPANDED;
      out.expert_alignment = kAlignment;
    }
    if (wire == Wire::kFp8) out.input_type = MEP_FLOAT8_E4M3;
    if (wire != Wire::kBf16) out.wire_type = MEP_FLOAT8_E4M3;
    out.combine_type = MEP_BFLOAT16;
    return out;
  }

  Times run(uint32_t rank) const {
    cuda(cudaSetDevice(gpu_of_comm(comm)));
    const mep_ep_config_t about = config();
    mep_ep_t ep = nullptr;
    mep_ep_handle_t handle = nullptr;
    need(mep_ep_create(comm, &about, &ep), "mep_ep_create");
    need(mep_ep_handle_create(ep, 0, &handle), "mep_ep_handle_create");
    mep_ep_view_t view;
    mep_ep_view_defaults(&view);
    need(mep_ep_buffer_view(ep, 0, &view), "mep_ep_buffer_view");
    std::mt19937_64 random(rank + 1);
    std::vector<int64_t> experts(size_t{tokens} * kTopK);
    for (uint32_t token = 0; token < tokens; ++token) {
      std::vector<int64_t> all(kExperts);
      for (uint32_t i = 0; i < kExperts; ++i) all[i] = i;
      for (uint32_t k = 0; k < kTopK; ++k) {
        std::swap(all[k], all[k + random() % (kExperts - k)]);
        experts[size_t{token} * kTopK + k] = all[k];
      }
    }
    auto* topk = filled<int64_t>(experts.size(), 0);
    cuda(cudaMemcpy(topk, experts.data(), experts.size() * 8, cudaMemcpyDefault));
    auto* x = filled<uint16_t>(size_t{tokens} * kHidden, 0x3c);
    auto* scales = filled<float>(size_t{tokens} * kHidden / 128, 0);
    auto* weights = filled<float>(experts.size(), 0);
    auto* out = filled<uint16_t>(size_t{tokens} * kHidden, 0);
    auto* y = filled<uint16_t>(rows() * kHidden, 0x3c);
    cuda(cudaMemset(view.combine_input, 0x3c, rows() * kHidden * 2));
    cudaStream_t stream = nullptr;
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    mep_test::DispatchTokens send;
    mep_test::DispatchRows receive;
    mep_test::CombineTerms terms;
    mep_test::CombineSums sums;
    send.num_tokens = tokens;
    send.x = x;
    send.topk_idx = topk;
    send.topk_weights = weights;
    if (wire == Wire::kFp8) send.x_scales = scales;
    sums.out = out;
    std::vector<cudaEvent_t> events(kTimed * kRounds * 2);
    for (cudaEvent_t& event : events) cuda(cudaEventCreate(&event));
    size_t at = 0;
    const auto timed = [&](const auto& operation) {
      cuda(cudaEventRecord(events[at++], stream));
      operation();
      cuda(cudaEventRecord(events[at++], stream));
    };
    for (int round = 0; round < kRounds; ++round) {
      for (const uint32_t flags : kTurns) {
        send.flags = flags;
        terms.y = flags == MEP_DISPATCH_REPLAY ? static_cast<void*>(y) : view.combine_input;
        timed([&] {
          need(mep_test::dispatch_halves(handle, &send, &receive, stream), "mep_dispatch");
        });
        timed(
            [&] { need(mep_test::combine_halves(handle, &terms, &sums, stream), "mep_combine"); });
      }
    }
    cuda(cudaStreamSynchronize(stream));
    need(mep_comm_async_result(comm), "an operation");
    std::vector<float> times[kTimed];
    for (size_t i = kWarmUp * kTimed * 2; i < events.size(); i += 2) {
      float ms = 0;
      cuda(cudaEventElapsedTime(&ms, events[i], events[i + 1]));
      times[i / 2 % kTimed].push_back(ms * 1e3f);
    }
    for (const cudaEvent_t event : events) cuda(cudaEventDestroy(event));
    need(mep_ep_handle_destroy(handle), "mep_ep_handle_destroy");
    need(mep_ep_destroy(ep), "mep_ep_destroy");
    for (void* memory :
         {static_cast<void*>(topk), static_cast<void*>(x), static_cast<void*>(scales),
          static_cast<void*>(weights), static_cast<void*>(out), static_cast<void*>(y)}) {
      cuda(cudaFree(memory));
    }
    cuda(cudaStreamDestroy(stream));
    return {median(times[0]), median(times[2]), median(times[4]), median(times[1]),
            median(times[3])};
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (!gpu_is_there()) return kSkipped;
  const bool share = gpu_count() == 1;
  const uint32_t ranks = share ? 2 : static_cast<uint32_t>(gpu_count());
  const auto tokens = static_cast<uint32_t>(argc > 1 ? std::atoi(argv[1]) : 4096);
  std::printf("%u ranks, %s, hidden %u, top-%u of %u, %u tokens a rank; medians of %d, us\n", ranks,
              share ? "two on one GPU" : "one a GPU", kHidden, kTopK, kExperts, tokens,
              kRounds - kWarmUp);
  std::printf("%-10s %-8s %8s %10s %10s %10s %14s %14s\n", "wire", "layout", "num_sms", "dispatch",
              "replay", "routing", "combine pulled", "combine pushed");
  for (int i = 0; i < 6; ++i) {
    const Wire wire = std::array{Wire::kBf16, Wire::kFp8, Wire::kQuantized}[i % 3];
    const bool expanded = i >= 3;
    for (const uint32_t num_sms : {24u, share ? 60u : 96u, 0u}) {
      if (share && num_sms == 0) continue;  // kernels of both ranks have to run at one time
      const std::vector<mep_comm_t> comms = open_comms(ranks, true);
      std::vector<Times> times(ranks);
      in_threads(ranks, [&](uint32_t rank) {
        times[rank] = Bench{comms[rank], ranks, tokens, num_sms, wire, expanded}.run(rank);
      });
      close_comms(comms);
      const auto of = [&](float Times::*which) {
        std::vector<float> all;
        for (const Times& each : times) all.push_back(each.*which);
        return median(all);
      };
      const char* name = wire == Wire::kBf16 ? "bf16" : wire == Wire::kFp8 ? "fp8" : "bf16 > fp8";
      std::printf("%-10s %-8s %8u %10.1f %10.1f %10.1f %14.1f %14.1f\n", name,
                  expanded ? "expanded" : "", num_sms, of(&Times::dispatch), of(&Times::replay),
                  of(&Times::routing), of(&Times::pulled), of(&Times::pushed));
    }
  }
  return 0;
}
