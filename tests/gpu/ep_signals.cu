// Release and acquire of words alone: CTAs hand rows to each other by a signal word, over and over, beside memory
// traffic that makes stores wait. The receiving CTA has read the rows before they are written, so that its L1
// holds the old ones.
//
//   sender    all threads store, CTA barrier, one thread: store_word_release()
//   receiver  all threads read; one thread: load_word_acquire(); CTA barrier, all threads read again
//
// That is how the kernels of dispatch and combine use them. Compiled with the kernels' definitions, so that
// builds which lack one of the two fail here.
#include "ep_tests.hpp"

#include "ep_workload.cuh"
#include "kernels/cuda/device/protocol.cuh"

namespace {

using namespace rig;

constexpr uint32_t kPairs = 32;  // of CTAs: all of them run at once
constexpr uint32_t kWarpsOfCta = kEpThreads / 32;
constexpr uint32_t kRowBytes = 512;  // stored by a warp at a time
constexpr uint32_t kRowsOfWarp = 4;
constexpr uint32_t kWordsOfPair = 32;  // the two words of a pair lie 128 bytes apart
constexpr uint64_t kOver = UINT64_MAX;
constexpr uint64_t kPageBytes = uint64_t{2} << 20;
static_assert(uint64_t{kPairs} * kWarpsOfCta * kRowsOfWarp * kRowBytes <= kPageBytes);

struct Exchange {
  uint64_t* words;
  std::byte* rows;
  uint32_t pages;  // over which rows are spread, others every round
  uint64_t nanoseconds;
  unsigned long long* results;  // 16-byte words that were old, rounds
};

__device__ std::byte* row_at(const Exchange& e, uint32_t round, uint32_t pair, uint32_t row) {
  const uint64_t page = mix(round, pair, row, 0) % e.pages;
  const uint32_t place = pair * kWarpsOfCta * kRowsOfWarp + row;
  return e.rows + page * kPageBytes + uint64_t{place} * kRowBytes;
}

// Memory traffic until the host says stop, so that stores take long and overtake each other if they may.
constexpr uint32_t kTrafficCtas = 132, kTrafficThreads = 256;
__global__ void __launch_bounds__(kTrafficThreads)
    make_traffic(uint4* memory, uint32_t count, const uint64_t* stop) {
  constexpr uint32_t kAtOnce = 8;
  uint32_t at = blockIdx.x * kTrafficThreads + threadIdx.x;
  uint64_t begin = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    for (uint32_t round = 0; round < 64; ++round) {
      uint4 values[kAtOnce];
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) values[i] = memory[(at * 7 + i * 77'777) % count];
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        values[i].x += 1;
        memory[(at * 13 + i * 99'991) % count] = values[i];
      }
      at += kTrafficCtas * kTrafficThreads;
    }
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (*static_cast<const volatile uint64_t*>(stop) == 0 && now - begin < 10'000'000'000);
}

__device__ uint4 load_cached(const std::byte* from) {
  uint4 v;
  asm volatile("ld.global.ca.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

// False: the other side has ended, or does not answer.
__device__ bool await_round(const uint64_t* word, uint64_t round) {
  constexpr uint64_t kLimitNs = 5'000'000'000;
  const uint64_t begin = nanoseconds();
  for (uint32_t polls = 1;; ++polls) {
    const uint64_t seen = load_word_acquire(word);
    if (seen == kOver) return false;
    if (seen >= round) return true;
    if (polls % 1024 == 0 && nanoseconds() - begin > kLimitNs) return false;
  }
}

__device__ void send_rounds(const Exchange& e, uint32_t pair, uint64_t* signal, uint64_t* answer) {
  __shared__ uint32_t goes_on;
  const uint64_t begin = nanoseconds();
  for (uint32_t round = 1;; ++round) {
    if (threadIdx.x == 0) {
      goes_on = await_round(answer, round - 1) && nanoseconds() - begin < e.nanoseconds ? 1 : 0;
      if (goes_on == 0) store_word(signal, kOver);
    }
    __syncthreads();
    if (goes_on == 0) return;
    for (uint32_t i = 0; i < kRowsOfWarp; ++i) {
      const uint32_t row = i * kWarpsOfCta + threadIdx.x / 32;
      reinterpret_cast<uint4*>(row_at(e, round, pair, row))[threadIdx.x % 32] = {round, row, pair,
                                                                                 threadIdx.x};
    }
    __syncthreads();
    if (threadIdx.x == 0) store_word_release(signal, round);
  }
}

__device__ void receive_rounds(const Exchange& e, uint32_t pair, uint64_t* signal,
                               uint64_t* answer) {
  __shared__ uint32_t goes_on;
  unsigned long long old = 0;
  uint32_t round = 1;
  for (;; ++round) {
    uint32_t sum = 0;
    const auto load = [&](uint32_t i) {
      const uint32_t row = i * kWarpsOfCta + threadIdx.x / 32;
      return load_cached(row_at(e, round, pair, row) + threadIdx.x % 32 * 16);
    };
    for (uint32_t i = 0; i < kRowsOfWarp; ++i) sum += load(i).w;
    if (sum == UINT32_MAX) ++old;  // never: the loads have to stay
    __syncthreads();
    if (threadIdx.x == 0) goes_on = await_round(signal, round) ? 1 : 0;
    __syncthreads();
    if (goes_on == 0) break;
    for (uint32_t i = 0; i < kRowsOfWarp; ++i) {
      const uint4 v = load(i);
      const uint32_t row = i * kWarpsOfCta + threadIdx.x / 32;
      if (v.x != round || v.y != row || v.z != pair || v.w != threadIdx.x) ++old;
    }
    __syncthreads();
    if (threadIdx.x == 0) store_word_release(answer, round);
  }
  if (old != 0) atomicAdd(&e.results[0], old);
  if (threadIdx.x == 0) atomicAdd(&e.results[1], static_cast<unsigned long long>(round - 1));
}

__global__ void __launch_bounds__(kEpThreads) exchange_rows(const __grid_constant__ Exchange e) {
  const uint32_t pair = blockIdx.x % kPairs;
  uint64_t* signal = e.words + uint64_t{pair} * kWordsOfPair;
  uint64_t* answer = signal + kWordsOfPair / 2;
  if (blockIdx.x < kPairs) {
    send_rounds(e, pair, signal, answer);
  } else {
    receive_rounds(e, pair, signal, answer);
  }
}

}  // namespace

TestResult run_signals(double seconds) {
  TestResult result{"signals: rows from CTA to CTA beside memory traffic", 0, 0, ""};
  constexpr uint32_t kPages = 2048;
  cudaFuncAttributes attributes{};
  GPU_OK(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(exchange_rows)));
  GPU_OK(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(make_traffic)));
  Memory words(kPairs * kWordsOfPair * sizeof(uint64_t)), results(64);
  Memory rows(kPages * kPageBytes), sink(size_t{1} << 28);
  Pinned<uint64_t> stop;
  cudaStream_t streams[2];
  for (cudaStream_t& stream : streams) {
    GPU_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  for (uint32_t mode = 0; mode < 4; ++mode) {
    const bool traffic = mode % 2 != 0;
    const uint32_t pages = mode / 2 != 0 ? kPages : 1;
    GPU_OK(cudaMemset(words.data(), 0, words.bytes()));
    GPU_OK(cudaMemset(results.data(), 0, results.bytes()));
    GPU_OK(cudaMemset(rows.data(), 0, rows.bytes()));
    *stop.host = 0;
    GPU_OK(cudaDeviceSynchronize());
    const Exchange exchange{words.as<uint64_t>(), rows.data(), pages,
                            static_cast<uint64_t>(seconds * 1e9 / 4),
                            results.as<unsigned long long>()};
    exchange_rows<<<2 * kPairs, kEpThreads, 0, streams[0]>>>(exchange);
    if (traffic) {
      make_traffic<<<kTrafficCtas, kTrafficThreads, 0, streams[1]>>>(
          sink.as<uint4>(), static_cast<uint32_t>(sink.bytes() / sizeof(uint4)), stop.device());
    }
    GPU_OK(cudaStreamSynchronize(streams[0]));
    *static_cast<volatile uint64_t*>(stop.host) = 1;
    GPU_OK(cudaDeviceSynchronize());
    unsigned long long got[2];
    std::memcpy(got, results.get().data(), sizeof got);
    result.cases += got[1];
    std::printf("signals: %4u pages, %-10s %9llu rounds, %llu of their 16-byte words old\n", pages,
                traffic ? "traffic" : "no traffic", got[1], got[0]);
    if (got[0] != 0 || got[1] == 0) ++result.failures;
  }
  for (cudaStream_t stream : streams) GPU_OK(cudaStreamDestroy(stream));
  return result;
}
