// Messages between GPUs that map each other: what the host and the kernel agree on. Plain C++.
//
// Between two ranks there are kMessageLanes lanes each way, each a ring of kMessageSlots slots in the receiver's window
// (CollLayout). Chunk c of a message goes by lane c % kMessageLanes, and follows in size from the message's; each lane has
// a slot of each message, so that a receiver learns its length. The first slot of a message begins with a head.
//
//   sent    word in the receiver's window, written by the sender: slots that it has filled
//   taken   word in the sender's window, written by the receiver: slots that it has emptied
//
// Both count since the pair met, and carry its mark. So words of a rank that was replaced say nothing to its
// replacement, and a view change does not touch messages between ranks that stay. A rank that gives a message up sets
// kMessageBroken in its word: its lane is out of step for good.
//
// A kernel works on all messages of a batch at a time, so only those to one rank, or from one, have an order. Kernels of
// one peer and direction run one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/coll/state.hpp"
#include "mep.h"

namespace mep::device {

// Messages of a batch, which is an argument of the kernel. CUDA 12.1 raised the limit of arguments from 4 KB to 32 KB; a
// short batch takes the short argument.
constexpr uint32_t kFewMessages = 96;
constexpr uint32_t kManyMessages = 1024;
constexpr uint32_t kMostQueues = 2 * kMaxCollRanks;
constexpr uint32_t kMessageFailures = 16;
constexpr uint64_t kMessageBroken = uint64_t{1} << 39;
constexpr uint32_t kMessageMarkShift = 40;  // above the count

struct Message {
  void* buffer;
  uint64_t bytes;  // of a receive: at most
  int32_t tag;     // MEP_ANY_TAG: any
  uint16_t peer;
  uint8_t is_send;
  uint8_t dtype;
};

// Messages of one peer and direction stand one behind the other, in their order: a queue.
template <uint32_t kMost>
struct MessageBatch {
  uint32_t messages, queues;
  uint16_t first[kMostQueues + 1];  // by queue; behind the last: the number of messages
  Message message[kMost];
};
static_assert(sizeof(MessageBatch<kFewMessages>) < 4'000);
static_assert(sizeof(MessageBatch<kManyMessages>) < 32'000);

// Device memory, by peer. The host writes mark and zeros when the pair meets; then kernels advance it.
struct MessagePair {
  uint64_t mark;  // below 2^24, not 0
  uint64_t sent[kMessageLanes];
  uint64_t received[kMessageLanes];
  int32_t broken[2];  // result of all further messages that are received, sent
};

// Pinned memory.
struct MessagePost {
  // The host's half.
  uint64_t gone[kMaxCollRanks];  // mark of a pair whose peer is out
  int64_t ended;                 // result of all messages: the world has ended for this rank
  // The device's half, of one writer at a time.
  alignas(64) uint64_t failures;  // count; number f (from 1) is at f % kMessageFailures
  int32_t results[kMessageFailures];
};

struct MessageState {
  MessagePost* post;                 // device address
  const CollState* coll;             // windows, layout, timeout
  uint64_t failures, told_failures;  // so many of them the host has been told
  MessagePair pair[kMaxCollRanks];
};

// load_coll_kernels() loads them.
std::span<const void* const> messages_kernels();
// Messages of a batch, at most: what the toolkit of this build allows.
uint32_t most_messages();
// Brings the messages into the order of their queues, in the order of the calls for each peer and direction, and enqueues one
// kernel of at most `most_ctas` blocks. At most most_messages().
[[nodiscard]] mep_result_t launch_messages(std::span<Message> messages, MessageState* state,
                                           uint32_t most_ctas, void* stream);

}  // namespace mep::device
