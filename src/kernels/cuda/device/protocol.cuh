// Signals, waits and tickets of kernels: the device's side of what core does on hosts.
//
//   - A signal is one 64-bit word tag | payload with one writer, as in protocol/signal_word.hpp. It is
//     read and written whole, relaxed at system scope, with a fence at system scope between it and
//     the data that it speaks of: before the store (publish), after the load (observe).
//   - Every wait ends: by its word, by its deadline, by the abort word, or because another thread of
//     this channel gave up. A wait that did not end well has recorded why (fail) and returns false;
//     the caller goes on to the common exit of its kernel. Nothing traps.
//   - Looks at the clock and at the channel are spaced by polls, looks at the abort word, which lies
//     in host memory, by time.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/control.hpp"
#include "protocol/signal_word.hpp"

namespace mep::device {

// --- Memory operations ------------------------------------------------------------------------------

__device__ inline uint64_t load_word(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
__device__ inline void store_word(uint64_t* word, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
// One store that is ordered behind everything that this thread has done or seen done (acq_rel fences
// are cumulative): for a single word after other threads' data and a CTA barrier.
__device__ inline void store_word_release(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
// Before signal words are stored: what this thread wrote, or saw through a CTA barrier, is there first.
__device__ inline void publish() {
#ifndef MEP_MUTANT_NO_PUBLISH
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}
// After signal words were seen: what their writers published can be read, and may be overwritten.
__device__ inline void observe() {
#ifndef MEP_MUTANT_NO_OBSERVE
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}
__device__ inline uint64_t nanoseconds() {
  uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}

__device__ inline bool in_mask(const uint64_t* mask, uint32_t rank) {
  return (mask[rank / 64] >> (rank % 64) & 1) != 0;
}

// --- Failure ----------------------------------------------------------------------------------------

__device__ inline uint64_t load_shared_flag(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

// Whether operations of this epoch have failed on the channel.
__device__ inline bool has_failed(const DeviceChannel* channel, uint64_t epoch) {
  return load_shared_flag(&channel->failed_epoch) == epoch;
}

// The first failure of an epoch is recorded in the channel and told to the host; later ones are not.
__device__ inline void fail(DeviceChannel* channel, uint64_t epoch, Cause cause, uint32_t missing,
                            uint32_t phase) {
  if (has_failed(channel, epoch)) return;
  auto* claimed = reinterpret_cast<unsigned long long*>(&channel->claimed_epoch);
  if (atomicExch(claimed, static_cast<unsigned long long>(epoch)) == epoch) return;
  channel->failed_seq = channel->seq;
  channel->failed_cause = static_cast<uint32_t>(cause);
  channel->failed_rank = missing;
  DeviceReport* report = channel->report;
  if (report != nullptr) {
    report->channel = channel->id;
    report->epoch = epoch;
    report->seq = channel->seq;
    report->missing = missing;
    report->phase = phase;
    report->cause = static_cast<uint32_t>(cause);
    __threadfence_system();
    store_word(&report->ready, epoch | uint64_t{1} << 63);
  }
  // Last, for those who look at it: the rest is there.
  __threadfence();
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(&channel->failed_epoch), "l"(epoch)
               : "memory");
}

// --- Waiting ----------------------------------------------------------------------------------------

// How a thread of a kernel waits. Made once at the kernel's start.
struct Waiter {
  DeviceChannel* channel;
  const uint64_t* abort_word;
  uint64_t epoch;
  uint64_t deadline;  // by nanoseconds()
  uint32_t phase;

  __device__ Waiter(const DeviceControl* control, DeviceChannel* channel_, uint32_t phase_)
      : channel(channel_),
        abort_word(control->abort_word),
        epoch(control->epoch),
        deadline(control->timeout_ns == 0 ? UINT64_MAX : nanoseconds() + control->timeout_ns),
        phase(phase_) {}
};

constexpr uint32_t kPollsPerLook = 64;
constexpr uint64_t kAbortLookNs = 20'000;  // a look crosses the bus
constexpr uint32_t kEagerPolls = 1024;     // then the poller makes room for others

// Called between polls, `polls` counted by the caller from 1. False: give up.
__device__ inline bool keep_waiting(const Waiter& waiter, uint32_t polls, uint64_t* next_abort_look,
                                    uint32_t missing) {
  if (polls > kEagerPolls) __nanosleep(100);
  if (polls % kPollsPerLook != 0) return true;
  if (has_failed(waiter.channel, waiter.epoch)) return false;
  const uint64_t now = nanoseconds();
  if (now > waiter.deadline) {
    fail(waiter.channel, waiter.epoch, Cause::kDeadline, missing, waiter.phase);
    return false;
  }
  if (waiter.abort_word == nullptr || now < *next_abort_look) return true;
  const bool first = *next_abort_look == 0;
  *next_abort_look = now + kAbortLookNs;
  if (first || load_word(waiter.abort_word) < waiter.epoch) return true;
  fail(waiter.channel, waiter.epoch, Cause::kAborted, missing, waiter.phase);
  return false;
}

// Until the word carries the tag. The caller orders what follows: observe(), once for all its words.
__device__ inline bool wait_word(const Waiter& waiter, const uint64_t* word, uint64_t tag,
                                 uint32_t source, uint64_t* value) {
  uint64_t next_abort_look = 0;
  for (uint32_t polls = 1;; ++polls) {
    *value = load_word(word);
    if (signal_matches(*value, tag)) return true;
    if (!keep_waiting(waiter, polls, &next_abort_look, source)) return false;
  }
}

// --- The last CTA of a kernel -----------------------------------------------------------------------

// All threads of `ctas` CTAs call it when the CTA's work is done. True in all threads of the CTA that came
// last: it sees what all of them did, and may publish it. The fences are of this GPU alone: what a CTA
// wrote to peers happens before the ticket, and so before what the last CTA publishes to them.
__device__ inline bool is_last_of(uint32_t* ticket, uint32_t ctas, uint32_t* shared) {
#ifndef MEP_MUTANT_NO_TICKET_BARRIER
  __syncthreads();
#endif
  if (threadIdx.x == 0) {
#ifndef MEP_MUTANT_NO_PUBLISH
    __threadfence();
#endif
    const bool last = atomicAdd(ticket, 1u) == ctas - 1;
    if (last) *ticket = 0;
    *shared = last ? 1 : 0;
    __threadfence();
  }
  __syncthreads();
  return *shared != 0;
}
__device__ inline bool is_last_cta(uint32_t* ticket, uint32_t* shared) {
  return is_last_of(ticket, gridDim.x, shared);
}

}  // namespace mep::device
