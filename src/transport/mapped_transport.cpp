#include "transport/mapped_transport.hpp"

#include <cstring>

#include "base/status.hpp"
#include "transport/doorbell.hpp"
#include "transport/test_network.hpp"

namespace mep {
namespace {

constexpr uint32_t kLanes = 16;

unsigned long long number(uint64_t value) {
  return value;
}

}  // namespace

std::vector<std::byte> encode_ticket(const WindowTicket& ticket) {
  std::vector<std::byte> blob(sizeof(ticket));
  std::memcpy(blob.data(), &ticket, sizeof(ticket));
  return blob;
}

mep_result_t decode_ticket(std::span<const std::byte> blob, uint32_t magic, uint64_t window,
                           size_t bytes, WindowTicket* out) {
  WindowTicket ticket{};
  if (blob.size() != sizeof(ticket)) {
    return fail(MEP_ERR_DENIED, "the peer described its window in %zu bytes instead of %zu",
                blob.size(), sizeof(ticket));
  }
  std::memcpy(&ticket, blob.data(), sizeof(ticket));
  if (ticket.magic != magic) {
    return fail(MEP_ERR_DENIED, "the peer's description of its window is of another kind (%#x)",
                ticket.magic);
  }
  if (ticket.window != window) {
    return fail(MEP_ERR_MISMATCH, "the peer offers window %llu where window %llu was expected",
                number(ticket.window), number(window));
  }
  if (ticket.bytes < bytes) {
    return fail(MEP_ERR_MISMATCH, "the peer's window %llu has %llu bytes where this rank's has %zu",
                number(window), number(ticket.bytes), bytes);
  }
  *out = ticket;
  return MEP_SUCCESS;
}

MappedTransport::MappedTransport(const TransportOptions& options)
    : peers_(std::make_unique<std::atomic<Peer*>[]>(kMaxPeerSlots)), put_only_(options.put_only) {}

MappedTransport::~MappedTransport() {
  for (uint32_t slot = 0; slot < kMaxPeerSlots; ++slot) MappedTransport::remove_peer(slot);
}

mep_result_t MappedTransport::make_offer(std::vector<std::byte>* offer) {
  offer->clear();  // a peer on this host needs no address: descriptors come with the windows
  return MEP_SUCCESS;
}

mep_result_t MappedTransport::add_peer(const PeerIdentity& self, const PeerIdentity& peer,
                                       std::span<const std::byte> offer,
                                       const PeerSession& /*session*/) {
  if (peer.slot >= kMaxPeerSlots) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "slot %u: %s has room for slots below %u", peer.slot,
                name(), kMaxPeerSlots);
  }
  if (!reaches(self, peer)) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "%s does not reach slot %u", name(), peer.slot);
  }
  if (!offer.empty()) {
    return fail(MEP_ERR_DENIED, "slot %u sent an address of %zu bytes for %s, which has none",
                peer.slot, offer.size(), name());
  }
  if (peers_[peer.slot].load(std::memory_order_acquire) != nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "slot %u is a peer of %s already", peer.slot, name());
  }
  auto added = std::make_unique<Peer>();
  added->self = self;
  added->identity = peer;
  peers_[peer.slot].store(added.release(), std::memory_order_release);
  return MEP_SUCCESS;
}

void MappedTransport::remove_peer(uint32_t slot) {
  if (slot >= kMaxPeerSlots) return;
  delete peers_[slot].exchange(nullptr, std::memory_order_acq_rel);
}

MappedTransport::Peer* MappedTransport::peer_at(uint32_t slot) const {
  return slot < kMaxPeerSlots ? peers_[slot].load(std::memory_order_acquire) : nullptr;
}

mep_result_t MappedTransport::unknown_peer(uint32_t slot) const {
  return fail(MEP_ERR_INVALID_ARGUMENT, "slot %u is no peer of %s", slot, name());
}

mep_result_t MappedTransport::fenced_peer(uint32_t slot) const {
  return fail(MEP_ERR_PEER_FAILED, "slot %u is fenced out of %s", slot, name());
}

mep_result_t MappedTransport::find_peer(uint32_t slot, Peer** out) const {
  *out = peer_at(slot);
  return *out == nullptr ? unknown_peer(slot) : MEP_SUCCESS;
}

mep_result_t MappedTransport::find_importing_peer(uint32_t slot, uint64_t window,
                                                  Peer** out) const {
  if (window == kNoWindow) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "no window has the id %llu", number(window));
  }
  Peer* peer = peer_at(slot);
  if (peer == nullptr) return unknown_peer(slot);
  if (peer->fenced.load(std::memory_order_relaxed)) return fenced_peer(slot);
  *out = peer;
  return MEP_SUCCESS;
}

void MappedTransport::drop_window(uint32_t slot, uint64_t window) {
  Peer* peer = peer_at(slot);
  if (peer != nullptr && window != kNoWindow) (void)peer->windows.drop(window);
}

std::byte* MappedTransport::map(uint32_t slot, uint64_t window) const {
  Peer* peer = peer_at(slot);
  if (put_only_ || peer == nullptr || window == kNoWindow) return nullptr;
  const RemoteWindow* entry = peer->windows.find(window);
  return entry == nullptr ? nullptr : entry->data;
}

uint32_t MappedTransport::lanes(uint32_t slot) const {
  return peer_at(slot) != nullptr ? kLanes : 0;
}

RemoteWindow* MappedTransport::find_target(Peer* peer, uint32_t slot, uint32_t lane,
                                           uint64_t window, uint64_t offset, size_t bytes,
                                           mep_result_t* error) const {
  if (peer->fenced.load(std::memory_order_relaxed)) {
    *error = fenced_peer(slot);
    return nullptr;
  }
  if (lane >= kLanes) {
    *error = fail(MEP_ERR_INVALID_ARGUMENT, "lane %u: %s has %u", lane, name(), kLanes);
    return nullptr;
  }
  RemoteWindow* entry = window == kNoWindow ? nullptr : peer->windows.find(window);
  if (entry == nullptr) {
    *error = fail(MEP_ERR_INVALID_ARGUMENT, "window %llu of slot %u is not imported",
                  number(window), slot);
    return nullptr;
  }
  if (offset > entry->bytes || bytes > entry->bytes - offset) {
    *error = fail(MEP_ERR_INVALID_ARGUMENT,
                  "%zu bytes at offset %llu do not fit into the %zu bytes of window %llu", bytes,
                  number(offset), entry->bytes, number(window));
    return nullptr;
  }
  return entry;
}

mep_result_t MappedTransport::put(uint32_t slot, uint32_t lane, uint64_t window, uint64_t offset,
                                  const void* local, size_t bytes) {
  Peer* peer = peer_at(slot);
  if (peer == nullptr) return unknown_peer(slot);
  mep_result_t error = MEP_ERR_INTERNAL;
  const RemoteWindow* target = find_target(peer, slot, lane, window, offset, bytes, &error);
  if (target == nullptr) return error;
  if (bytes == 0) return MEP_SUCCESS;
  if (local == nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "a put of %zu bytes has no source", bytes);
  }
  if (TestNetwork::enabled()) [[unlikely]] {
    TestNetwork::note_put(peer->self.slot, slot, bytes);
  }
  const PutPass pass(target->gate.get());
  if (!pass.open()) return fenced_peer(slot);
  std::memcpy(target->data + offset, local, bytes);
  return MEP_SUCCESS;
}

mep_result_t MappedTransport::signal(uint32_t slot, uint32_t lane, uint64_t window, uint64_t offset,
                                     uint64_t word, bool wake) {
  Peer* peer = peer_at(slot);
  if (peer == nullptr) return unknown_peer(slot);
  mep_result_t error = MEP_ERR_INTERNAL;
  const RemoteWindow* target = find_target(peer, slot, lane, window, offset, sizeof(word), &error);
  if (target == nullptr) return error;
  if (offset % sizeof(word) != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "a signal at offset %llu, which is no multiple of 8",
                number(offset));
  }
  auto* address = reinterpret_cast<std::atomic<uint64_t>*>(target->data + offset);
  if (!wake) {
    const PutPass pass(target->gate.get());
    if (!pass.open()) return fenced_peer(slot);
    address->store(word, std::memory_order_release);  // publishes this thread's earlier puts
    return MEP_SUCCESS;
  }
  const RemoteWindow* world = peer->windows.find(kWorldWindowId);
  if (world == nullptr || world->bytes < sizeof(Doorbell)) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "slot %u cannot be woken: its world window is not imported", slot);
  }
  if (TestNetwork::enabled()) [[unlikely]] {
    const auto deliver = [=] {
      doorbell_signal(reinterpret_cast<Doorbell*>(world->data), address, word);
    };
    if (TestNetwork::keep_signal(peer->self.slot, slot, deliver)) return MEP_SUCCESS;
  }
  const PutPass pass(target->gate.get());
  if (!pass.open()) return fenced_peer(slot);
  doorbell_signal(reinterpret_cast<Doorbell*>(world->data), address, word);
  return MEP_SUCCESS;
}

mep_result_t MappedTransport::flush(uint32_t slot) {
  return peer_at(slot) == nullptr ? unknown_peer(slot) : MEP_SUCCESS;
}

mep_result_t MappedTransport::progress(bool* active) {
  *active = false;
  return MEP_SUCCESS;
}

mep_result_t MappedTransport::register_memory(const void* /*memory*/, size_t /*bytes*/) {
  return MEP_SUCCESS;
}

}  // namespace mep
