// R ranks of one EP object as streams of one GPU, without the library's host side: windows by cudaMalloc,
// peer tables of plain pointers, and a host that plays the part of membership.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/device/op_status.hpp"
#include "kernels/cuda/ep/kernels.hpp"
#include "support/random_numbers.hpp"

#define GPU_OK(call)                                                                            \
  do {                                                                                          \
    const cudaError_t gpu_error = static_cast<cudaError_t>(call);                               \
    if (gpu_error != cudaSuccess) {                                                             \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(gpu_error)); \
      std::fflush(stdout);                                                                      \
      std::_Exit(1);                                                                            \
    }                                                                                           \
  } while (0)

namespace rig {

using namespace mep::device;
using mep_reference::RandomStream;

constexpr uint8_t kGuard = 0xc7;
constexpr uint8_t kPoison = 0xa5;
constexpr size_t kGuardBytes = 512;

// Device memory between guard bytes.
class Memory {
 public:
  explicit Memory(size_t bytes, int fill = 0) : bytes_(bytes) {
    GPU_OK(cudaMalloc(&base_, bytes + 2 * kGuardBytes));
    GPU_OK(cudaMemset(base_, kGuard, bytes + 2 * kGuardBytes));
    GPU_OK(cudaMemset(data(), fill, bytes));
    GPU_OK(cudaDeviceSynchronize());  // the tests' streams do not wait for the default one
  }
  ~Memory() { (void)cudaFree(base_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() const { return base_ + kGuardBytes; }
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data());
  }
  void set(const void* from, size_t bytes) const {
    if (bytes != 0) GPU_OK(cudaMemcpy(data(), from, bytes, cudaMemcpyHostToDevice));
  }
  std::vector<uint8_t> get() const {
    std::vector<uint8_t> out(bytes_);
    if (bytes_ != 0) GPU_OK(cudaMemcpy(out.data(), data(), bytes_, cudaMemcpyDeviceToHost));
    return out;
  }
  bool guards_intact() const {
    uint8_t guards[2 * kGuardBytes];
    GPU_OK(cudaMemcpy(guards, base_, kGuardBytes, cudaMemcpyDeviceToHost));
    GPU_OK(cudaMemcpy(guards + kGuardBytes, data() + bytes_, kGuardBytes, cudaMemcpyDeviceToHost));
    for (const uint8_t byte : guards) {
      if (byte != kGuard) return false;
    }
    return true;
  }

 private:
  std::byte* base_ = nullptr;
  size_t bytes_;
};

template <class T>
struct Pinned {
  T* host = nullptr;
  Pinned() {
    GPU_OK(cudaHostAlloc(&host, sizeof(T), cudaHostAllocMapped | cudaHostAllocPortable));
    std::memset(static_cast<void*>(host), 0, sizeof(T));
  }
  ~Pinned() { (void)cudaFreeHost(host); }
  Pinned(const Pinned&) = delete;
  T* device() const {
    void* pointer = nullptr;
    GPU_OK(cudaHostGetDevicePointer(&pointer, host, 0));
    return static_cast<T*>(pointer);
  }
};

// One rank's part of one EP buffer.
struct Buffer {
  Memory window, local, handle, peers;
  Pinned<DeviceReport> report;
  explicit Buffer(const EpGeometry& g)
      : window(g.window_bytes, kPoison),
        local(g.local_bytes),
        handle(g.handle_bytes),
        peers(g.sizes.ranks * sizeof(void*)) {
    GPU_OK(cudaMemset(window.data(), 0, g.words_end));
  }
  EpState state() const {
    EpState state{};
    GPU_OK(cudaMemcpy(&state, local.data(), sizeof state, cudaMemcpyDeviceToHost));
    return state;
  }
};

struct Rank {
  EpGeometry g;
  Memory control;
  Pinned<uint64_t> abort_word;
  DeviceControl shadow{};
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<cudaStream_t> streams;
  explicit Rank(const EpGeometry& geometry) : g(geometry), control(sizeof(DeviceControl)) {}
  ~Rank() {
    for (cudaStream_t stream : streams) (void)cudaStreamDestroy(stream);
  }
};

class Group {
 public:
  Group(EpSizes sizes, uint32_t buffers, uint32_t ctas, uint64_t timeout_ms, uint64_t epoch = 1)
      : ctas_(ctas) {
    for (uint32_t rank = 0; rank < sizes.ranks; ++rank) {
      sizes.rank = rank;
      ranks_.push_back(std::make_unique<Rank>(make_ep_geometry(sizes)));
      Rank& made = *ranks_.back();
      for (uint32_t i = 0; i < buffers; ++i) {
        made.buffers.push_back(std::make_unique<Buffer>(made.g));
        cudaStream_t stream = nullptr;
        GPU_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        made.streams.push_back(stream);
      }
      made.shadow.epoch = epoch;
      made.shadow.timeout_ns = timeout_ms * 1'000'000;
      made.shadow.rank = rank;
      made.shadow.ranks = sizes.ranks;
      made.shadow.abort_word = made.abort_word.device();
      for (uint32_t r = 0; r < sizes.ranks; ++r) made.shadow.live[r / 64] |= uint64_t{1} << r % 64;
    }
    for (auto& rank : ranks_) {
      for (uint32_t i = 0; i < buffers; ++i) {
        std::vector<std::byte*> peers;
        for (auto& other : ranks_) peers.push_back(other->buffers[i]->window.data());
        rank->buffers[i]->peers.set(peers.data(), peers.size() * sizeof(void*));
        EpState state{};
        state.channel.id = i + 1;
        state.channel.report = rank->buffers[i]->report.device();
        rank->buffers[i]->local.set(&state, sizeof state);
      }
      rank->control.set(&rank->shadow, sizeof rank->shadow);
    }
    GPU_OK(cudaDeviceSynchronize());
  }

  Rank& operator[](uint32_t rank) { return *ranks_[rank]; }
  uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }
  bool is_live(uint32_t rank) const {
    return (ranks_[rank]->shadow.live[rank / 64] >> rank % 64 & 1) != 0;
  }

  EpLaunch launch(uint32_t rank, uint32_t buffer, uint32_t delay = 0) {
    Rank& r = *ranks_[rank];
    EpLaunch out{};
    out.geometry = r.g;
    out.memory.control = r.control.as<DeviceControl>();
    out.memory.window = r.buffers[buffer]->window.data();
    out.memory.own = out.memory.window;
    out.memory.local = r.buffers[buffer]->local.data();
    out.memory.peers = r.buffers[buffer]->peers.as<std::byte*>();
    out.handle = r.buffers[buffer]->handle.data();
    out.ctas = ctas_;
    out.test_delay = delay;
    return out;
  }

  // Streams idle: a new epoch without the ranks of `gone`, as a view change would install it.
  void next_epoch(uint64_t epoch, const std::vector<uint32_t>& gone, bool carries) {
    for (auto& rank : ranks_) {
      rank->shadow.epoch = epoch;
      for (auto& other : ranks_) {
        for (const uint32_t r : gone) other->shadow.live[r / 64] &= ~(uint64_t{1} << r % 64);
      }
    }
    for (auto& rank : ranks_) {
      for (auto& buffer : rank->buffers) {
        GPU_OK(cudaMemset(buffer->window.data(), 0, rank->g.words_end));
        EpState state = buffer->state();
        state.channel.use = 0;
        state.carries = carries ? 1 : 0;
        state.credited = 0;
        buffer->local.set(&state, sizeof state);
        std::memset(static_cast<void*>(buffer->report.host), 0, sizeof(DeviceReport));
      }
      rank->control.set(&rank->shadow, sizeof rank->shadow);
    }
    GPU_OK(cudaDeviceSynchronize());
  }

  bool guards_intact() const {
    for (const auto& rank : ranks_) {
      for (const auto& buffer : rank->buffers) {
        if (!buffer->window.guards_intact() || !buffer->local.guards_intact() ||
            !buffer->handle.guards_intact()) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  uint32_t ctas_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

inline size_t width(uint32_t type) {
  return type == MEP_FLOAT32 ? 4 : type == MEP_FLOAT8_E4M3 ? 1 : 2;
}

}  // namespace rig
