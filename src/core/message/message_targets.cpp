// Large messages over a network that lands bytes in memory of the receiver's caller: the clear names the receive's buffer as
// a target, and the data goes there in parts, from the buffer of the sender.
//
// A buffer is the caller's again when its operation has ended. So a receive closes its target then, and what still comes
// is dropped. A send that ends early has the network copy what is not sent. One whose last part was put, with the data cell behind
// it, cannot be withdrawn: it ends well.
#include <algorithm>

#include "base/test_delay.hpp"
#include "core/message/messages.hpp"

namespace mep {

// --- The receiver ---------------------------------------------------------------------------------

// Whether its sender may put the message there.
bool Messages::open_target(uint32_t rank, MessageOperation* operation) {
  const Remote& remote = windows_[rank];
  if (remote.mapped != nullptr) return false;
  if (operation->target == 0) {
    operation->target =
        remote.transport->open_target(remote.slot, operation->to, operation->message.bytes);
  }
  return operation->target != 0;
}

void Messages::close_target(MessageOperation* operation) {
  if (operation->target == 0) return;
  MEP_TEST_DELAY_POINT("message target");
  const Remote& remote = windows_[static_cast<uint32_t>(operation->message.source)];
  remote.transport->close_target(remote.slot, operation->target);
  operation->target = 0;
}

// --- The sender -----------------------------------------------------------------------------------

// Nothing of its buffer waits to be sent.
bool Messages::is_sent(MessageOperation* operation) const {
  if (operation->posted == 0) return true;
  const Remote& remote = windows_[static_cast<uint32_t>(operation->peer)];
  Completion completion;
  if (remote.transport->completion(remote.slot, false, &completion) != MEP_SUCCESS ||
      completion.completed < operation->posted) {
    return false;
  }
  operation->posted = 0;
  return true;
}

// One part at a time waits for the network, so a view change or another message waits for no more. False: nothing moved.
bool Messages::put_part(uint32_t rank, MessageOperation* operation) {
  if (!is_sent(operation)) return false;
  if (operation->is_whole) {
    end(operation, MEP_SUCCESS, "");
    return true;
  }
  const Remote& remote = windows_[rank];
  const size_t part = std::min<uint64_t>(kPutInTurn, operation->bytes - operation->moved_bytes);
  if (remote.put_to_target(operation->target, operation->moved_bytes,
                           operation->from + operation->moved_bytes, part) != MEP_SUCCESS) {
    return false;
  }
  operation->moved_bytes += part;
  Completion completion{.posted = UINT64_MAX};
  (void)remote.transport->completion(remote.slot, false, &completion);
  operation->posted = completion.posted;
  return true;
}

// Before the caller gets the buffer back.
void Messages::stop_sending(MessageOperation* operation) {
  if (operation->posted == 0) return;
  MEP_TEST_DELAY_POINT("message stops");
  windows_[static_cast<uint32_t>(operation->peer)].flush();
  operation->posted = 0;
}

}  // namespace mep
