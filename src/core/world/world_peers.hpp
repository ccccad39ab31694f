// The processes in the slots of a world, as one of its ranks sees them, and the transport that reaches each.
//
// The control thread writes the table; users read what is atomic in it, and of a member the fields that stand since
// before it was one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/peer_memory.hpp"
#include "base/process_end.hpp"
#include "base/unique_fd.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "core/membership/row.hpp"
#include "core/world/offer.hpp"
#include "core/world/transport_set.hpp"
#include "core/world/transport_wait.hpp"
#include "mep.h"
#include "transport/transport.hpp"

namespace mep {

struct WorldPeer {
  PeerIdentity identity;
  std::shared_ptr<ControlLink> link;  // null: none now
  UniqueFd pidfd;
  UniqueFd death_page;  // until DyingPeers watches it; invalid: there is none
  PeerSession session;
  Transport* transport = nullptr;  // changes under WorldPeers::reaching_mutex()
  uint64_t sharing = 0;            // see Remote
  pid_t readable_pid = 0;          // see Remote
  bool is_joiner = false;          // connected, not in the view yet; the control thread's
  // The incarnation of the joiner that has said that it is ready; published by the control thread to users.
  std::atomic<uint64_t> ready_incarnation{0};
  // MEP_PEER_*: written by the control thread for users to read; orders nothing.
  std::atomic<uint32_t> state{MEP_PEER_ALIVE};
};

class WorldPeers {
 public:
  WorldPeers(uint32_t max_slots, SelfDescription self, TransportSet transports);
  WorldPeers(const WorldPeers&) = delete;
  WorldPeers& operator=(const WorldPeers&) = delete;

  const SelfDescription& self() const { return self_; }
  const PeerIdentity& identity() const { return self_.identity; }
  uint32_t self_slot() const { return self_.identity.slot; }
  uint32_t count() const { return static_cast<uint32_t>(table_.size()); }
  // By slot; the own one has no link.
  WorldPeer& operator[](uint32_t slot) { return table_[slot]; }
  const WorldPeer& operator[](uint32_t slot) const { return table_[slot]; }
  auto begin() { return table_.begin(); }
  auto end() { return table_.end(); }

  // The process in the slot is a member of the view.
  bool is_in(const membership::View& view, uint32_t slot) const;
  // It was one, has ended, and the kernel has not torn it down yet: what its GPU runs may still write.
  bool lingers(const membership::View& view, uint32_t slot) const;
  // Such processes, from the view on without them. Any thread.
  uint32_t lingering() const { return lingering_.load(std::memory_order_relaxed); }
  // GPUs of this world write to each other's memory. Any thread; once it does it always does.
  void note_kernels() { have_kernels_.store(true, std::memory_order_relaxed); }
  bool have_kernels() const { return have_kernels_.load(std::memory_order_relaxed); }
  // MEP_PEER_* of a slot.
  uint32_t state(uint32_t slot) const;
  // Peers have tried at the start whether they may read this process. True: nothing has changed that since.
  bool keeps_read_rights() const { return ReadRights::now() == read_rights_; }
  // How a slot is reached, in words, which live as long as this table. Any thread; throws std::bad_alloc.
  const char* transport_text(uint32_t slot) const;
  // Whether the slot's windows have an address here. Any thread.
  bool maps(uint32_t slot) const;
  // While it is held no peer is forgotten, and what a slot is reached by stays: whoever reaches, imports or drops
  // a peer's window, or asks its transport something, outside of the operations of a view. Before all other
  // mutexes.
  std::mutex& reaching_mutex() const { return reaching_mutex_; }
  // The one wait over all transports that need progress.
  TransportWait& network() { return network_; }
  const TransportWait& network() const { return network_; }

  // --- Start-up, then the control thread ---
  void count_lingering(const membership::View& view);
  // Before any transport is chosen. `doorbell` wakes this rank.
  [[nodiscard]] mep_result_t open_network(Doorbell* doorbell);
  // The process that came by this link fills its slot; `link` keeps its offer.
  WorldPeer& take_in(PeerLink* link);
  // The one that both sides have and that reaches: `peer` is connected, or about to be.
  [[nodiscard]] mep_result_t choose_transport(WorldPeer* peer, std::span<const std::byte> offer);

 private:
  pid_t find_readable(const PeerIdentity& peer, const Offer& theirs) const;

  SelfDescription self_;
  const ReadRights read_rights_;  // at the start
  TransportSet transports_;
  std::vector<WorldPeer> table_;
  mutable std::mutex reaching_mutex_;
  mutable std::set<std::string> texts_;  // that were handed out; under reaching_mutex_
  TransportWait network_;
  // Relaxed: a view reaches a user's thread under a mutex, and the count was stored before.
  std::atomic<uint32_t> lingering_{0};
  std::atomic<bool> have_kernels_{false};  // relaxed: set before a rank of them can be lost
  Doorbell* doorbell_ = nullptr;
};

}  // namespace mep
