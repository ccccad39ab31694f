// Operations whose peers cannot be mapped: kernels copy to and from pinned host memory, and a thread of the
// host runs the operation over the host's transports. What both agree on. Plain C++.
//
//   StageMailbox  pinned host memory, one per channel (the collectives of a comm). Two halves, each with one writer.
//   StageState    device memory, one per channel. Written by the kernels of the channel alone, which run
//                 one after the other: a graph captures its address.
//   staging       pinned host memory, one per channel. The device may write it while no request is
//                 open, the host while one is.
//
//   1. Kernels copy the inputs to the staging.
//   2. One thread of a kernel writes `request`, then `posted` = n, the next number of StageState.
//   3. The host sees n, runs the operation, writes outputs to the staging and `answer`, then
//      `answered` = n.
//   4. The thread sees n and keeps the answer in StageState; kernels copy the outputs to the caller.
// Each of the two words is a release to whoever reads it with acquire, at system scope.
//
// Where lengths differ by rank, in a group of messages or a collective with counts, a kernel exchanges several times: in
// `list` it says what lies where; each answer has `parts` that it copies between the caller's memory and the staging
// before it asks again, and one without parts is the last.
//
// Every wait ends: the host's operation has its deadlines. Should no answer come for `bound_ns`, the
// thread stores n to `left` and `ended` in StageState: no kernel of the channel posts or copies from then
// on, since the host may still use the staging. `closed` not 0: nobody answers any more; waiting
// threads leave with this result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/op_status.hpp"
#include "mep.h"
#include "protocol/operations.hpp"

namespace mep::device {

constexpr uint32_t kStageRankWords = kMaskWords;
constexpr uint32_t kMaxStageRanks = kStageRankWords * 64;

struct StageCollective {
  uint64_t send;     // addresses in the staging
  uint64_t receive;  // may be `send`: in place
  uint64_t count;    // elements
  uint32_t dtype;
  uint32_t op;
  int32_t root;
  Collective kind;
};

// A message, or a block of a collective with counts.
struct StageItem {
  uint64_t at;     // the caller's memory
  uint64_t bytes;  // of a receive: at most
  int32_t tag;     // of a receive perhaps MEP_ANY_TAG; of blocks 0
  uint16_t peer;
  uint8_t is_send;
  uint8_t dtype;
};
constexpr uint32_t kStageMessages = 96;  // of a group
constexpr uint32_t kStageItems = 2 * kMaxStageRanks;
struct StageList {
  uint64_t count;
  StageItem of[kStageItems];
};
// An argument of a kernel has room for so many.
struct StageSublist {
  uint64_t first;  // its place in the list
  uint64_t count;
  StageItem of[kStageMessages];
};

// Bytes that such a kernel copies.
struct StagePart {
  uint64_t from;
  uint64_t to;
  uint64_t bytes;
};
constexpr uint32_t kStageParts = 32;

enum class StageStep : uint64_t {
  kCollective,
  kMessagesBegin,
  kMessagesGoOn,  // the parts of the last answer are copied
  kCountedBegins,
  kCountedGoesOn,  // likewise
};

// As a graph captures it.
struct StageRequest {
  StageStep step;
  uint64_t continues;  // the operation whose last part this follows: not posted if that failed
  StageCollective collective;
};

struct StageAnswer {
  mep_result_t result;
  uint32_t delivers;               // outputs lie in the staging
  uint64_t parts;                  // of StageMailbox::parts
  uint64_t live[kStageRankWords];  // ranks that contributed
  OpStatus status;                 // how it ended
};

struct StageMailbox {
  // The device's half.
  alignas(64) uint64_t posted;
  uint64_t left;
  StageRequest request;
  StageList list;
  // The host's half.
  alignas(64) uint64_t answered;
  uint64_t closed;
  uint64_t bound_ns;
  StageAnswer answer;
  StagePart parts[kStageParts];
};

struct StageState {
  uint64_t number;  // of the last request
  int32_t ended;    // not 0: what all operations answer from now on
  uint32_t reserved;
  StageAnswer answer;  // of the last operation
};

static_assert(sizeof(StageRequest) % 8 == 0 && sizeof(StageAnswer) % 8 == 0);
static_assert(sizeof(StageItem) == 24);

}  // namespace mep::device
