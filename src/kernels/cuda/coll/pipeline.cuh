// A message in chunks: each is sent in a step of its own, and taken when the words of kLag steps have come.
//
//   wait(c), send(c + 1), signal(c + 1), take(c + 1 - kLag), wait(c + 1), send(c + 2), ...
//
// With several chunks a CTA's data threads are two teams. The senders wait, send and signal; the takers take. So the
// links are busy while chunks are taken, and while a signal waits until what was sent has arrived.
//
//   senders   wait(c)  taken(c - kLag)  arrived(c)  send(c + 1)  signal(c + 1)  wait(c + 1) ...
//   takers                              arrived(c)  take(c + 1 - kLag)  taken(c + 1 - kLag)  arrived(c + 1) ...
//
// "arrived" and "taken" are barriers at which one team arrives and the other waits. The team that arrives does not
// come there again before the other has left, because it waits at the other barrier in between.
//
// A word of step s comes after wait(s - 1), after all that reads slots of step s - 1 - kLag + 1 to send, and after
// take(s - 1 - kLag), which reads slots up to step s - 2. So it says that its writer has used the slots of step s - 2. A
// rank that has waited for s may fill the slots of s + 1, which are those of s - 2: kCollSlots, three.
#pragma once

#include "kernels/cuda/coll/run.cuh"

namespace mep::device {

// How many of a CTA's data threads send, by what a rank has to do.
constexpr uint32_t kFewSenders = 32;
constexpr uint32_t kThirdSenders = 160;
constexpr uint32_t kHalfSenders = 256;
constexpr uint32_t kMostSenders = 480;

// send(team, step), spare(team, chunk) and take(team, chunk), with numbers from 0, that of the step `first`; spare() waits
// for nobody. False in all threads: the operation has failed.
template <uint32_t kLag, typename Send, typename Spare, typename Take>
__device__ inline bool run_pipeline(CollState* state, CollFrame* frame, uint64_t chunks,
                                    uint32_t senders, Send&& send, Spare&& spare, Take&& take,
                                    uint64_t first) {
  const CollLayout& layout = state->layout;
  const uint64_t steps = chunks + kLag - 1;
  const bool split = chunks > 1;
  const bool sends = !split || threadIdx.x < senders;
  const bool takes = !split || !sends;
  Team team = whole_team();
  if (split && sends) team = {threadIdx.x, senders, kSenderBarrier};
  if (split && takes) team = {threadIdx.x - senders, kDataThreads - senders, kTakerBarrier};
  const auto row = [&](uint64_t step) { return layout.exchange_row(step & 1, blockIdx.x); };
  for (uint64_t number = 0; number <= steps; ++number) {
    if (sends) {
      const uint64_t step = first + number;
      const bool goes_on =
          number == 0 || wait_members(team, state, frame, row(step - 1),
                                      layout.scatter_row(blockIdx.x), coll_tag(*frame, step - 1));
      if (split && number > 1) sync_at(kTakenBarrier, kDataThreads);
      if (split && number != 0) {
        if (!goes_on && team.index == 0) frame->stopped_at = number;
        arrive_at(kArrivedBarrier, kDataThreads);
      }
      test_delay(state, *frame, 0);
      if (goes_on && number < steps) send(team, number);
      test_delay(state, *frame, 1);
      if (!goes_on) return false;
      if (number < steps) signal_members(team, state, *frame, row(step), coll_tag(*frame, step));
    }
    if (takes) {
      if (number < chunks) spare(team, number);
      if (split && number != 0) {
        sync_at(kArrivedBarrier, kDataThreads);
        if (*static_cast<volatile uint64_t*>(&frame->stopped_at) == number) return false;
      }
      test_delay(state, *frame, 2);
      if (number >= kLag) take(team, number - kLag);
      if (split && number != 0 && number < steps) arrive_at(kTakenBarrier, kDataThreads);
    }
  }
  return true;
}
template <uint32_t kLag, typename Send, typename Spare, typename Take>
__device__ inline bool run_pipeline(CollState* state, CollFrame* frame, uint64_t chunks,
                                    uint32_t senders, Send&& send, Spare&& spare, Take&& take) {
  return run_pipeline<kLag>(state, frame, chunks, senders, send, spare, take, frame->step);
}

}  // namespace mep::device
