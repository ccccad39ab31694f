#include "core/staged/staged_messages.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/status.hpp"

namespace mep {
namespace {

struct MessageHeading {
  uint64_t total;
  int32_t tag;
  uint32_t dtype;
};
constexpr size_t kSlotBytes = size_t{128} << 10;
constexpr size_t kLine = 64;
constexpr size_t kHeadingBytes = sizeof(MessageHeading);
constexpr uint64_t kPartBytes = kSlotBytes - kLine;
constexpr int32_t kTag = 0;
constexpr uint32_t kMostParts = 8;  // of one message under way
// How long a wait lasts at most before the operations' deadlines are looked at.
constexpr uint64_t kLookMs = 50;

static_assert(kHeadingBytes <= kLine);

}  // namespace

StagedMessages::StagedMessages(Comm& comm, std::byte* staging, size_t bytes, TellStaged tell)
    : comm_(comm),
      tell_(std::move(tell)),
      slots_(bytes / kSlotBytes),
      messages_(device::kStageMessages),
      is_held_up_(size_t{comm.size()} * 2) {
  for (uint32_t i = 0; i < slots_.size(); ++i) slots_[i].data = staging + i * kSlotBytes + kLine;
  free_.reserve(slots_.size());
  moving_.reserve(slots_.size());
}

size_t StagedMessages::eager_bytes(const Comm& comm) {
  return std::min<uint64_t>(MessageLayout::of(comm.size()).payload_bytes() - kHeadingBytes,
                            kPartBytes);
}

void StagedMessages::begin_group(const device::StageList& group) {
  const size_t count = std::min<size_t>(group.count, device::kStageMessages);
  messages_.assign(count, {});
  for (size_t i = 0; i < count; ++i) {
    messages_[i].call = group.of[i];
    messages_[i].knows_total = group.of[i].is_send != 0;
    if (messages_[i].knows_total) messages_[i].total = group.of[i].bytes;
  }
  free_.clear();
  moving_.clear();
  for (uint32_t i = 0; i < slots_.size(); ++i) free_.push_back(i);
  // Each message has slots of its own, so that none waits for those of others.
  most_under_way_ =
      std::clamp(static_cast<uint32_t>(slots_.size() / std::max<size_t>(count, 1)), 1u, kMostParts);
}

mep_result_t StagedMessages::serve(device::StageStep step, device::StageMailbox* box,
                                   device::StageAnswer* answer) {
  // For the control thread: windows of peers may be in use. Nobody else calls this comm.
  (void)comm_.enter_call();
  if (step == device::StageStep::kMessagesBegin) {
    begin_group(box->list);
  } else {
    note_copied();
  }
  asked_ = 0;
  while (!advance()) {
    (void)comm_.collectives().channel().wait(Deadline::after_ms(kLookMs),
                                             [this] { return advance(); });
    for (const uint32_t slot : moving_) (void)comm_.messages().test(&slots_[slot].operation);
  }
  comm_.leave_call();
  for (uint32_t i = 0; i < asked_; ++i) {
    const Slot& slot = slots_[to_copy_[i]];
    const auto data = std::bit_cast<uint64_t>(slot.data);
    box->parts[i] = slot.state == SlotState::kFilling
                        ? device::StagePart{slot.user, data, slot.bytes}
                        : device::StagePart{data, slot.user, slot.bytes};
  }
  answer->parts = asked_;
  return MEP_SUCCESS;
}

// The kernel has copied what it was asked to, so sends begin, in the order in which they were asked for.
void StagedMessages::note_copied() {
  for (uint32_t i = 0; i < asked_; ++i) {
    const uint32_t slot = to_copy_[i];
    if (slots_[slot].state == SlotState::kFilling) {
      begin_operation(slot);
    } else {
      free_slot(slot);
    }
  }
}

// True: the kernel has something to copy, or all messages are over.
bool StagedMessages::advance() {
  comm_.messages().step_own();
  size_t kept = 0;
  for (const uint32_t slot : moving_) {
    if (slots_[slot].state == SlotState::kMoving && slots_[slot].operation.has_ended()) {
      end_operation(slot);
    }
    if (slots_[slot].state == SlotState::kArrived) ask_to_copy(slot, SlotState::kEmptying);
    const SlotState state = slots_[slot].state;
    if (state == SlotState::kMoving || state == SlotState::kArrived) moving_[kept++] = slot;
  }
  moving_.resize(kept);
  std::fill(is_held_up_.begin(), is_held_up_.end(), uint8_t{0});
  bool all_over = true;
  for (uint32_t i = 0; i < messages_.size(); ++i) {
    const Message& message = messages_[i];
    uint8_t& held_up = is_held_up_[message.call.peer * 2u + message.call.is_send];
    if (held_up == 0) begin_parts(i);
    if (!message.has_begun_all()) held_up = 1;
    all_over = all_over && message.is_over();
  }
  return asked_ != 0 || all_over;
}

void StagedMessages::begin_parts(uint32_t number) {
  Message& message = messages_[number];
  while (message.under_way < most_under_way_ && !free_.empty()) {
    if (message.call.is_send != 0 && asked_ == device::kStageParts) return;
    if (message.has_begun && (!message.knows_total || message.begun == message.total)) return;
    begin_part(number, std::min(message.total - message.begun, kPartBytes));
  }
}

// bytes: of a receive's first part told by its heading.
void StagedMessages::begin_part(uint32_t number, uint64_t bytes) {
  Message& message = messages_[number];
  const uint32_t at = free_.back();
  free_.pop_back();
  Slot& slot = slots_[at];
  slot.is_first = !message.has_begun;
  slot.message = number;
  slot.user = message.call.at + message.begun;
  slot.bytes = bytes;
  message.has_begun = true;
  message.begun += bytes;
  ++message.under_way;
  if (message.call.is_send == 0) return begin_operation(at);
  if (slot.is_first) {
    const MessageHeading heading{message.total, message.call.tag, message.call.dtype};
    std::memcpy(slot.data - kHeadingBytes, &heading, sizeof heading);
  }
  ask_to_copy(at, SlotState::kFilling);
}

void StagedMessages::begin_operation(uint32_t at) {
  Slot& slot = slots_[at];
  const device::StageItem& call = messages_[slot.message].call;
  const size_t heading = slot.is_first ? kHeadingBytes : 0;
  const bool is_unknown = slot.is_first && call.is_send == 0;
  slot.operation = MessageOperation();
  slot.operation.is_send = call.is_send != 0;
  slot.operation.peer = call.peer;
  slot.operation.tag = kTag;
  slot.operation.from = slot.operation.to = slot.data - heading;
  slot.operation.bytes = (is_unknown ? kPartBytes : slot.bytes) + heading;
  slot.operation.deadline = Deadline::after_ms(comm_.timeout_ms());
  slot.state = SlotState::kMoving;
  moving_.push_back(at);
  comm_.messages().begin(&slot.operation);
}

void StagedMessages::end_operation(uint32_t at) {
  Slot& slot = slots_[at];
  Message& message = messages_[slot.message];
  if (slot.operation.result != MEP_SUCCESS) {
    end_message(&message, slot.operation.result, slot.operation.text);
    return free_slot(at);
  }
  if (message.call.is_send != 0) return free_slot(at);
  if (slot.is_first && !read_heading(&slot)) return free_slot(at);
  if (message.is_dropped) return free_slot(at);
  slot.state = SlotState::kArrived;
}

// False: there is none.
bool StagedMessages::read_heading(Slot* slot) {
  Message& message = messages_[slot->message];
  const device::StageItem& call = message.call;
  const uint64_t came = slot->operation.message.bytes;
  MessageHeading heading{};
  if (came >= kHeadingBytes) std::memcpy(&heading, slot->data - kHeadingBytes, sizeof heading);
  slot->bytes = std::min(heading.total, kPartBytes);
  if (came != slot->bytes + kHeadingBytes) {
    end_message(&message, MEP_ERR_MISMATCH, "a message of a GPU has no heading");
    return false;
  }
  message.total = heading.total;
  message.knows_total = true;
  message.begun = slot->bytes;
  mep_result_t result = MEP_SUCCESS;
  if (call.tag != MEP_ANY_TAG && call.tag != heading.tag) {
    result = fail(MEP_ERR_MISMATCH, "rank %u sent a message with tag %d, and %d was expected",
                  call.peer, heading.tag, call.tag);
  } else if (call.dtype != heading.dtype) {
    result = fail(MEP_ERR_MISMATCH, "rank %u sent a message of type %u, and %u was expected",
                  call.peer, heading.dtype, call.dtype);
  } else if (heading.total > call.bytes) {
    result = fail(MEP_ERR_CAPACITY, "a message of rank %u has %llu bytes, and %llu have room",
                  call.peer, static_cast<unsigned long long>(heading.total),
                  static_cast<unsigned long long>(call.bytes));
  }
  message.is_dropped = result != MEP_SUCCESS;
  if (message.is_dropped) tell_(result);
  return true;
}

// No more in this answer: the slot waits for the next.
void StagedMessages::ask_to_copy(uint32_t slot, SlotState state) {
  if (asked_ == device::kStageParts) return;
  slots_[slot].state = state;
  to_copy_[asked_++] = slot;
}

void StagedMessages::free_slot(uint32_t slot) {
  slots_[slot].state = SlotState::kFree;
  --messages_[slots_[slot].message].under_way;
  free_.push_back(slot);
}

void StagedMessages::end_message(Message* message, mep_result_t result, const char* text) {
  message->total = message->begun;
  message->knows_total = true;
  if (message->is_dropped) return;
  message->is_dropped = true;
  set_last_error_text(text);
  tell_(result);
}

}  // namespace mep
