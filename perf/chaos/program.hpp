// A program: what a job's ranks call, step by step, and what befalls them. It follows from a seed and a
// mode alone, so every rank knows all of it and nobody has to be told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "mep.h"
#include "protocol/operations.hpp"

namespace mep::programs {

constexpr uint32_t kMaxSlots = 16;
constexpr uint32_t kWorld = 0;  // number of the world among the comms of a program
constexpr uint32_t kNobody = UINT32_MAX;
constexpr size_t kLargestMessage = 4'000'000;  // bytes
// Generous: the machine may be busy. A rank that is silent so long without a cause has met a fault of the library.
constexpr uint32_t kSuspectMs = 15000;
constexpr uint32_t kShortSuspectMs = 1200;  // where a rank is stopped for longer

enum class Mode : uint32_t { kAny, kShm, kTcp, kMixed, kPut, kVerbs, kThreads };
using CallKind = Collective;

struct Call {
  CallKind kind = CallKind::k_barrier;
  uint32_t comm = kWorld;
  mep_dtype_t dtype = MEP_INT32;
  mep_op_t op = MEP_SUM;
  size_t count = 0;
  uint32_t root = 0;  // modulo the size of the comm
  bool in_place = false;
};

enum class StepKind : uint32_t {
  kCall,      // calls[0], blocking
  kBatch,     // all calls, nonblocking, waited for in an order of each rank's own
  kAgree,     // on calls[0].comm
  kSplit,     // of calls[0].comm; color and key by slot
  kFree,      // destroys calls[0].comm
  kRevoke,    // `actor` revokes calls[0].comm, all call calls[0]
  kTimeout,   // `actor` calls calls[0] later than the comm's timeout allows
  kMismatch,  // `actor` calls calls[1], the others calls[0]
  kEvict,     // `actor` asks that `target` be removed; then calls[0]
  kLeave,     // `actor` leaves the job; the others call calls[0]
  kAbort,     // `actor` aborts while all calls are pending; the others make them as in a batch
  kRecover,   // replacements of `slots` are admitted
  kGrow,      // `slots` are new; children[0] is the world from then on
  kEpCreate,  // EP object `ep` on calls[0].comm
  kEpLayers,  // dispatch and combine, `count` times, on all buffers of `ep`
  kEpFree,
  kMessages,  // each rank of the world sends each other one a message
  kCount      // each rank counts what it holds of the system
};

struct Step {
  StepKind kind = StepKind::kCall;
  std::vector<Call> calls;
  std::vector<int32_t> colors;     // by slot
  std::vector<int32_t> keys;       // by slot
  std::vector<uint32_t> children;  // numbers of the comms, by color
  std::vector<uint32_t> slots;
  uint32_t actor = kNobody;
  uint32_t target = kNobody;
  uint32_t ep = 0;
  uint32_t count = 1;
  uint32_t pause_percent = 0;  // how often a rank is late
  uint32_t computing = 0;      // slots, as bits: they come computing_ms later
  uint32_t computing_ms = 0;
};

enum class FaultKind : uint32_t {
  kKillInit,    // delay_us after its start or join began, when it has ended at the latest
  kKillBefore,  // delay_us after it came to the step, before the step's call
  kKillClock,   // delay_us after it began, when it has ended at the latest
  kKillPoint,   // at a failpoint, when the step has ended at the latest
  kKillAt,      // the same, but passages count from the step's beginning
  kKillAfter,   // right after the step
  kStop,        // SIGSTOP delay_us after the step began, SIGCONT after stop_ms
  kStopAt,      // the same at a failpoint, when the step has ended at the latest
  kSlow,        // from delay_us after the step began the rank runs a twentieth of stop_ms
  // While the replacement joins that the step admits. Times count from the end of the process that is replaced:
  // the replacement starts after start_us, SIGSTOP comes after delay_us; SIGCONT or SIGKILL stop_ms later.
  kStopInJoin
};

// The process goes on by itself.
constexpr bool only_stops(FaultKind kind) {
  return kind == FaultKind::kStop || kind == FaultKind::kStopAt || kind == FaultKind::kSlow;
}

struct Fault {
  FaultKind kind = FaultKind::kKillBefore;
  uint32_t slot = 0;
  uint32_t generation = 0;  // of the slot: 0 is the first process
  uint32_t step = 0;
  uint32_t delay_us = 0;
  uint32_t stop_ms = 0;
  uint32_t start_us = 0;
  bool until_admitted =
      false;  // it is over once the replacement's join has returned, if that is earlier
  bool ends_killed = false;  // by SIGKILL
  std::string point;         // NAME:NTH
};

// Shape of an EP object; what the fields mean stands in mep.h.
struct EpShape {
  uint32_t comm = kWorld;
  uint32_t max_tokens = 4;
  uint32_t hidden = 16;
  uint32_t top_k = 2;
  uint32_t local_experts = 1;
  uint32_t buffers = 1;
  mep_dtype_t input = MEP_FLOAT32;
  mep_dtype_t combine = MEP_FLOAT32;
  bool slotted = false;
  bool own_memory = false;
  bool high_throughput = false;
};

struct Program {
  uint64_t seed = 0;
  Mode mode = Mode::kShm;
  uint32_t ranks = 2;
  uint32_t max_ranks = 2;
  std::vector<uint32_t> hosts;  // by slot
  std::string transports;
  mep_ep_loss_t on_loss = MEP_EP_LOSS_FAILS;  // of each EP object
  bool maps = true;                           // else with MEP_MAP=0
  bool device = false;                        // communicators are on GPUs
  bool dies_in_init = false;
  uint32_t suspect_ms = kSuspectMs;
  uint32_t patience =
      1;  // factor of all limits of time, and of the times that processes are stopped
  std::vector<Step> steps;
  std::vector<Fault> faults;
  std::vector<EpShape> eps;

  uint32_t host_count() const;
  // Memory of the GPU that a rank's buffers of one step take at most.
  size_t device_bytes() const;
  uint32_t comm_count() const;
  // How often replacements of the slot were to be admitted before `step`.
  uint32_t generation(uint32_t slot, uint32_t step) const;
  // The comm of all ranks before `step`.
  uint32_t world(uint32_t step) const;
  bool kills() const;
  // Whether the process is stopped for so long that the others may leave it out.
  bool may_be_left_out(uint32_t slot, uint32_t generation) const;
  bool stops_in_join() const;
  bool has(StepKind kind) const;
  std::string text() const;
  std::string text_of(uint32_t step) const;
};

struct Limits {
  Mode mode = Mode::kAny;
  bool faults = true;
  bool ep = true;
  bool device = false;
  std::string shape;  // of each program; empty: as it is drawn
  uint32_t patience = 1;
  uint32_t steps = UINT32_MAX;  // no more than the first so many, to narrow a finding down
};

Program generate(uint64_t seed, const Limits& limits);
bool is_shape(const std::string& name);

const char* name_of(Mode mode);
const char* name_of(StepKind kind);

}  // namespace mep::programs
