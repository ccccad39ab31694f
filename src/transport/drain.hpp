// Ends what is on its way when a view changes: an excluded peer is cut off, and all that the staying peers had posted
// has landed before the next epoch uses their windows.
//
// By the control thread alone; never waits but where it says so.
#pragma once

#include <cstdint>
#include <string>

#include "mep.h"

namespace mep {

// A peer that cannot be reached any more, as evidence for the membership.
struct PeerFailure {
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  std::string reason;
};

class Drain {
 public:
  virtual ~Drain() = default;

  // After it no byte of that incarnation lands in memory that a later epoch uses, with
  // traits().renews_windows once the windows that the peer could write have new pages (Window::renew()).
  // Nothing is posted to the peer any more. Again: no difference. Waits for threads of this process that
  // write for the peer, at most 10 s; MEP_ERR_TIMEOUT: one has not left.
  [[nodiscard]] virtual mep_result_t fence_out(uint32_t slot) = 0;

  // The peer has gone, as evidence from elsewhere says: nothing is sent to it any more and nothing posted to it
  // is pending, so that nobody waits for what it does not answer. Data that has come from it still lands. It is not
  // told as a failure.
  virtual void give_up(uint32_t /*slot*/) {}

  // Whether all that the peer had posted before it asked the same has landed here. Asks the peer's side too: a
  // mark with this number goes behind all that was posted to it. Numbers grow; call it again until it is true.
  // Always true where traits().lands_at_once is. It stays false for a peer that is lost.
  virtual bool quiesced(uint32_t /*slot*/, uint64_t /*number*/) { return true; }

  // While held nothing lands in this rank's windows: around Window::renew(). Waits for threads of this rank that
  // take what has come.
  virtual void hold_windows(bool /*is_held*/) {}

  // Each failure is told once. False: there is none.
  virtual bool take_failure(PeerFailure* /*out*/) { return false; }
};

}  // namespace mep
