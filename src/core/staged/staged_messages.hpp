// Messages between GPUs, on the host: each goes in parts, of a slot of the staging, as messages of a communicator of the hosts.
// The kernel of a group copies between slots and the caller's memory when an answer asks it to.
//
//   first part   MessageHeading | bytes     from kHeadingBytes before the slot's data on
//   other parts  bytes
//
// Messages of one peer and way go in the order of their calls, and so do their parts: they all have the same tag, and the
// receiver looks at the caller's in the heading. A message that does not fit is taken and dropped.
//
// By the thread of the server alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/comm/comm.hpp"
#include "core/staged/staged_collectives.hpp"
#include "kernels/cuda/coll/stage_mailbox.hpp"

namespace mep {

class StagedMessages {
 public:
  // The memory and the comm outlive this; all is allocated here.
  StagedMessages(Comm& comm, std::byte* staging, size_t bytes, TellStaged tell);
  StagedMessages(const StagedMessages&) = delete;
  StagedMessages& operator=(const StagedMessages&) = delete;

  // The most bytes of a message that needs no receiver.
  static size_t eager_bytes(const Comm& comm);
  // Until the kernel has parts to copy, which are then in the mailbox, or all messages have ended.
  [[nodiscard]] mep_result_t serve(device::StageStep step, device::StageMailbox* box,
                                   device::StageAnswer* answer);

 private:
  struct Message {
    device::StageItem call{};
    uint64_t total = 0;  // of a receive once its first part is there
    uint64_t begun = 0;  // bytes of parts that have begun
    uint32_t under_way = 0;
    bool has_begun = false;
    bool knows_total = false;
    bool is_dropped = false;  // its bytes go nowhere
    bool has_begun_all() const { return has_begun && knows_total && begun == total; }
    bool is_over() const { return has_begun_all() && under_way == 0; }
  };
  // A send's part: kFilling, kMoving, kFree. A receive's: kMoving, kArrived, kEmptying, kFree.
  enum class SlotState : uint8_t { kFree, kFilling, kMoving, kArrived, kEmptying };
  struct Slot {
    MessageOperation operation;
    std::byte* data = nullptr;
    SlotState state = SlotState::kFree;
    bool is_first = false;  // of its message
    uint32_t message = 0;
    uint64_t user = 0;  // address of its bytes in the caller's memory
    uint64_t bytes = 0;
  };

  void begin_group(const device::StageList& group);
  void note_copied();
  bool advance();
  void begin_parts(uint32_t number);
  void begin_part(uint32_t number, uint64_t bytes);
  void begin_operation(uint32_t slot);
  void end_operation(uint32_t slot);
  bool read_heading(Slot* slot);
  void ask_to_copy(uint32_t slot, SlotState state);
  void free_slot(uint32_t slot);
  // No more of its parts begin.
  void end_message(Message* message, mep_result_t result, const char* text);

  Comm& comm_;
  const TellStaged tell_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;    // slots
  std::vector<uint32_t> moving_;  // slots that are kMoving or kArrived, as they began
  std::vector<Message> messages_;
  std::vector<uint8_t>
      is_held_up_;               // by peer and way: an earlier message has not begun all its parts
  uint32_t most_under_way_ = 1;  // parts of one message
  std::array<uint32_t, device::kStageParts> to_copy_{};  // slots
  uint32_t asked_ = 0;                                   // of to_copy_
};

}  // namespace mep
