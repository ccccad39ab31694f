// Signals, waits and tickets of kernels: the device's side of what core does on hosts.
//
//   - A signal is one 64-bit word tag | payload with one writer, as in protocol/signal_word.hpp. It is
//     read and written whole at system scope: stored with release after the data that it speaks of,
//     and loaded with acquire by the thread that waits for it.
//   - Every wait ends: by its word, by its deadline, by the abort word, or because another thread of
//     this channel gave up. A wait that did not end well has recorded why (fail) and returns false;
//     the caller goes on to the common exit of its kernel. Nothing traps.
//   - Looks at the clock and at the channel are spaced by polls, looks at the abort word, which lies
//     in host memory, by time.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/control.hpp"
#include "kernels/cuda/device/instructions.cuh"
#include "protocol/signal_word.hpp"

namespace mep::device {

// --- Memory operations ------------------------------------------------------------------------------

__device__ inline uint64_t load_word(const uint64_t* word) {
  return load_system(word);
}
__device__ inline void store_word(uint64_t* word, uint64_t value) {
  store_system(word, value);
}
// A word and what it speaks of. By the PTX memory model a release and the acquire that sees its word order
//
//   what came before the release: accesses of its thread, of threads that it met at a barrier of the CTA before,
//     and of those from whom one of these threads has acquired, on this GPU or another;
//   before what comes after the acquire: accesses of its thread, and of threads that meet it at a barrier later.
//
// Scopes differ along such a chain: a ticket of this GPU's CTAs, then a word for another GPU. A thread that has
// seen a word acquires it itself, or meets one that has. Data is loaded and stored by plain instructions, of the
// generic proxy: bulk copies would need a fence between the proxies besides.
//
// An acquire waits for its own load and drops what the L1 holds; a fence would also wait until all stores under way
// have arrived, over NVLink for microseconds. A release has to.
__device__ inline uint64_t load_word_acquire(const uint64_t* word) {
#ifdef MEP_MUTANT_NO_ACQUIRE  // gpu_ep_notices_no_acquire reads stale lines of the L1; collectives, past it, only may
  return load_word(word);
#else
  return load_system_acquire(word);
#endif
}
__device__ inline void store_word_release(uint64_t* word, uint64_t value) {
#ifdef MEP_MUTANT_NO_RELEASE
  store_word(word, value);
#else
  store_system_release(word, value);
#endif
}
// One release for many words, which this thread stores later; and one acquire of many that it has loaded.
__device__ inline void publish() {
#ifndef MEP_MUTANT_NO_RELEASE
  fence_system();
#endif
}
__device__ inline void observe() {
#ifndef MEP_MUTANT_NO_ACQUIRE
  fence_system();
#endif
}
// A count of this GPU's CTAs, by one thread of each: gives the count before. It sees what all did that published
// with theirs before.
__device__ inline uint32_t add_in_turn(uint32_t* count, uint32_t more, bool publishes) {
#ifdef MEP_MUTANT_NO_RELEASE
  publishes = false;
#endif
  return publishes ? add_gpu_acq_rel(count, more) : add_gpu_acquire(count, more);
}

__device__ inline bool in_mask(const uint64_t* mask, uint32_t rank) {
  return (mask[rank / 64] >> (rank % 64) & 1) != 0;
}

// --- Failure ----------------------------------------------------------------------------------------

// Whether operations of this epoch have failed on the channel.
__device__ inline bool has_failed(const DeviceChannel* channel, uint64_t epoch) {
  return load_gpu(&channel->failed_epoch) == epoch;
}

// The first failure of an epoch is recorded in the channel and told to the host; later ones are not.
__device__ inline void fail(DeviceChannel* channel, uint64_t epoch, Cause cause, uint32_t missing,
                            uint32_t phase, uint32_t queue_error = 0) {
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
    report->queue_error = queue_error;
    __threadfence_system();
    store_word(&report->ready, epoch | uint64_t{1} << 63);
  }
  // Last, for those who look at it: the rest is there.
  __threadfence();
  store_gpu(&channel->failed_epoch, epoch);
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

// True in one thread of the channel's kernels every kAbortLookNs. Looks of all that wait, thread by thread, would hold up
// the words that they wait for, and so a rank that is late would make its peers as late.
__device__ inline bool may_look(DeviceChannel* channel, uint64_t now) {
  using Word = unsigned long long;
  const Word due = load_gpu(&channel->next_abort_look);
  if (now < due) return false;
  auto* next = reinterpret_cast<Word*>(&channel->next_abort_look);
  return atomicCAS(next, due, static_cast<Word>(now + kAbortLookNs)) == due;
}

// Called between polls, `polls` counted by the caller from 1. False: give up.
__device__ inline bool keep_waiting(const Waiter& waiter, uint32_t polls, uint32_t missing) {
  let_others_run();
  if (polls > kEagerPolls) __nanosleep(100);
  if (polls % kPollsPerLook != 0) return true;
  if (has_failed(waiter.channel, waiter.epoch)) return false;
  const uint64_t now = nanoseconds();
  if (now > waiter.deadline) {
    fail(waiter.channel, waiter.epoch, Cause::kDeadline, missing, waiter.phase);
    return false;
  }
  if (waiter.abort_word == nullptr || !may_look(waiter.channel, now)) return true;
  if (load_word(waiter.abort_word) < waiter.epoch) return true;
  fail(waiter.channel, waiter.epoch, Cause::kAborted, missing, waiter.phase);
  return false;
}

// How a word is loaded that is waited for: a relaxed load is enough where the word speaks of nothing but itself.
using LoadWord = uint64_t (*)(const uint64_t*);

// Until the word carries the tag.
template <LoadWord load = load_word_acquire>
__device__ inline bool wait_word(const Waiter& waiter, const uint64_t* word, uint64_t tag,
                                 uint32_t source, uint64_t* value) {
  for (uint32_t polls = 1;; ++polls) {
    *value = load(word);
    if (signal_matches(*value, tag)) return true;
    if (!keep_waiting(waiter, polls, source)) return false;
  }
}

// --- The last CTA of a kernel -----------------------------------------------------------------------

// All threads of `ctas` CTAs call it when the CTA's work is done. True in all threads of the CTA that came
// last: it sees what all of them did, and may publish it. A CTA's writes to peers come before the ticket too, and
// so before what the last CTA publishes to them.
__device__ inline bool is_last_of(uint32_t* ticket, uint32_t ctas, uint32_t* shared) {
#ifndef MEP_MUTANT_NO_TICKET_BARRIER
  __syncthreads();
#endif
  if (threadIdx.x == 0) {
    const bool last = add_in_turn(ticket, 1, true) == ctas - 1;
    if (last) *ticket = 0;
    *shared = last ? 1 : 0;
  }
  __syncthreads();
  return *shared != 0;
}
__device__ inline bool is_last_cta(uint32_t* ticket, uint32_t* shared) {
  return is_last_of(ticket, gridDim.x, shared);
}

}  // namespace mep::device
