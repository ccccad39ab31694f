// Several ranks of stream collectives, without the rest of the library: the test plays the host's part (windows,
// control blocks, view changes). Ranks are dealt to all GPUs where those reach each other, else all are on the first.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "gpu_check.hpp"
#include "kernels/cuda/coll/kernels.hpp"
#include "kernels/cuda/device/op_status.hpp"

namespace gpu_test {

using mep::Collective;
using mep::device::CollCall;
using mep::device::CollDecision;
using mep::device::CollLayout;
using mep::device::CollPost;
using mep::device::CollState;
using mep::device::OpStatus;

inline void mep_ok(mep_result_t result) {
  if (result == MEP_SUCCESS) return;
  std::printf("FAILED: %s\n", mep::last_error_text());
  std::exit(1);
}

inline uint32_t gpus_in_use() {
  static const int32_t count = join_gpus() ? gpu_count() : 1;
  return static_cast<uint32_t>(count);
}
// The GPU of a rank, for what the caller does next.
inline void use_gpu_of(uint32_t rank) {
  cuda(cudaSetDevice(static_cast<int>(rank % gpus_in_use())));
}

// Device memory of one rank with guard bytes around it.
class Buffer {
 public:
  static constexpr size_t kGuard = 256;
  static constexpr uint8_t kPoison = 0xa5;
  Buffer(uint32_t rank, size_t bytes) : rank_(rank), bytes_(bytes) {
    use_gpu_of(rank);
    cuda(cudaMalloc(&memory_, bytes + 2 * kGuard));
  }
  ~Buffer() { (void)cudaFree(memory_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  uint8_t* at(size_t offset = 0) const { return memory_ + kGuard + offset; }
  void poison() const {
    use_gpu_of(rank_);
    cuda(cudaMemset(memory_, kPoison, bytes_ + 2 * kGuard));
  }
  void write(size_t offset, const std::vector<uint8_t>& bytes) const {
    cuda(cudaMemcpy(at(offset), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  }
  // With the guard bytes: what at(0) shows is at kGuard.
  std::vector<uint8_t> read_all() const {
    std::vector<uint8_t> all(whole_bytes());
    cuda(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost));
    return all;
  }
  size_t whole_bytes() const { return bytes_ + 2 * kGuard; }

 private:
  uint32_t rank_;
  size_t bytes_;
  uint8_t* memory_ = nullptr;
};

// The library's own places, or places so small that every operation takes many steps.
enum class Places { kAsUsual, kSmall };

class Rig {
 public:
  Rig(uint32_t ranks, uint64_t timeout_ms, Places places = Places::kAsUsual) : ranks_(ranks) {
    for (uint32_t rank = ranks; rank-- > 0;) {
      use_gpu_of(rank);
      mep_ok(mep::device::load_coll_kernels());
    }
    uint32_t capacity = 0;
    mep_ok(mep::device::coll_cta_capacity(0, &capacity));
    layout_ = mep::device::make_coll_layout(
        ranks, mep::device::most_coll_ctas(capacity, (ranks + gpus_in_use() - 1) / gpus_in_use()));
    if (places == Places::kSmall) {
      layout_.slot_bytes = 16u << 10;
      layout_.packet_place_bytes = 16u << 10;
      layout_.piece_bytes = 1u << 10;
      layout_.sliced_broadcast_bytes = layout_.sliced_reduce_bytes = 24u << 10;
      layout_.pulled_from = layout_.pulled_broadcast_bytes = 9u << 10;
      layout_.pulled_to = layout_.pulled_alltoall_to = UINT64_MAX;
    }
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      windows_.push_back(make_window(rank));
    }
    for (uint32_t rank = 0; rank < ranks; ++rank) add_rank(rank, timeout_ms);
    synchronize();
  }
  ~Rig() {
    synchronize();
    for (cudaStream_t stream : streams_) (void)cudaStreamDestroy(stream);
    for (CollState* state : states_) (void)cudaFree(state);
    for (CollPost* post : posts_) (void)cudaFreeHost(post);
    for (uint8_t* window : windows_) (void)cudaFree(window);
    for (auto* table : tables_) (void)cudaFree(table);
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  uint32_t ranks() const { return ranks_; }
  const CollLayout& layout() const { return layout_; }
  cudaStream_t stream(uint32_t rank) const { return streams_[rank]; }
  CollPost* post(uint32_t rank) const { return posts_[rank]; }
  uint8_t* window(uint32_t rank) const { return windows_[rank]; }
  // Zeroed memory like a rank's window.
  uint8_t* make_window(uint32_t rank) const {
    uint8_t* window = nullptr;
    use_gpu_of(rank);
    cuda(cudaMalloc(&window, layout_.window_bytes()));
    cuda(cudaMemset(window, 0, layout_.window_bytes()));
    return window;
  }

  CollState read_state(uint32_t rank) const {
    CollState state{};
    cuda(cudaMemcpy(&state, states_[rank], sizeof state, cudaMemcpyDeviceToHost));
    return state;
  }
  // While nothing runs.
  void write_state(uint32_t rank, const CollState& state) const {
    use_gpu_of(rank);
    cuda(cudaMemcpy(states_[rank], &state, sizeof state, cudaMemcpyHostToDevice));
    cuda(cudaDeviceSynchronize());
  }
  void set_delay(uint32_t rank, uint32_t ns) const {
    CollState state = read_state(rank);
    state.test_delay_ns = ns;
    write_state(rank, state);
  }
  // The members from the first operation on; before it.
  void set_live(uint64_t live) const {
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      CollState state = read_state(rank);
      state.live = live;
      write_state(rank, state);
    }
  }
  // A piece of each rank's memory, all of `bytes`; in place of the one with that number, or as one more. Before the first
  // operation that finds it.
  void register_memory(uint64_t number, const std::vector<uint8_t*>& memory, uint64_t bytes) {
    mep::device::CollRegistered piece{};
    piece.number = number;
    piece.bytes = bytes;
    for (uint32_t rank = 0; rank < ranks_; ++rank) piece.at[rank] = memory[rank];
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      CollState state = read_state(rank);
      if (state.registered == nullptr) {
        mep::device::CollRegistered* table = nullptr;
        cuda(cudaMalloc(&table, sizeof piece * mep::device::kMaxRegistered));
        cuda(cudaMemset(table, 0, sizeof piece * mep::device::kMaxRegistered));
        tables_.push_back(table);
        state.registered = table;
        state.offers = 1;
        write_state(rank, state);
      }
      auto* const place = const_cast<mep::device::CollRegistered*>(state.registered) +
                          number % mep::device::kMaxRegistered;
      cuda(cudaMemcpy(place, &piece, sizeof piece, cudaMemcpyHostToDevice));
    }
    synchronize();
  }
  // counted: by the form with counts, which are all those of the call.
  void launch(uint32_t rank, const CollCall& call, uint32_t ctas = 0, bool counted = false) const {
    use_gpu_of(rank);
    CollCall launched = call;
    mep::device::CollBlocks blocks{};
    if (counted) {
      launched.kind = counted_form(call.kind);
      launched.bytes = call.kind == Collective::k_allgather ? call.bytes : 0;
      blocks = equal_blocks(rank, call);
    }
    mep_ok(mep::device::launch_coll(launched, states_[rank], layout_, ctas, streams_[rank],
                                    counted ? &blocks : nullptr));
  }
  mep::device::CollBlocks equal_blocks(uint32_t rank, const CollCall& call) const {
    mep::device::CollBlocks blocks{};
    for (uint32_t other = 0; other < ranks_; ++other) {
      const Shares own = shares_of(call.kind, rank == call.root, ranks_);
      const Shares its = shares_of(call.kind, other == call.root, ranks_);
      if (own.send != 0 && its.receive != 0) {
        blocks.given[other] = {own.send == 1 ? 0 : other * call.bytes, call.bytes};
      }
      if (own.receive != 0 && its.send != 0) {
        blocks.gotten[other] = {own.receive == 1 ? 0 : other * call.bytes, call.bytes};
      }
    }
    return blocks;
  }
  // A graph of what `body` launches on the rank's stream.
  template <typename Body>
  cudaGraphExec_t capture(uint32_t rank, Body&& body) const {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    use_gpu_of(rank);
    cuda(cudaStreamBeginCapture(stream(rank), cudaStreamCaptureModeThreadLocal));
    body();
    cuda(cudaStreamEndCapture(stream(rank), &graph));
    cuda(cudaGraphInstantiate(&exec, graph, 0));
    cuda(cudaGraphUpload(exec, stream(rank)));
    cuda(cudaGraphDestroy(graph));
    return exec;
  }
  void replay(uint32_t rank, cudaGraphExec_t exec) const {
    use_gpu_of(rank);
    cuda(cudaGraphLaunch(exec, stream(rank)));
  }
  void synchronize() const { synchronize_all(); }

  // --- The part of membership ---
  static uint64_t word_of(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
  void freeze(uint32_t rank) const { __atomic_fetch_add(&posts_[rank]->word, 1, __ATOMIC_SEQ_CST); }
  // Waits until the running operation, if any, has ended or parked. False: it did not within 5 s.
  bool acknowledged(uint32_t rank) const {
    const CollPost* post = posts_[rank];
    const uint64_t word = word_of(&post->word);
    const double end = now_s() + 5;
    while (now_s() < end) {
      const uint64_t entered = word_of(&post->entered);
      if (word_of(&post->failed) >= entered || word_of(&post->done) >= entered) return true;
      if (word_of(&post->parked) == word) return true;
    }
    return false;
  }
  void install(uint32_t rank, const CollDecision& decision) const {
    CollPost* post = posts_[rank];
    const uint64_t number = post->installed + 1;
    post->decisions[number % mep::device::kCollDecisions] = decision;
    __atomic_store_n(&post->installed, number, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&post->word, 1, __ATOMIC_SEQ_CST);
  }
  void lift(uint32_t rank) const { __atomic_fetch_add(&posts_[rank]->word, 1, __ATOMIC_SEQ_CST); }

 private:
  void add_rank(uint32_t rank, uint64_t timeout_ms) {
    use_gpu_of(rank);
    CollPost* post = nullptr;
    cuda(cudaHostAlloc(&post, sizeof *post, cudaHostAllocMapped | cudaHostAllocPortable));
    std::memset(static_cast<void*>(post), 0, sizeof *post);
    CollState* state = nullptr;
    cuda(cudaMalloc(&state, sizeof *state));
    cudaStream_t stream = nullptr;
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CollState first{};
    first.epoch = 1;
    first.live = ranks_ == 64 ? ~uint64_t{0} : (uint64_t{1} << ranks_) - 1;
    first.rank = rank;
    first.timeout_ns = timeout_ms * 1'000'000;
    first.settle_ns = 3'000'000'000;
    first.layout = layout_;
    first.post = post;
    for (uint32_t peer = 0; peer < ranks_; ++peer) first.windows[peer] = windows_[peer];
    cuda(cudaMemcpy(state, &first, sizeof first, cudaMemcpyHostToDevice));
    posts_.push_back(post);
    states_.push_back(state);
    streams_.push_back(stream);
  }

  uint32_t ranks_;
  CollLayout layout_{};
  std::vector<uint8_t*> windows_;
  std::vector<CollState*> states_;
  std::vector<CollPost*> posts_;
  std::vector<cudaStream_t> streams_;
  std::vector<mep::device::CollRegistered*> tables_;
};

}  // namespace gpu_test
