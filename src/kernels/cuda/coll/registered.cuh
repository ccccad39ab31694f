// Registered memory: blocks that the ranks which get them read where they lie, in place of a way through windows.
//
// Once a comm has registered memory the operations that may read it begin with a step of offers. Each rank writes an offer into all
// windows and signals: the number of the piece in which its send buffer lies, and where in it. If all offers are of one
// piece, all ranks read; else all go through windows as without registered memory. So no rank needs to know what the
// others call with, and a graph finds the memory anew in each replay.
//
// Peers only read registered memory: a rank that was stopped and wakes up can harm nobody. The memory is the caller's again
// when all have confirmed that they have read it (confirm_blocks()).
#pragma once

#include "kernels/cuda/coll/copy.cuh"

namespace mep::device {

// An offer: number << kOfferShift | bytes from the begin of the piece. 0: this block lies in none.
constexpr uint64_t kGivesNothing = UINT64_MAX;  // fits each piece
constexpr uint64_t kMostRegisteredBytes = uint64_t{1} << kOfferShift;

// The same on all ranks.
__device__ inline bool is_pulled(const CollLayout& layout, const CollCall& call) {
  if (call.kind == Collective::k_broadcast) {
    return layout.ranks == 2 && call.bytes >= layout.pulled_broadcast_bytes;
  }
  const bool is_alltoall = call.kind == Collective::k_alltoall;
  return call.bytes >= layout.pulled_from &&
         call.bytes <= (is_alltoall ? layout.pulled_alltoall_to : layout.pulled_to);
}

// The data threads, before the first step of an operation whose rank gives `given` bytes at call.send. Afterwards
// frame->pulls says whether blocks are read, and frame->step is behind the step of offers. False in all of them: the
// operation has failed.
__device__ inline bool meet_with_offers(CollState* state, const CollCall& call, CollFrame* frame,
                                        uint64_t given) {
  if (frame->offers == 0 || !is_pulled(state->layout, call)) return true;
  const Team team = whole_team();
  if (team.index == 0) {
    frame->offer = given == 0 ? kGivesNothing : 0;
    frame->newest = 0;
    frame->oldest_inverted = 0;
  }
  data_sync();
  for (uint32_t i = team.index; i < kMaxRegistered && given != 0; i += team.threads) {
    const CollRegistered& piece = state->registered[i];
    const auto begin = reinterpret_cast<uintptr_t>(piece.at[state->rank]);
    const auto from = reinterpret_cast<uintptr_t>(call.send);
    if (piece.number == 0 || from < begin || from + given > begin + piece.bytes) continue;
    atomicMax(&frame->offer,
              static_cast<unsigned long long>(piece.number << kOfferShift | (from - begin)));
  }
  data_sync();
  const uint64_t tag = coll_tag(*frame, frame->step);
  const uint64_t row = state->layout.exchange_row(frame->step & 1, blockIdx.x);
  const uint64_t offers = state->layout.offer_row(blockIdx.x);
  for (uint32_t i = team.index; i < frame->members; i += team.threads) {
    uint8_t* window = frame->window[frame->member[i]];
    store_word(reinterpret_cast<uint64_t*>(window + offers) + state->rank, frame->offer);
  }
  test_delay(state, *frame, 4);
  signal_members(team, state, *frame, row, tag);
  if (!wait_members(team, state, frame, row, state->layout.scatter_row(blockIdx.x), tag)) {
    return false;
  }
  const auto* words = reinterpret_cast<const uint64_t*>(frame->own + offers);
  const auto offer_of = [&](uint32_t i) { return load_word(words + frame->member[i]); };
  for (uint32_t i = team.index; i < frame->members; i += team.threads) {
    const unsigned long long number = offer_of(i) >> kOfferShift;
    if (number == kGivesNothing >> kOfferShift) continue;
    atomicMax(&frame->newest, number);
    atomicMax(&frame->oldest_inverted, ~number);
  }
  data_sync();
  const bool pulls = frame->newest == ~frame->oldest_inverted && frame->newest != 0;
  const CollRegistered& piece = state->registered[frame->newest % kMaxRegistered];
  for (uint32_t i = team.index; pulls && i < frame->members; i += team.threads) {
    const uint32_t rank = frame->member[i];
    frame->source[rank] = piece.at[rank] + (offer_of(i) & (kMostRegisteredBytes - 1));
  }
  if (team.index == 0) {
    frame->pulls = pulls;
    ++frame->step;
  }
  data_sync();
  return true;
}

}  // namespace mep::device
