// One send or receive from its call to its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "base/clock.hpp"
#include "base/status.hpp"
#include "mep.h"
#include "protocol/message_cells.hpp"

namespace mep {

// "rank 3 with tag 7", "any rank with tag 7", for texts
struct WantedMessage {
  WantedMessage(int32_t peer, int32_t tag) {
    char number[16] = "any tag";
    if (tag != MEP_ANY_TAG) (void)std::snprintf(number, sizeof number, "tag %d", tag);
    if (peer == MEP_ANY_SOURCE) {
      (void)std::snprintf(text, sizeof text, "any rank with %s", number);
    } else {
      (void)std::snprintf(text, sizeof text, "rank %d with %s", peer, number);
    }
  }
  char text[48];
};

struct MessageOperation {
  enum class State : uint8_t {
    kNew,
    kWaiting,    // a send: not posted yet; a receive: no message has come for it
    kAnnounced,  // a send: its receiver knows of it and has not called yet
    kMoving,     // its data is on the way
    kEnded,
  };

  // A receive whose message is read in its sender's memory.
  enum class Pull : uint8_t {
    kNone,
    kReading,
    kRead,
    kAnswered,  // the sender is told, and will confirm it or withdraw the message
  };

  bool is_send = false;
  State state = State::kNew;
  Pull pull = Pull::kNone;
  bool is_offered = false;  // a send whose receiver may read it
  bool owes_answer =
      false;         // a receive has taken a message: its sender waits for a clear, or a pulled
  int32_t peer = 0;  // as called; of a receive perhaps MEP_ANY_SOURCE
  int32_t tag = 0;   // of a receive perhaps MEP_ANY_TAG
  const std::byte* from = nullptr;  // of a send
  std::byte* to = nullptr;          // of a receive
  uint64_t bytes = 0;               // at either
  mep_dtype_t dtype = MEP_UINT8;

  uint64_t number = 0;       // of the calls of this rank on the comm, from 1
  uint64_t peer_number = 0;  // of the call at the other rank that it belongs to
  uint64_t moved_bytes = 0;
  uint64_t target = 0;      // at the receiver; 0: the data comes in cells
  uint64_t posted = 0;      // of a send: the last put from its buffer; 0: none was
  bool is_whole = false;    // of a send: all is put, and the receiver will know
  uint64_t flight = 0;      // its record, see FlightLog; 0: none
  mep_message_t message{};  // of a receive: what it takes; source is then its rank
  MessageMemory memory{};   // where it is read

  mep_result_t result = MEP_SUCCESS;
  uint64_t epoch = 0;  // in which it ended
  Deadline deadline = Deadline::never();
  int event = -1;              // an eventfd to write to when it has ended; -1: none
  char text[kErrorTextBytes];  // of an error

  MessageOperation* before = nullptr;  // in a MessageList
  MessageOperation* behind = nullptr;

  MessageOperation() { text[0] = 0; }
  bool has_ended() const { return state == State::kEnded; }
  // True if this receive may take the message.
  bool fits(int32_t source, int32_t other_tag) const {
    return (peer == MEP_ANY_SOURCE || peer == source) && (tag == MEP_ANY_TAG || tag == other_tag);
  }
};

// Operations in the order of their calls. Needs no memory; an operation is in one list at most.
class MessageList {
 public:
  bool empty() const { return first_ == nullptr; }
  MessageOperation* first() const { return first_; }

  // At its place, which is the end but for one that was in the list before.
  void add(MessageOperation* operation) {
    MessageOperation* before = last_;
    while (before != nullptr && before->number > operation->number) before = before->before;
    operation->before = before;
    operation->behind = before != nullptr ? before->behind : first_;
    (before != nullptr ? before->behind : first_) = operation;
    (operation->behind != nullptr ? operation->behind->before : last_) = operation;
  }
  void remove(MessageOperation* operation) {
    (operation->before != nullptr ? operation->before->behind : first_) = operation->behind;
    (operation->behind != nullptr ? operation->behind->before : last_) = operation->before;
    operation->before = operation->behind = nullptr;
  }
  // Null: there is none.
  template <typename Condition>
  MessageOperation* find(Condition&& condition) const {
    MessageOperation* each = first_;
    while (each != nullptr && !condition(*each)) each = each->behind;
    return each;
  }

 private:
  MessageOperation* first_ = nullptr;
  MessageOperation* last_ = nullptr;
};

}  // namespace mep
