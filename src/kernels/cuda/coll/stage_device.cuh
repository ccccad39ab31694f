// Staged collectives on the device: copies, and the exchange with the host.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/coll/stage_kernels.hpp"
#include "kernels/cuda/device/op_status.cuh"
#include "kernels/cuda/device/protocol.cuh"

namespace mep::device {

constexpr uint32_t kStageThreads = 256;

// --- Copies -----------------------------------------------------------------------------------------

// Pinned memory is read past the caches: the host writes it.
template <class Unit>
__device__ inline Unit read_staged(const Unit* from) {
  return __ldcv(from);
}
__device__ inline uint8_t read_staged(const uint8_t* from) {
  return __ldcv(reinterpret_cast<const unsigned char*>(from));
}

__device__ inline bool is_row_wanted(const StageCopy& copy, uint64_t row, const StageState* state) {
  return copy.live_only == 0 || in_mask(state->answer.live, static_cast<uint32_t>(row));
}

// By `threads` threads, of which this is number `thread`.
template <class Unit>
__device__ inline void copy_units(const StageCopy& copy, const StageState* state, uint64_t thread,
                                  uint64_t threads) {
  const uint64_t units = copy.row_bytes / sizeof(Unit);
  const uint64_t all = copy.rows * units;
  for (uint64_t i = thread; i < all; i += threads) {
    const uint64_t row = i / units;
    const uint64_t at = i - row * units;
    if (!is_row_wanted(copy, row, state)) continue;
    const auto* from = reinterpret_cast<const Unit*>(copy.from + row * copy.from_stride);
    reinterpret_cast<Unit*>(copy.to + row * copy.to_stride)[at] = read_staged(from + at);
  }
}

__device__ inline void copy_one(const StageCopy& copy, const StageState* state, uint64_t thread,
                                uint64_t threads) {
  if (copy.unit == 16) {
    copy_units<uint4>(copy, state, thread, threads);
  } else if (copy.unit == 4) {
    copy_units<uint32_t>(copy, state, thread, threads);
  } else {
    copy_units<uint8_t>(copy, state, thread, threads);
  }
}

__device__ inline void copy_all(const StageCopies& copies, const StageState* state, uint64_t thread,
                                uint64_t threads) {
  for (uint32_t i = 0; i < copies.count; ++i) copy_one(copies.of[i], state, thread, threads);
}

// --- The exchange -----------------------------------------------------------------------------------

__device__ inline void copy_words(void* to, const void* from, size_t bytes) {
  for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) {
    static_cast<uint64_t*>(to)[i] = load_word(static_cast<const uint64_t*>(from) + i);
  }
}

// Nothing came.
__device__ inline void leave_stage(StageState* state, mep_result_t result) {
  state->answer = {};
  state->answer.result = result;
  state->answer.status.head.version = MEP_OP_STATUS_VERSION;
  state->answer.status.head.result = result;
}

// By one thread: posts the request and keeps the answer. What other threads wrote to the staging is ordered
// by what ordered it before this call, the end of their kernel or a barrier of the CTA.
__device__ inline void exchange_with_host(const StageChannel& channel,
                                          const StageRequest& request) {
  constexpr uint32_t kFirstPauseNs = 100;
  constexpr uint32_t kLongestPauseNs = 2'000;
  constexpr uint32_t kPollsPerClock = 8;
  StageState* state = channel.state;
  StageMailbox* box = channel.mailbox;
  if (state->ended != 0) return leave_stage(state, state->ended);
  if (request.continues != 0 && state->answer.result != MEP_SUCCESS) return;
  const uint64_t number = state->number + 1;
  state->number = number;
  const auto* words = reinterpret_cast<const uint64_t*>(&request);
  for (size_t i = 0; i < sizeof request / sizeof(uint64_t); ++i) {
    store_word(reinterpret_cast<uint64_t*>(&box->request) + i, words[i]);
  }
  store_word_release(&box->posted, number);
  const uint64_t begin = nanoseconds();
  const uint64_t bound = load_word(&box->bound_ns);
  uint32_t pause = kFirstPauseNs;
  for (uint32_t polls = 1; load_word_acquire(&box->answered) != number; ++polls) {
    __nanosleep(pause);
    pause = pause < kLongestPauseNs ? pause * 2 : kLongestPauseNs;
    if (polls % kPollsPerClock != 0) continue;
    const auto closed = static_cast<mep_result_t>(load_word(&box->closed));
    if (closed != 0) return leave_stage(state, closed);
    if (nanoseconds() - begin < bound) continue;
    store_word(&box->left, number);
    state->ended = MEP_ERR_TIMEOUT;
    return leave_stage(state, MEP_ERR_TIMEOUT);
  }
  copy_words(&state->answer, &box->answer, sizeof state->answer);
}

// By one thread: what the host says of the operation.
__device__ inline void tell_status(const OpStatusPlace& to, const StageAnswer& answer) {
  if (to.record != nullptr) write_op_status<true>(to, answer.status.head, answer.status.failed);
}

// --- Launching --------------------------------------------------------------------------------------

// CTAs of a copy of so many bytes: enough to fill the bus.
inline uint32_t stage_ctas(uint64_t bytes) {
  constexpr uint64_t kBytesPerCta = 32u << 10;
  constexpr uint64_t kMostCtas = 24;
  const uint64_t wanted = bytes / kBytesPerCta + 1;
  return static_cast<uint32_t>(wanted < kMostCtas ? wanted : kMostCtas);
}

}  // namespace mep::device
