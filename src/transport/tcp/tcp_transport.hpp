// Peers anywhere, over TCP: one connection for each pair of ranks.
//
// A put or signal is a frame behind all earlier ones of this rank to that peer; small puts are copied
// and travel with the signal that follows them, in one system call. The receiving side writes the data
// into its own exported window and then the signal's word, in whatever thread makes progress, and rings
// its own doorbell for threads that sleep.
//
// Locks, in this order:
//   set_up_mutex_   connections that are being made, and which peers there are
//   windows_lock_   shared by everything that touches peers or lets bytes land; alone for changes of
//                   peers, imports and exports, and while windows get new pages
//   a peer's own    see peer.hpp
// put() and signal() never wait for a peer: what a socket does not take is queued and sent by whoever
// makes progress, or by the control thread once there is room.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/tcp/greeter.hpp"
#include "transport/tcp/peer.hpp"
#include "transport/tcp/writer_first_lock.hpp"
#include "transport/transport.hpp"

namespace mep::tcp {

class TcpTransport final : public Transport, private PeerEvents {
 public:
  explicit TcpTransport(const TransportOptions& options);
  ~TcpTransport() override;

  const char* name() const override { return "tcp"; }
  [[nodiscard]] mep_result_t probe() override;

  [[nodiscard]] mep_result_t make_offer(std::vector<std::byte>* offer) override;
  bool reaches(const PeerIdentity& self, const PeerIdentity& peer) const override;
  [[nodiscard]] mep_result_t add_peer(const PeerIdentity& self, const PeerIdentity& peer,
                                      std::span<const std::byte> offer,
                                      const PeerSession& session) override;
  void remove_peer(uint32_t slot) override;

  [[nodiscard]] mep_result_t export_window(const std::shared_ptr<Window>& window,
                                           WindowExport* out) override;
  [[nodiscard]] mep_result_t import_window(uint32_t slot, uint64_t window, size_t bytes,
                                           std::span<const std::byte> blob, UniqueFd fd) override;
  void drop_window(uint32_t slot, uint64_t window) override;

  uint32_t lanes(uint32_t slot) const override;
  [[nodiscard]] mep_result_t put(uint32_t slot, uint32_t lane, uint64_t window, uint64_t offset,
                                 const void* local, size_t bytes) override;
  [[nodiscard]] mep_result_t signal(uint32_t slot, uint32_t lane, uint64_t window, uint64_t offset,
                                    uint64_t word, bool wake) override;
  [[nodiscard]] mep_result_t flush(uint32_t slot) override;
  [[nodiscard]] mep_result_t progress(bool* active) override;
  [[nodiscard]] mep_result_t fence_out(uint32_t slot) override;
  [[nodiscard]] mep_result_t register_memory(const void* memory, size_t bytes) override;
  int event_fd() const override { return data_epoll_.get(); }

  bool delivers_later() const override { return true; }
  [[nodiscard]] mep_result_t mark(uint32_t slot, uint64_t number) override;
  uint64_t marked(uint32_t slot) const override;
  bool connected(uint32_t slot) const override;
  void hold_windows() override { windows_lock_.lock(); }
  void release_windows() override { windows_lock_.unlock(); }
  int sleep_epoll(int wake_fd, uint64_t tag) override;
  const char* describe(uint32_t slot) const override;
  int control_fd() const override { return control_epoll_.get(); }
  void control_progress() override;
  bool take_failure(PeerFailure* out) override;

  // Connections whose greeting is not over, for tests.
  size_t half_open();

 private:
  void peer_failed() override;
  void peer_blocked(uint32_t slot, int socket, bool again) override;
  void peer_unblocked(uint32_t slot, int socket) override;

  // Under windows_lock_.
  [[nodiscard]] mep_result_t find_peer(uint32_t slot, TcpPeer** out) const;
  [[nodiscard]] mep_result_t find_target(uint32_t slot, uint32_t lane, uint64_t window,
                                         uint64_t offset, size_t bytes, TcpPeer** peer,
                                         uint64_t* token) const;
  bool connect_peer(TcpPeer* peer, UniqueFd* socket, const Hello& hello,
                    const Challenge& challenge);
  void advance_greetings();
  void watch_data(uint32_t slot, int socket, uint32_t events);
  void set_timer();
  void kick();

  const TransportOptions options_;
  UniqueFd data_epoll_;     // connections that are up
  UniqueFd control_epoll_;  // listeners, greetings, sockets without room, the two below
  UniqueFd timer_;
  UniqueFd kick_;

  std::mutex set_up_mutex_;
  std::unique_ptr<Greeter> greeter_;
  std::vector<Address> own_addresses_;
  bool timer_runs_ = false;

  mutable WriterFirstLock windows_lock_;
  std::vector<std::unique_ptr<TcpPeer>> peers_;  // by slot, null: none
  std::vector<TcpPeer*> connected_;
  WindowExports exports_;

  // Some peer has a failure to tell. Release, acquire: of which, its own mutex guards.
  std::atomic<bool> any_failed_{false};
};

}  // namespace mep::tcp
