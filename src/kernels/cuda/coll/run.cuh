// The frame of every collective kernel: how an operation begins, waits and ends.
//
// A CTA has kDataThreads that move data, and one more warp. In CTA 0 that warp's first thread is the
// leader: it alone speaks with the host, and it ends the operation when all CTAs are through. Waiting
// threads look at the leader's decision only; so every wait ends when the leader says so, and the
// leader's patience is timeout_ns + settle_ns.
#pragma once

#include <cstdint>

#include "kernels/cuda/coll/state.hpp"
#include "kernels/cuda/device/op_status.cuh"
#include "kernels/cuda/device/protocol.cuh"

namespace mep::device {

constexpr uint32_t kDataThreads = 512;
constexpr uint32_t kCollThreads = kDataThreads + 32;
constexpr uint32_t kPollsPerDecision = 64;
constexpr uint64_t kFirstLookNs = 50'000;  // a look at the host crosses the bus
constexpr uint64_t kLookNs = 20'000;

struct CollFrame {
  uint64_t epoch;
  uint64_t fingerprint;
  uint64_t seq;
  uint64_t step;
  uint64_t live;
  uint64_t replaced;  // sources whose bytes are read in the donor's window
  const uint8_t* own;
  const uint8_t* donor;
  uint8_t* window[kMaxCollRanks];  // by rank
  // See coll/allreduce.cuh. By place among the members, where contributions lie; windows that get results; a buffer, or null.
  const uint8_t* give[kMaxCollRanks];
  uint8_t* put[kMaxCollRanks];
  uint32_t puts;
  uint8_t* put_user;
  uint32_t members;
  uint32_t member[kMaxCollRanks];  // ranks, rising
  uint32_t cursor;                 // this rank's place among them
  int32_t refused;                 // the operation ends at once with this
  uint32_t failed;
  uint32_t mismatched;        // a member calls something else
  uint32_t finished;          // the data threads of CTA 0
  uint64_t stopped_at;        // of a pipeline: its number when it failed
  unsigned long long chunks;  // of the longest block; 0: no counts. Atomic, for compute-sanitizer
  // See coll/registered.cuh. The numbers of the newest and the oldest piece of any offer, the latter with all bits inverted.
  unsigned long long offer, newest, oldest_inverted;
  uint32_t offers;  // as in CollState
  bool pulls;       // blocks are read at `source`, by rank
  const uint8_t* source[kMaxCollRanks];

  // Members from this rank on, around: ranks that begin at different ones do not all write to one.
  __device__ uint32_t cursor_after(uint32_t count) const {
    const uint32_t place = cursor + count;
    return place < members ? place : place - members;
  }
  __device__ uint32_t member_after(uint32_t count) const { return member[cursor_after(count)]; }
  __device__ unsigned long long told_chunks() { return atomicAdd(&chunks, 0ull); }
};

// The barriers of a CTA. 0 is that of __syncthreads(), which nobody calls here.
enum CtaBarrier : uint32_t {
  kDataBarrier = 1,    // the data threads
  kFrameBarrier = 2,   // all threads
  kSenderBarrier = 3,  // of a pipeline (coll/pipeline.cuh): its senders
  kArrivedBarrier = 4,
  kTakenBarrier = 5,
  kTakerBarrier = 6,  // its takers: the senders may be at the data threads' next one
};

__device__ inline void sync_at(CtaBarrier barrier, uint32_t threads) {
  sync_barrier(barrier, threads);
}
__device__ inline void arrive_at(CtaBarrier barrier, uint32_t threads) {
  arrive_barrier(barrier, threads);
}
__device__ inline void data_sync() {
  sync_at(kDataBarrier, kDataThreads);
}

// Data threads of a CTA that share a piece of work: whole warps.
struct Team {
  uint32_t index;  // this thread's
  uint32_t threads;
  CtaBarrier barrier;

  __device__ uint64_t first() const {
    return uint64_t{index} * 16;
  }  // bytes: each thread has a pack
  __device__ uint64_t stride() const { return uint64_t{threads} * 16; }
  __device__ void sync() const { sync_at(barrier, threads); }
};
__device__ inline Team whole_team() {
  return {threadIdx.x, kDataThreads, kDataBarrier};
}

// The tag of a step of any call; the fingerprint's bits are 0.
__device__ inline uint64_t step_tag(uint64_t epoch, uint64_t step) {
  constexpr uint32_t kStepBits = 48 - kFingerprintBits;
  const uint64_t number = (step + 1) & ((uint64_t{1} << kStepBits) - 1);
  return uint64_t{1} << 63 | (epoch & 0x7fff) << 48 | number << kFingerprintBits;
}
__device__ inline uint64_t coll_tag(const CollFrame& frame, uint64_t step) {
  return step_tag(frame.epoch, step) | frame.fingerprint;
}
// True for a word of the tag's step, or of the next: a rank does not come further without this one.
__device__ inline bool is_near_step(uint64_t word, uint64_t tag) {
  return (word >> kFingerprintBits) - (tag >> kFingerprintBits) <= 1;
}

// Judged by the view in which other ranks made the call. It took no number there, so it tells of no change.
__device__ inline bool lacks_root(const CollState* state, const CollCall& call) {
  const uint64_t live = state->live | (state->pending_report != 0 ? state->pending_gone : 0);
  return call.is_rooted != 0 && (live >> call.root & 1) == 0;
}

// Why an operation ends at once, or 0.
__device__ inline int32_t refusal(const CollState* state, const CollCall& call) {
  if (state->ended != 0) return state->ended;
  return lacks_root(state, call) ? int32_t{MEP_ERR_PEER_FAILED} : state->pending_report;
}

// The warp of the leader, before it reads the frame. The data threads arrive and go on.
__device__ inline void wait_for_frame() {
  __syncwarp();
  sync_at(kFrameBarrier, kCollThreads);
}

// The data threads, first of all.
__device__ inline void begin_frame(const CollState* state, const CollCall& call, CollFrame* frame) {
  // Other warps than the one that reads the rest, at the same time.
  const uint32_t other = threadIdx.x - 32;
  if (other < kMaxCollRanks) frame->window[other] = state->windows[other];
  if (other == kMaxCollRanks) frame->offers = state->offers;
  if (threadIdx.x == 0) {
    frame->epoch = state->epoch;
    frame->fingerprint = call.fingerprint;
    frame->seq = state->seq + 1;
    frame->step = state->step;
    frame->live = state->live;
    frame->replaced = 0;
    frame->own = state->windows[state->rank];
    frame->donor = nullptr;
    frame->failed = 0;
    frame->mismatched = 0;
    frame->finished = 0;
    frame->stopped_at = UINT64_MAX;
    frame->chunks = 0;
    frame->pulls = false;
    uint32_t members = 0;
    for (uint32_t rank = 0; rank < state->layout.ranks; ++rank) {
      if ((state->live >> rank & 1) == 0) continue;
      if (rank == state->rank) frame->cursor = members;
      frame->member[members++] = rank;
    }
    frame->members = members;
    frame->refused = refusal(state, call);
  }
  data_sync();
  arrive_at(kFrameBarrier, kCollThreads);
}

// Tests: between 0 and test_delay_ns, different for every rank, CTA and phase.
__device__ inline void test_delay(const CollState* state, const CollFrame& frame, uint32_t phase) {
  if (state->test_delay_ns == 0) return;
  uint64_t mix = (frame.seq * 1024 + blockIdx.x * 16 + phase) * 64 + state->rank + frame.epoch;
  mix = (mix ^ mix >> 31) * 0x7fb5d329728ea185u;
  mix = (mix ^ mix >> 27) * 0x81dadef4bc2dd44du;
  const uint64_t end = nanoseconds() + (mix >> 33) % state->test_delay_ns;
  while (nanoseconds() < end) __nanosleep(100);
}

// How a word is stored: relaxed where who sees it reads nothing that was written before.
using StoreWord = void (*)(uint64_t*, uint64_t);

// The team: stores this rank's word at `row` of every member's window, after what all of the team have written.
template <StoreWord store = store_word_release>
__device__ inline void signal_members(const Team& team, const CollState* state,
                                      const CollFrame& frame, uint64_t row, uint64_t tag) {
  team.sync();
  for (uint32_t i = team.index; i < frame.members; i += team.threads) {
    uint8_t* window = frame.window[frame.member[i]];
    store(reinterpret_cast<uint64_t*>(window + row) + state->rank, tag);
  }
}
template <StoreWord store = store_word_release>
__device__ inline void signal_members(const CollState* state, const CollFrame& frame, uint64_t row,
                                      uint64_t tag) {
  signal_members<store>(whole_team(), state, frame, row, tag);
}

// Number of the latest operation that the window's rank has ended by a mismatch.
__device__ inline uint64_t* mismatch_word(uint8_t* window) {
  return reinterpret_cast<uint64_t*>(window) + 1;
}

// The leader's decision on the operation, as far as it concerns a source.
enum class Outlook {
  kWaits,     // nothing yet, or its bytes will come
  kReplaced,  // its bytes are in the donor's window
  kFailed,
};

__device__ inline Outlook look_at_decision(CollState* state, CollFrame* frame, uint32_t source) {
  const uint64_t decision = load_gpu_acquire(&state->decision);
  if (decision >> 2 != frame->seq) return Outlook::kWaits;
  if ((decision & 3) == kCollFail) return Outlook::kFailed;
  if (load_gpu(&state->decided_live) >> source & 1) return Outlook::kWaits;
  frame->donor = state->windows[load_gpu(&state->donor)];
  __threadfence_block();  // who sees the bit sees the donor
  atomicOr(reinterpret_cast<unsigned long long*>(&frame->replaced), 1ull << source);
  return Outlook::kReplaced;
}

// One source, one thread; `other` is where its word would be if its call went another way. A rank that has found that
// out and gone on to its next call may have written over the word. False: the operation has failed; else this thread
// has acquired what the word, or the decision that replaces it, speaks of.
__device__ inline bool wait_source(CollState* state, CollFrame* frame, const uint64_t* word,
                                   const uint64_t* other, uint64_t tag, uint32_t source) {
  auto* replaced = reinterpret_cast<unsigned long long*>(&frame->replaced);
  if (atomicOr(replaced, 0ull) >> source & 1) return true;
  for (uint32_t polls = 1;; ++polls) {
    const uint64_t seen = load_word_acquire(word);
    if (seen == tag) return true;
    bool differs = is_near_step(seen, tag);
    let_others_run();
    if (polls % kPollsPerDecision != 0 && !differs) continue;
    if (!differs && is_near_step(load_word_acquire(other), tag)) {
      // It came in between, and the source has gone on.
      if (load_word_acquire(word) == tag) return true;
      differs = true;
    }
    if (differs) {
      atomicExch(&frame->mismatched, 1u);
      return false;
    }
    const Outlook outlook = look_at_decision(state, frame, source);
    // Its word may have come in between; the donor has the same bytes.
    if (outlook != Outlook::kWaits) return outlook == Outlook::kReplaced;
  }
}

// The team: until the word of every member is in this rank's row, or in the other one. False in all of them: the
// operation has failed.
__device__ inline bool wait_members(const Team& team, CollState* state, CollFrame* frame,
                                    uint64_t row, uint64_t other_row, uint64_t tag) {
  for (uint32_t i = team.index; i < frame->members; i += team.threads) {
    const uint32_t source = frame->member[i];
    const auto* word = reinterpret_cast<const uint64_t*>(frame->own + row) + source;
    const auto* other = reinterpret_cast<const uint64_t*>(frame->own + other_row) + source;
    if (!wait_source(state, frame, word, other, tag, source)) {
      atomicExch(&frame->failed, 1u);
    }
  }
  team.sync();
  return *static_cast<volatile uint32_t*>(&frame->failed) == 0;
}
__device__ inline bool wait_members(CollState* state, CollFrame* frame, uint64_t row,
                                    uint64_t other_row, uint64_t tag) {
  return wait_members(whole_team(), state, frame, row, other_row, tag);
}

// The data threads, before the first step of an epoch: until all members have ended what they did in the one
// before, whose places are used anew. False in all of them: the operation has failed.
__device__ inline bool meet_in_epoch(CollState* state, CollFrame* frame) {
#ifdef MEP_MUTANT_NO_MEETING  // gpu_coll_faults notices
  return true;
#endif
  const uint64_t row = state->layout.begin_row(blockIdx.x);
  const uint64_t tag = step_tag(frame->epoch, 0);
  signal_members(state, *frame, row, tag);
  return wait_members(state, frame, row, row, tag);
}

// The data threads, in the last step of an operation whose blocks are for one rank each: until all members have
// what was theirs. No member can give what another one lacks, so none is complete before.
template <StoreWord store = store_word_release>
__device__ inline void confirm_blocks(CollState* state, CollFrame* frame, uint64_t step) {
#ifndef MEP_MUTANT_NO_CONFIRM  // gpu_coll_faults notices
  const uint64_t row = state->layout.exchange_row(step & 1, blockIdx.x);
  const uint64_t tag = coll_tag(*frame, step);
  test_delay(state, *frame, 3);
  signal_members<store>(state, *frame, row, tag);
  (void)wait_members(state, frame, row, state->layout.scatter_row(blockIdx.x), tag);
#endif
}

// Where the bytes of `source` are to be read.
__device__ inline const uint8_t* window_of(const CollFrame& frame, uint32_t source) {
  return (frame.replaced >> source & 1) != 0 ? frame.donor : frame.own;
}

// --- The leader -------------------------------------------------------------------------------------

struct CollLeader {
  CollState* state;
  const CollCall* call;
  CollFrame* frame;
  uint64_t word = 0;       // last seen
  uint64_t installed = 0;  // decisions taken in
  int32_t result = MEP_SUCCESS;
  bool decided = false;
  bool told = false;     // the deadline
  CollDecision last{};   // the decision that ended the operation's epoch
  uint64_t adopted = 0;  // its number; those behind it are the next operations'
  // Read while others move data, so that the end has only to store.
  CollPost* post = nullptr;
  uint64_t seen_word = 0;
  uint64_t seen_installed = 0;
  uint64_t* done_word = nullptr;

  __device__ void prepare() { post = state->post; }
  // Before the frame is there: a look at the host takes as long as a short operation.
  __device__ void enter() {
    store_word(&post->entered, state->seq + 1);
    fence_system_sc();
    word = load_word(&post->word);
    seen_word = state->seen_word;
    seen_installed = installed = state->seen_installed;
    done_word = reinterpret_cast<uint64_t*>(state->windows[state->rank]);
  }

  __device__ void decide(uint32_t code) {
    __threadfence();
    store_gpu(&state->decision, frame->seq << 2 | code);
    decided = true;
  }
  __device__ void decide_failure(int32_t why) {
    result = why;
    decide(kCollFail);
  }

  // The peer that has completed this operation.
  __device__ bool find_donor(uint64_t live) {
    for (uint32_t rank = 0; rank < state->layout.ranks; ++rank) {
      if ((live >> rank & 1) == 0 || rank == state->rank) continue;
      const auto* done = reinterpret_cast<const uint64_t*>(state->windows[rank]);
      if (load_word_acquire(done) < frame->seq) continue;
      state->donor = rank;
      return true;
    }
    return false;
  }

  // A peer has ended this operation by a mismatch.
  __device__ bool is_mismatch(uint64_t live) const {
    for (uint32_t rank = 0; rank < state->layout.ranks; ++rank) {
      if ((live >> rank & 1) == 0) continue;
      if (load_word_acquire(mismatch_word(state->windows[rank])) == frame->seq) return true;
    }
    return false;
  }

  // Takes in the decisions that have come. The first ends the operation's epoch and decides it; of the others only
  // who has gone counts here. Each ends one operation of its own, on ranks that were late as on all.
  __device__ void take_decisions(uint64_t count) {
    const bool missed = count - installed > kCollDecisions;
    if (missed) installed = count - 1;
    while (installed != count) {
      ++installed;
      const CollDecision* from = &post->decisions[installed % kCollDecisions];
      if (adopted != 0) {
        if (result == MEP_SUCCESS) state->decided_live &= load_word(&from->live);
        continue;
      }
      adopted = installed;
      last.old_epoch = load_word(&from->old_epoch);
      last.last_completed = load_word(&from->last_completed);
      last.epoch = load_word(&from->epoch);
      last.next = load_word(&from->next);
      last.live = load_word(&from->live);
      last.result = *static_cast<const volatile int32_t*>(&from->result);
      state->decided_live = last.live;
      if (!decided) {
        const bool is_over =
            !missed && last.old_epoch == frame->epoch && frame->seq <= last.last_completed;
        if (is_over && find_donor(last.live)) {
          decide(kCollGoOn);
        } else {
          decide_failure(is_over && is_mismatch(last.live) ? MEP_ERR_MISMATCH : last.result);
        }
      }
    }
  }

  // True: the channel goes on, as it was or by a decision. False: it is frozen.
  __device__ bool settle() {
    if ((word & 1) != 0) {
      store_word(&post->parked, word);
      return false;
    }
    (void)load_word_acquire(&post->word);  // what was installed before it
    const uint64_t count = load_word_acquire(&post->installed);
    if (count != installed) take_decisions(count);
    return true;
  }

  // The ranks that have not begun the epoch; because of them nobody has taken its first step.
  __device__ uint64_t not_begun() const {
    const uint64_t tag = step_tag(frame->epoch, 0);
    const auto* words = reinterpret_cast<const uint64_t*>(frame->own + state->layout.begin_row(0));
    uint64_t here = 0;
    for (uint32_t i = 0; i < frame->members; ++i) {
      const uint32_t source = frame->member[i];
      if (load_word(words + source) == tag) here |= uint64_t{1} << source;
    }
    return frame->live & ~here;
  }

  // Which ranks' words are missing in the row that most CTAs wait at; for people and for evidence.
  __device__ uint64_t missing() const {
    const uint64_t absent = frame->step == 0 ? not_begun() : 0;
    if (absent != 0) return absent;
    uint64_t here = 0;
    for (uint32_t i = 0; i < frame->members; ++i) {
      const uint32_t source = frame->member[i];
      uint64_t newest = 0;
      for (uint64_t row = 0; row < 4; ++row) {
        const auto* words =
            reinterpret_cast<const uint64_t*>(frame->own + state->layout.exchange_row(row, 0));
        const uint64_t tag = load_word(words + source);
        const bool of_epoch = (tag >> 48) == (step_tag(frame->epoch, 0) >> 48);
        if (of_epoch && tag > newest) newest = tag;
      }
      if (newest >= step_tag(frame->epoch, frame->step)) here |= uint64_t{1} << source;
    }
    return frame->live & ~here;
  }

  __device__ void report_late() {
    told = true;
    store_word(&post->late_seq, frame->seq);
    store_word(&post->late_missing, missing());
    __threadfence_system();
    store_word(&post->late_epoch, frame->epoch);
  }

  // Until every CTA is through and the host does not object.
  __device__ void watch() {
    uint64_t settled_word = seen_word;
    const uint64_t begin = nanoseconds();
    uint64_t next_look = begin + kFirstLookNs;
    for (uint32_t polls = 1;; ++polls) {
      const bool undisturbed = word == settled_word;
      if (undisturbed && atomicAdd(&frame->finished, 0u) != 0) {
        // CTA 0 has seen the words of all members then, so each has ended the operation before.
        if (*static_cast<volatile uint32_t*>(&frame->mismatched) != 0 && !decided) {
          decide_failure(MEP_ERR_MISMATCH);
        }
        if (gridDim.x == 1 || load_gpu_acquire(&state->ticket) == gridDim.x) break;
      }
      if (!undisturbed && settle()) {
        settled_word = word;
        continue;
      }
      if (undisturbed && polls % 16 != 0) {
        __nanosleep(20);
        continue;
      }
      let_others_run();
      const uint64_t now = nanoseconds();
      if (now < next_look) continue;
      next_look = now + kLookNs;
      word = load_word(&post->word);
      if (state->timeout_ns == 0 || now - begin < state->timeout_ns) continue;
      if (!told && !decided) report_late();
      if (now - begin > state->timeout_ns + state->settle_ns && result == MEP_SUCCESS) {
        // Membership has not decided: this channel is of no more use.
        state->ended = MEP_ERR_TIMEOUT;
        decide_failure(MEP_ERR_TIMEOUT);
        settled_word = word;
      }
    }
    __threadfence_block();
    if (word != seen_word) state->seen_word = word;
    // A donor lacked what it must have.
    if (result == MEP_SUCCESS && *static_cast<volatile uint32_t*>(&frame->failed) != 0) {
      result = MEP_ERR_INTERNAL;
    }
  }

  __device__ void write_status(int32_t outcome, uint64_t missing_ranks) const {
    if (call->status.record == nullptr) return;
    mep_op_status_t head{};
    head.result = outcome;
    head.epoch = frame->epoch;
    head.seq = frame->refused == 0 ? frame->seq : 0;
    const uint64_t failed[1] = {missing_ranks};
    write_op_status<true>(call->status, head, failed);
  }

  __device__ void tell_failure(int32_t outcome) {
    if (outcome >= 0) return;
    const uint64_t number = ++state->failures;
    *static_cast<volatile int32_t*>(&post->failed_results[number % kCollFailures]) = outcome;
    __threadfence_system();
    store_word(&post->failures, number);
  }

  // The operation is over: everything is as the next one expects it.
  template <StoreWord store_done>
  __device__ void finish(uint64_t steps) {
    const bool adopts = adopted != 0;
    const uint64_t gone = adopts ? frame->live & ~last.live : 0;
    state->ticket = 0;
    if (decided) state->decision = 0;
    if (result == MEP_SUCCESS) {
      state->seq = frame->seq;
      state->step = frame->step + steps;
      // Ranks that lack it may now read what this rank's window holds of it.
      // Not if it was completed by a decision: then others were first, and this window may lack what they have.
      if (!decided) store_done(done_word, frame->seq);
    }
    if (result == MEP_ERR_MISMATCH) {
      state->seq = frame->seq;
      state->step = frame->step + (frame->told_chunks() == 0 ? 1 : 2);  // 2: lengths were told
      store_word(mismatch_word(state->windows[state->rank]), frame->seq);
    }
    if (result != MEP_SUCCESS) {
      __threadfence_system();  // `done` of the operation before
      store_word(&post->failed, frame->seq);
    }
    write_status(result, result == MEP_SUCCESS ? 0 : gone);
    if (adopts) {
      state->seen_installed = adopted;
      if (adopted != installed) state->seen_word = kUnseenWord;
      if (last.epoch == 0) {
        state->ended = last.result;
      } else {
        state->epoch = last.epoch;
        state->live = last.live;
        state->seq = last.next - 1;
        state->step = 0;
        // Some rank has called operations up to there, which end alike on all.
        state->pending_calls =
            static_cast<uint32_t>(last.next - 1 > frame->seq ? last.next - 1 - frame->seq : 0);
        state->pending_report = state->pending_calls != 0 ? last.result : 0;
        state->pending_gone = gone;
      }
    }
    tell_failure(result);
    // To the host: the memory of the comm is touched no more.
    __threadfence();
    const bool is_alike = result == MEP_SUCCESS || result == MEP_ERR_MISMATCH;
    store_word(is_alike ? &post->done : &post->closed, frame->seq);
  }

  // An operation that is refused: it takes no number and touches no window.
  __device__ void refuse() {
    while (*static_cast<volatile uint32_t*>(&state->ticket) != gridDim.x) __nanosleep(50);
    state->ticket = 0;
    uint64_t gone = state->ended == 0 ? uint64_t{1} << call->root : 0;
    if (state->ended == 0 && !lacks_root(state, *call)) {
      if (--state->pending_calls == 0) state->pending_report = 0;
      gone = state->pending_gone;
    }
    write_status(frame->refused, gone);
    tell_failure(frame->refused);
  }
};

// All threads, last of all. `steps`: how many the operation took, the same on all ranks.
__device__ inline void end_frame(CollState* state, CollFrame* frame) {
  data_sync();
  if (threadIdx.x != 0) return;
  __threadfence_block();
  atomicExch(&frame->finished, 1u);
  // Behind the flag, which it would delay: the leader waits for both.
  if (gridDim.x != 1 || frame->refused != 0) (void)add_in_turn(&state->ticket, 1, true);
}

// Runs `work(frame)` with the data threads of each CTA; it gives the number of steps when called with
// `count_steps`. store_done: how this rank's window says that it holds all of the operation; relaxed where its bytes
// carry tags.
template <StoreWord store_done = store_word_release, typename Work, typename CountSteps>
__device__ inline void run_coll(CollState* state, const CollCall& call, Work&& work,
                                CountSteps&& count_steps) {
  __shared__ CollFrame frame;
  if (threadIdx.x < kDataThreads) {
    begin_frame(state, call, &frame);
    const bool met = frame.refused == 0 && (frame.step != 0 || meet_in_epoch(state, &frame));
    if (met) work(&frame);
    end_frame(state, &frame);
    return;
  }
  if (blockIdx.x != 0) return wait_for_frame();
  CollLeader leader{state, &call, &frame};
  if (threadIdx.x == kDataThreads) {
    leader.prepare();
    if (refusal(state, call) == 0) leader.enter();
  }
  wait_for_frame();
  if (threadIdx.x != kDataThreads) return;
  if (frame.refused != 0) return leader.refuse();
  leader.watch();
  leader.finish<store_done>(count_steps(frame));
}

}  // namespace mep::device
