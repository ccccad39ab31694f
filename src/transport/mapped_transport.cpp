#include "transport/mapped_transport.hpp"

#include <cstring>

#include "base/status.hpp"
#include "base/test_delay.hpp"
#include "transport/doorbell.hpp"
#include "transport/test_network.hpp"

namespace mep {
namespace {

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

MappedTransport::MappedTransport(const TransportTraits& traits, const TransportOptions& options)
    : Transport(traits),
      peers_(std::make_unique<std::atomic<Peer*>[]>(kMaxPeerSlots)),
      put_only_(options.put_only),
      put_only_text_(std::string(traits.name) + " (put only)") {}

MappedTransport::~MappedTransport() {
  for (uint32_t slot = 0; slot < kMaxPeerSlots; ++slot) MappedTransport::remove_peer(slot);
}

mep_result_t MappedTransport::open(std::vector<std::byte>* offer) {
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
  MEP_TEST_DELAY_POINT("window drop");
  if (peer != nullptr && window != kNoWindow) (void)peer->windows.drop(window);
}

std::byte* MappedTransport::map(uint32_t slot, uint64_t window) const {
  Peer* peer = peer_at(slot);
  if (put_only_ || peer == nullptr || window == kNoWindow) return nullptr;
  const RemoteWindow* entry = peer->windows.find(window);
  return entry == nullptr ? nullptr : entry->data;
}

Doorbell* MappedTransport::doorbell(uint32_t slot) const {
  Peer* peer = peer_at(slot);
  const RemoteWindow* world = peer == nullptr ? nullptr : peer->windows.find(kWorldWindowId);
  if (world == nullptr || world->bytes < sizeof(Doorbell)) return nullptr;
  return reinterpret_cast<Doorbell*>(world->data);
}

PeerStatus MappedTransport::status(uint32_t slot) const {
  if (peer_at(slot) == nullptr) return {};
  return {true, put_only_ ? put_only_text_.c_str() : name(), !put_only_};
}

RemoteWindow* MappedTransport::find_target(Peer* peer, uint32_t slot, const Posting& posting,
                                           mep_result_t* error) const {
  if (peer->fenced.load(std::memory_order_relaxed)) {
    *error = fenced_peer(slot);
    return nullptr;
  }
  RemoteWindow* entry = posting.window == kNoWindow ? nullptr : peer->windows.find(posting.window);
  if (entry == nullptr) {
    *error = fail(MEP_ERR_INVALID_ARGUMENT, "window %llu of slot %u is not imported",
                  number(posting.window), slot);
    return nullptr;
  }
  if (posting.offset > entry->bytes || posting.bytes > entry->bytes - posting.offset) {
    *error = fail(MEP_ERR_INVALID_ARGUMENT,
                  "%zu bytes at offset %llu do not fit into the %zu bytes of window %llu",
                  posting.bytes, number(posting.offset), entry->bytes, number(posting.window));
    return nullptr;
  }
  return entry;
}

mep_result_t MappedTransport::put(Peer* peer, uint32_t slot, const Posting& posting) const {
  mep_result_t error = MEP_ERR_INTERNAL;
  const RemoteWindow* target = find_target(peer, slot, posting, &error);
  if (target == nullptr) return error;
  if (posting.bytes == 0) return MEP_SUCCESS;
  if (posting.local == nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "a put of %zu bytes has no source", posting.bytes);
  }
  if (TestNetwork::enabled()) [[unlikely]] {
    TestNetwork::note_put(peer->self.slot, slot, posting.bytes);
  }
  const PutPass pass(target->gate.get());
  if (!pass.open()) return fenced_peer(slot);
  std::memcpy(target->data + posting.offset, posting.local, posting.bytes);
  return MEP_SUCCESS;
}

mep_result_t MappedTransport::signal(Peer* peer, uint32_t slot, const Posting& posting) const {
  mep_result_t error = MEP_ERR_INTERNAL;
  const RemoteWindow* target = find_target(peer, slot, posting, &error);
  if (target == nullptr) return error;
  if (posting.offset % sizeof(posting.word) != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "a signal at offset %llu, which is no multiple of 8",
                number(posting.offset));
  }
  auto* address = reinterpret_cast<std::atomic<uint64_t>*>(target->data + posting.offset);
  if (!posting.wake) {
    const PutPass pass(target->gate.get());
    if (!pass.open()) return fenced_peer(slot);
    address->store(posting.word,
                   std::memory_order_release);  // publishes this thread's earlier puts
    return MEP_SUCCESS;
  }
  Doorbell* const bell = doorbell(slot);
  if (bell == nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "slot %u cannot be woken: its world window is not imported", slot);
  }
  const uint64_t word = posting.word;
  if (TestNetwork::enabled()) [[unlikely]] {
    const auto deliver = [=] { doorbell_signal(bell, address, word); };
    if (TestNetwork::keep_signal(peer->self.slot, slot, deliver)) return MEP_SUCCESS;
  }
  const PutPass pass(target->gate.get());
  if (!pass.open()) return fenced_peer(slot);
  doorbell_signal(bell, address, word);
  return MEP_SUCCESS;
}

mep_result_t MappedTransport::post(uint32_t slot, Batch* batch) {
  Peer* peer = peer_at(slot);
  if (peer == nullptr) return unknown_peer(slot);
  for (; batch->next < batch->postings.size(); ++batch->next) {
    const Posting& posting = batch->postings[batch->next];
    MEP_TRY(posting.is_signal ? signal(peer, slot, posting) : put(peer, slot, posting));
    peer->posted.fetch_add(1, std::memory_order_relaxed);
  }
  return MEP_SUCCESS;
}

mep_result_t MappedTransport::completion(uint32_t slot, bool /*is_urgent*/, Completion* out) {
  const Peer* peer = peer_at(slot);
  if (peer == nullptr) return unknown_peer(slot);
  out->posted = out->completed = peer->posted.load(std::memory_order_relaxed);
  return MEP_SUCCESS;
}

bool MappedTransport::progress(bool /*before_sleep*/) {
  return false;
}

}  // namespace mep
