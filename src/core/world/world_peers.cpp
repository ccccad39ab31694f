#include "core/world/world_peers.hpp"

#include <algorithm>
#include <utility>

#include "base/status.hpp"

namespace mep {

WorldPeers::WorldPeers(uint32_t max_slots, SelfDescription self, TransportSet transports)
    : self_(std::move(self)), transports_(std::move(transports)), table_(max_slots) {
  table_[self_slot()].identity = self_.identity;
}

uint32_t WorldPeers::state(uint32_t slot) const {
  // Relaxed: see WorldPeer.
  return table_[slot].state.load(std::memory_order_relaxed);
}

const char* WorldPeers::transport_text(uint32_t slot) const {
  if (slot == self_slot()) return "self";
  const std::lock_guard reaching(reaching_mutex_);
  const Transport* transport = table_[slot].transport;
  if (transport == nullptr) return "none";
  const char* text = transport->status(slot).text;
  // The transport's own text lives as long as the peer, which may be replaced.
  return texts_.insert(text != nullptr ? text : transport->name()).first->c_str();
}

bool WorldPeers::maps(uint32_t slot) const {
  const std::lock_guard reaching(reaching_mutex_);
  const Transport* transport = table_[slot].transport;
  return transport != nullptr && transport->status(slot).is_mapped;
}

mep_result_t WorldPeers::open_network(Doorbell* doorbell) {
  doorbell_ = doorbell;
  Offer offered;
  if (decode_offer(self_.offer, &offered)) {
    table_[self_slot()].sharing = offered.sharing(self_.identity);
  }
  const auto& all = transports_.all;
  return network_.open(std::any_of(all.begin(), all.end(), [](const TransportSet::Opened& each) {
    return each.transport->traits().has_events;
  }));
}

bool WorldPeers::is_in(const membership::View& view, uint32_t slot) const {
  const uint64_t incarnation = table_[slot].identity.incarnation;
  return incarnation != 0 && view.incarnation(slot) == incarnation;
}

bool WorldPeers::lingers(const membership::View& view, uint32_t slot) const {
  const WorldPeer& peer = table_[slot];
  return peer.pidfd.valid() && !peer.is_joiner && state(slot) == MEP_PEER_DEAD &&
         !is_in(view, slot);
}

void WorldPeers::count_lingering(const membership::View& view) {
  uint32_t found = 0;
  for (uint32_t slot = 0; slot < count(); ++slot) found += lingers(view, slot) ? 1 : 0;
  lingering_.store(found, std::memory_order_relaxed);
}

WorldPeer& WorldPeers::take_in(PeerLink* link) {
  WorldPeer& peer = table_[link->identity.slot];
  peer.identity = link->identity;
  peer.link = std::move(link->link);
  peer.pidfd = std::move(link->pidfd);
  peer.death_page = std::move(link->death_page);
  peer.session = link->session;
  return peer;
}

// A read may be forbidden by the system (ptrace's rules, a sandbox). So the one question is whether it works.
pid_t WorldPeers::find_readable(const PeerIdentity& peer, const Offer& theirs) const {
  const bool may_be = transports_.word.is_made() && peer.host == self_.identity.host;
  return may_be && shows(peer.pid, theirs.word_at, theirs.word) ? peer.pid : 0;
}

// The lower slot's order of preference decides, so both sides come to the same choice.
mep_result_t WorldPeers::choose_transport(WorldPeer* peer, std::span<const std::byte> offer) {
  Offer theirs;
  if (!decode_offer(offer, &theirs)) {
    return fail(MEP_ERR_BOOTSTRAP, "rank %u sent a malformed transport offer", peer->identity.slot);
  }
  peer->sharing = theirs.sharing(peer->identity);
  peer->readable_pid = find_readable(peer->identity, theirs);
  const auto try_pair = [&](Transport& transport, const Offer::Entry& entry, mep_result_t* result) {
    if (entry.name != transport.name() || !transport.reaches(self_.identity, peer->identity)) {
      return false;
    }
    *result = transport.add_peer(self_.identity, peer->identity, entry.blob, peer->session);
    // No fabric in common, say; the other side finds the same and tries the next one, too.
    if (*result == MEP_ERR_UNSUPPORTED) return false;
    if (*result == MEP_SUCCESS && transport.traits().has_events) {
      *result = network_.add(&transport, doorbell_);
    }
    const std::lock_guard reaching(reaching_mutex_);
    peer->transport = &transport;
    return true;
  };
  mep_result_t result = MEP_SUCCESS;
  if (self_.identity.slot < peer->identity.slot) {
    for (const TransportSet::Opened& each : transports_.all) {
      for (const Offer::Entry& entry : theirs.transports) {
        if (try_pair(*each.transport, entry, &result)) return result;
      }
    }
  } else {
    for (const Offer::Entry& entry : theirs.transports) {
      for (const TransportSet::Opened& each : transports_.all) {
        if (try_pair(*each.transport, entry, &result)) return result;
      }
    }
  }
  return fail(
      MEP_ERR_UNSUPPORTED,
      "no transport reaches rank %u%s; `mep_info` shows what is usable, MEP_TRANSPORTS what is "
      "allowed",
      peer->identity.slot, transports_.unusable.c_str());
}

}  // namespace mep
