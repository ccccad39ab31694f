// The common part of the transports that reach their peers' windows through mapped memory: the peers, their windows,
// put as a copy and signal as a store. A subclass knows how a window comes from one rank to another.
//
// Invariants
//   - A peer and a window are published to the threads that put by one atomic store each, so that
//     importing or dropping one window disturbs no put to another.
//   - No put or signal touches a byte outside of an imported window, whatever its arguments.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/transport.hpp"
#include "transport/window_table.hpp"

namespace mep {

constexpr uint32_t kMaxPeerSlots = 4096;

// The content of a window's blob; the same on the exporting and the importing side because both run on
// one host.
struct WindowTicket {
  uint32_t magic;
  uint32_t generation;
  uint64_t window;
  uint64_t bytes;
  uint64_t token;  // for the transport's own use
};
static_assert(sizeof(WindowTicket) == 32 && sizeof(WindowTicket) <= kMaxWindowBlobBytes);

std::vector<std::byte> encode_ticket(const WindowTicket& ticket);
// Checks length, magic and window, and that the peer's window has at least `bytes`.
[[nodiscard]] mep_result_t decode_ticket(std::span<const std::byte> blob, uint32_t magic,
                                         uint64_t window, size_t bytes, WindowTicket* out);

class MappedTransport : public Transport {
 public:
  ~MappedTransport() override;

  [[nodiscard]] mep_result_t open(std::vector<std::byte>* offer) override;
  [[nodiscard]] mep_result_t add_peer(const PeerIdentity& self, const PeerIdentity& peer,
                                      std::span<const std::byte> offer,
                                      const PeerSession& session) override;
  void remove_peer(uint32_t slot) override;
  PeerStatus status(uint32_t slot) const override;
  void drop_window(uint32_t slot, uint64_t window) override;
  std::byte* map(uint32_t slot, uint64_t window) const override;
  Doorbell* doorbell(uint32_t slot) const override;

  // A posting is complete when it returns.
  [[nodiscard]] mep_result_t post(uint32_t slot, Batch* batch) override;
  [[nodiscard]] mep_result_t completion(uint32_t slot, bool is_urgent, Completion* out) override;
  bool progress(bool before_sleep) override;

 protected:
  MappedTransport(const TransportTraits& traits, const TransportOptions& options);

  struct Peer {
    PeerIdentity self;
    PeerIdentity identity;
    // Set by fence_out(): this rank posts nothing to the peer any more. Relaxed: a hint to this
    // rank's own threads; what the fence promises does not rest on it.
    std::atomic<bool> fenced{false};
    std::atomic<uint64_t> posted{0};  // relaxed: a count
    WindowTable windows;
  };

  // Null: the slot holds no peer.
  Peer* peer_at(uint32_t slot) const;
  // MEP_ERR_INVALID_ARGUMENT when the slot holds no peer.
  [[nodiscard]] mep_result_t find_peer(uint32_t slot, Peer** out) const;
  // The same for an import: also refuses a fenced peer and an id that no window has.
  [[nodiscard]] mep_result_t find_importing_peer(uint32_t slot, uint64_t window, Peer** out) const;

 private:
  // Null: *error says why.
  RemoteWindow* find_target(Peer* peer, uint32_t slot, const Posting& posting,
                            mep_result_t* error) const;
  [[nodiscard]] mep_result_t put(Peer* peer, uint32_t slot, const Posting& posting) const;
  [[nodiscard]] mep_result_t signal(Peer* peer, uint32_t slot, const Posting& posting) const;
  [[nodiscard]] mep_result_t unknown_peer(uint32_t slot) const;
  [[nodiscard]] mep_result_t fenced_peer(uint32_t slot) const;

  // Release store, acquire load: publishes a peer to putting threads.
  std::unique_ptr<std::atomic<Peer*>[]> peers_;
  const bool put_only_;
  const std::string put_only_text_;
};

}  // namespace mep
