// RDMA through libibverbs: reliable connections over InfiniBand or RoCE.
//
// put is an RDMA write. A signal that has to wake is the immediate data of the put before it: that
// completes a receive request at the target, whose event descriptor becomes readable, and who makes
// progress there writes the word (signal_words.hpp). Others are inline writes of eight bytes.
//
// Invariants
//   - A peer is created and removed under the exclusive lock of peers_mutex_; whoever walks over all
//     peers holds it shared. Calls for one peer find it without (the contract keeps it there).
//   - Windows are registered once per renewal, with every HCA. Keys of earlier renewals stay valid,
//     for the old pages, until the next one: a peer that has not heard yet writes where nobody reads
//     and is not taken for broken.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "transport/doorbell.hpp"
#include "transport/transport.hpp"
#include "transport/verbs/bounce_pool.hpp"
#include "transport/verbs/hca.hpp"
#include "transport/verbs/peer.hpp"
#include "transport/verbs/registration_cache.hpp"

namespace mep::verbs {

class HcaRegistrar final : public Registrar {
 public:
  explicit HcaRegistrar(const std::vector<std::unique_ptr<Hca>>* hcas) : hcas_(hcas) {}
  [[nodiscard]] mep_result_t add(const void* memory, size_t bytes, bool writable,
                                 Registration* out) override;
  void remove(Registration* registration) override;

 private:
  const std::vector<std::unique_ptr<Hca>>* hcas_;
};

class VerbsTransport final : public Transport, private Fabric {
 public:
  explicit VerbsTransport(const TransportOptions& options);
  ~VerbsTransport() override;
  VerbsTransport(const VerbsTransport&) = delete;
  VerbsTransport& operator=(const VerbsTransport&) = delete;

  [[nodiscard]] mep_result_t open(std::vector<std::byte>* offer) override;
  [[nodiscard]] mep_result_t add_peer(const PeerIdentity& self, const PeerIdentity& peer,
                                      std::span<const std::byte> offer,
                                      const PeerSession& session) override;
  void remove_peer(uint32_t slot) override;
  PeerStatus status(uint32_t slot) const override;
  void serve() override;

  [[nodiscard]] mep_result_t export_window(uint32_t slot, const std::shared_ptr<Window>& window,
                                           WindowExport* out) override;
  [[nodiscard]] mep_result_t import_window(uint32_t slot, uint64_t window, size_t bytes,
                                           std::span<const std::byte> blob, UniqueFd fd) override;
  void drop_window(uint32_t slot, uint64_t window) override;

  [[nodiscard]] mep_result_t post(uint32_t slot, Batch* batch) override;
  [[nodiscard]] mep_result_t completion(uint32_t slot, bool is_urgent, Completion* out) override;
  bool progress(bool before_sleep) override;

  // The queue pairs are gone with fence_out(); new pages besides take their worth from the keys that
  // the peer has been told.
  [[nodiscard]] mep_result_t fence_out(uint32_t slot) override;
  void give_up(uint32_t slot) override;
  bool quiesced(uint32_t slot, uint64_t number) override;
  void hold_windows(bool is_held) override;
  bool take_failure(PeerFailure* out) override;

  // --- For tests ---
  void spoil_key(uint32_t slot, uint64_t window);
  void break_queue_pair(uint32_t slot);
  // Nothing that was posted to it is on its way any more; or it is lost.
  bool is_acknowledged(uint32_t slot) const;
  size_t rails() const { return hcas_.size(); }

 private:
  struct Export {
    std::weak_ptr<Window> window;
    uint32_t generation = 0;
    Registration current;
    std::vector<Registration> earlier;
  };

  RegistrationCache& memory() override { return *memory_; }
  BouncePool& bounce() override { return *bounce_; }
  void note_no_chunk() override;
  void note_failure(const PeerFailure& failure) override;
  void note_posted() override;

  [[nodiscard]] mep_result_t open_hcas();
  void reclaim_chunks();
  [[nodiscard]] mep_result_t watch_events();
  [[nodiscard]] mep_result_t find_peer(uint32_t slot, Peer** out) const;
  [[nodiscard]] mep_result_t register_window(const std::shared_ptr<Window>& window,
                                             Registration* out);
  void forget_dead_exports();
  bool make_progress(bool before_sleep);
  bool drain_all();
  bool ask_for_notification();
  void check_sends();
  void wake_control();
  void take_device_events();

  const TransportOptions options_;
  Settings settings_;
  std::vector<std::unique_ptr<Hca>> hcas_;
  HcaRegistrar registrar_{&hcas_};
  std::unique_ptr<RegistrationCache> memory_;
  std::unique_ptr<BouncePool> bounce_;
  UniqueFd arrivals_;        // epoll over what tells of arrivals
  UniqueFd control_events_;  // epoll over asynchronous events and the two below
  UniqueFd failed_event_;
  UniqueFd check_timer_;
  // Whether check_timer_ runs. Relaxed: a post that sees it run is looked at when it fires, or, if it
  // has just fired, the look that follows has the peer's lock after the post.
  std::atomic<bool> check_is_due_{false};
  // Some call waits for a chunk. Relaxed: whoever misses it sees it with the next progress.
  std::atomic<bool> no_chunk_{false};
  std::atomic<uint32_t> rounds_{0};        // of progress()
  std::atomic<uint32_t> quiet_rounds_{0};  // of them, since something came
  // Whether the notification that was asked for last may be used up. Relaxed: it publishes nothing, and
  // whoever misses it here finds events().data readable.
  std::atomic<bool> taken_since_asked_{false};

  // Release store, acquire load: publishes a peer to putting threads.
  std::unique_ptr<std::atomic<Peer*>[]> peers_;
  std::shared_mutex peers_mutex_;
  std::vector<uint32_t> present_;  // slots that hold a peer; under peers_mutex_

  std::mutex exports_mutex_;
  std::map<uint64_t, Export> exports_;
  std::shared_ptr<Window> world_window_;  // under exports_mutex_
  // In world_window_. Release/acquire: publishes the window's contents to the thread that rings.
  std::atomic<Doorbell*> doorbell_{nullptr};

  std::mutex failures_mutex_;
  std::vector<PeerFailure> failures_;
};

}  // namespace mep::verbs
