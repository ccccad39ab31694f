// Launching staged operations (stage_mailbox.hpp); no CUDA header needed. Nothing here allocates, waits or
// synchronises. Results are cudaError_t as int, 0 is success.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ep_geometry.hpp"
#include "kernels/cuda/stage_mailbox.hpp"
#include "mep.h"

namespace mep::device {

// Loads every kernel, so that none is loaded while another waits.
int load_stage_kernels();

struct StageChannel {
  StageState* state;
  StageMailbox* mailbox;
};

// Rows from one place to another.
struct StageCopy {
  const std::byte* from;
  std::byte* to;
  uint64_t rows;
  uint64_t row_bytes;
  uint64_t from_stride;
  uint64_t to_stride;
  uint32_t unit;       // set by the launch: bytes that are copied at once
  uint32_t live_only;  // row r only if rank r contributed
};

constexpr uint32_t kStageCopies = 4;
struct StageCopies {
  StageCopy of[kStageCopies];
  uint32_t count;
  void add(const void* from, void* to, uint64_t rows, uint64_t row_bytes, uint64_t from_stride,
           uint64_t to_stride, bool live_only = false) {
    if (rows == 0 || row_bytes == 0) return;
    of[count++] = {static_cast<const std::byte*>(from),
                   static_cast<std::byte*>(to),
                   rows,
                   row_bytes,
                   from_stride,
                   to_stride,
                   0,
                   live_only ? 1u : 0u};
  }
};

// Inputs, the request, and, if it succeeded, outputs; and how it ended, to `status`.
int stage_collective(const StageChannel& channel, const StageRequest& request,
                     const StageCopies& inputs, const StageCopies& outputs,
                     const OpStatusPlace& status, void* stream);

// Where a buffer of an EP object has its staging; addresses in pinned memory. Rows that arrive, and rows
// that go back, lie one behind the other in the order of (local expert, source, row).
struct StageEpMemory {
  std::byte* x;         // [M] input rows
  std::byte* x_scales;  // [M]
  std::byte* topk_idx;  // [M * K] of 8 bytes
  float* weights;       // [M * K]
  std::byte* bias;
  std::byte* out;         // [M] combine rows
  int64_t* layout_range;  // [E_local * R]
  int32_t* recv_count;    // [E_local]
  int32_t* src_info;      // by row
  std::byte* scales;      // by row: its groups
  std::byte* rows;        // wire rows, or combine rows
};

// All that the kernels of a buffer need, device addresses.
struct StageEpBuffer {
  StageChannel channel;
  EpGeometry geometry;
  std::byte*
      window;  // the library's own recv_x, recv_scales, src_info and y, laid out by `geometry`
  std::byte* local;  // recv_count and layout_range at the offsets that `geometry` has for them
  StageEpMemory staging;
};

// Null: not this half of the operation; one of them is not.
int stage_dispatch(const StageEpBuffer& buffer, const mep_dispatch_send_t* send,
                   const mep_dispatch_receive_t* receive, const StageRequest& request,
                   void* stream);
int stage_combine(const StageEpBuffer& buffer, const mep_combine_send_t* send,
                  const mep_combine_receive_t* receive, const StageRequest& request, void* stream);

}  // namespace mep::device
