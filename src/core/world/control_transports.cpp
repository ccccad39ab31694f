// The control thread's part of the network transports: their connections, their failures as evidence,
// progress when no user's thread makes any, and what is still under way when a view changes.
#include <sys/epoll.h>

#include "base/log.hpp"
#include "core/world/control_thread.hpp"

namespace mep {

void ControlThread::watch_transports() {
  for (; watched_transports_ < peers_.network().count(); ++watched_transports_) {
    const int fd = peers_.network().transport(watched_transports_)->events().control;
    if (fd >= 0 && !watch(fd, Source::kTransport, watched_transports_, EPOLLIN)) {
      log(LogLevel::kError, "a transport cannot be watched: %m");
    }
  }
}

// Before a view change looks at what is here: a rank that has died may have given all that others need,
// and it still lies in a socket.
void ControlThread::take_what_has_come() {
  constexpr int kRounds = 64;
  if (!peers_.network().is_open()) return;
  for (int i = 0; i < kRounds && peers_.network().progress(); ++i) {
  }
}

void ControlThread::serve_transports() {
  TransportWait& network = peers_.network();
  if (!network.active()) return;
  for (uint32_t i = 0; i < network.count(); ++i) network.transport(i)->serve();
  // A thread that waits makes progress itself, and sooner. During a view change none may come.
  if (!network.waited_for() || membership_->phase() == membership::Phase::kChanging) {
    (void)network.progress();
  }
  take_failures();
  ask_for_quiet();  // those again whose queue was full
  check_prepare();
}

void ControlThread::take_failures() {
  TransportWait& network = peers_.network();
  PeerFailure failure;
  for (uint32_t i = 0; i < network.count(); ++i) {
    while (network.transport(i)->take_failure(&failure)) {
      const WorldPeer& peer = peers_[failure.slot];
      if (peer.identity.incarnation != failure.incarnation) continue;
      // Its last statement, LEFT perhaps, comes first.
      read_link(failure.slot);
      const bool member = is_member(failure.slot);
      log(member && peer.link != nullptr ? LogLevel::kInfo : LogLevel::kDebug,
          "%s connection to rank %u: %s", network.transport(i)->name(), failure.slot,
          failure.reason.c_str());
      if (member) note_evidence();
      membership_->on_connection_lost(failure.slot, failure.incarnation);
      windows_.wake();
    }
  }
}

// Wedging waits for threads that post, and they must not wait for members that are gone.
void ControlThread::give_up_the_gone() {
  if (!peers_.network().active()) return;
  for (uint32_t slot = 0; slot < peers_.count(); ++slot) {
    const WorldPeer& peer = peers_[slot];
    if (slot == peers_.self_slot() || peer.transport == nullptr || !is_member(slot)) continue;
    if (peer.link == nullptr || membership_->confirmed_dead(slot)) peer.transport->give_up(slot);
  }
}

// From the freeze to the new view.
void ControlThread::ask_for_quiet() {
  if (quiet_epoch_ == 0 || !peers_.network().active()) return;
  for (uint32_t slot = 0; slot < peers_.count(); ++slot) {
    const WorldPeer& peer = peers_[slot];
    if (slot == peers_.self_slot() || peer.transport == nullptr || !is_member(slot)) continue;
    // One that is lost sends none either, and is not waited for.
    (void)peer.transport->quiesced(slot, quiet_epoch_);
  }
}

// Whether all has landed here that the members which stay had posted before they were stopped.
bool ControlThread::drained() const {
  if (!peers_.network().active()) return true;
  bool all = true;
  preparing_->value->members.each([&](uint32_t slot) {
    const WorldPeer& peer = peers_[slot];
    if (slot == peers_.self_slot() || peer.transport == nullptr || !is_member(slot)) return;
    if (peer.link == nullptr || membership_->confirmed_dead(slot) ||
        membership_->row().suspected.has(slot)) {
      return;
    }
    all = all && peer.transport->quiesced(slot, quiet_epoch_);
  });
  return all;
}

}  // namespace mep
