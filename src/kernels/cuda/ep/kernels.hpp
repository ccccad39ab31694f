// Dispatch and combine on one rank's stream: what the host calls. Plain C++; streams are cudaStream_t as
// void*, results are cudaError_t as int, 0 is success. Nothing here allocates, waits or synchronises, so
// that all of it can be captured in a graph.
//
// The caller keeps the order of operations on a buffer (dispatch send, receive, combine send, receive),
// has checked the arguments, and has made sure that the CTAs of all ranks which share a GPU fit on it
// together: every kernel waits for the kernels of the other ranks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ep/geometry.hpp"
#include "kernels/cuda/ep/queue_layout.hpp"
#include "mep.h"
#include "protocol/ep_call.hpp"

namespace mep::device {

constexpr uint32_t kEpThreads = 512;   // of a CTA
constexpr uint32_t kMaxPlaces = 7000;  // what they need fits into the shared memory of a CTA

// own: the window, but where that lies on the host. All else is device memory that lives as long as graphs which captured it.
struct EpMemory {
  const DeviceControl* control;
  std::byte* window;
  std::byte*
      own;  // laid out like it and behind it: this rank's rows and terms for itself, and views
  std::byte* expanded;        // a block of EpExpandedLayout; null without
  std::byte* local;           // zeroed when made; EpState first
  std::byte* const* peers;    // [R] windows; of this rank: its own, with queues null
  const uint32_t* map_first;  // [E + 1] into map_places; null: ids are places
  const uint32_t* map_places;
};

struct EpLaunch {
  EpGeometry geometry;
  EpMemory memory;
  EpQueues queues;      // where peers are reached through queues
  std::byte* handle;    // device memory, zeroed when made
  uint32_t ctas;        // at most so many for a kernel
  uint32_t test_delay;  // seed of random delays in builds with MEP_TEST_HOOKS; 0: none
};

// Wrong alignment (16 bytes for rows) is cudaErrorMisalignedAddress and nothing is launched.
// Pointers in them are device memory, or pinned host memory for outputs that are small.
// Null: not this half of the operation; one of them is not. sends_late: `send` is that of a call that gave
// the counts alone and sent no row.
int ep_dispatch(const EpLaunch& launch, const DispatchInput* send, const DispatchOutput* receive,
                void* stream, bool sends_late = false);
// push: terms are sent even where they could be read in place.
int ep_combine(const EpLaunch& launch, const CombineInput* send, const CombineOutput* receive,
               bool push, void* stream);

// Loads all kernels, so that none is loaded while another waits; and how many CTAs of any of them the
// current device can hold at once. queued: peers are reached through queues.
int ep_load_kernels(const EpGeometry& geometry, bool queued, uint32_t* resident_ctas);

// In DeviceReport::phase: what was waited for.
enum class EpPhase : uint32_t { kCounts = 1, kFreeRows = 2, kRows = 3, kOutputs = 4 };

}  // namespace mep::device
