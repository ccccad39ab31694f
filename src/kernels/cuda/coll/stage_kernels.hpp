// Launching staged operations (stage_mailbox.hpp); no CUDA header needed. Nothing here allocates, waits or
// synchronises. Results are cudaError_t as int, 0 is success.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/coll/stage_mailbox.hpp"
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

// All of the list, at most kStageItems, to its end. request.step: one that begins.
int stage_list(const StageChannel& channel, const StageRequest& request,
               std::span<const StageItem> list, const OpStatusPlace& status, void* stream);

// Inputs, the request, and, if it succeeded, outputs; and how it ended, to `status`.
int stage_collective(const StageChannel& channel, const StageRequest& request,
                     const StageCopies& inputs, const StageCopies& outputs,
                     const OpStatusPlace& status, void* stream);

}  // namespace mep::device
