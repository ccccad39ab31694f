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
// Bytes that a socket does not take are queued and sent by a thread that waits, or once there is room by the control
// thread if none does: two threads that send to one socket keep each other from it.
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

// The environment's options for connections.
struct Options {
  std::string interfaces;           // MEP_NET_IF: globs of interface names; empty: all that are up
  bool encrypts = false;            // MEP_ENCRYPT: frames are encrypted too
  bool authenticates_all = false;   // MEP_AUTHENTICATE: those between ranks of one host too
  uint8_t streams = 1;              // MEP_TCP_STREAMS: connections of a pair
  CipherSet ciphers = kAllCiphers;  // that may protect records, if this process has them
};

class TcpTransport final : public Transport, private PeerEvents {
 public:
  // Without `own` the environment is asked.
  explicit TcpTransport(const TransportOptions& options, const Options* own = nullptr);
  ~TcpTransport() override;

  [[nodiscard]] mep_result_t open(std::vector<std::byte>* offer) override;
  // Listens if the peer is the one that connects: a rank without such peers has no listener.
  [[nodiscard]] mep_result_t add_peer(const PeerIdentity& self, const PeerIdentity& peer,
                                      std::span<const std::byte> offer,
                                      const PeerSession& session) override;
  void remove_peer(uint32_t slot) override;
  PeerStatus status(uint32_t slot) const override;
  void serve() override;
  void hand_over() override;

  // A window's description tells the peer that connects where this rank listens; the first that is imported
  // begins the connection.
  [[nodiscard]] mep_result_t export_window(uint32_t slot, const std::shared_ptr<Window>& window,
                                           WindowExport* out) override;
  [[nodiscard]] mep_result_t import_window(uint32_t slot, uint64_t window, size_t bytes,
                                           std::span<const std::byte> blob, UniqueFd fd) override;
  void drop_window(uint32_t slot, uint64_t window) override;
  uint64_t open_target(uint32_t slot, std::byte* memory, size_t bytes) override;
  void close_target(uint32_t slot, uint64_t target) override;

  [[nodiscard]] mep_result_t post(uint32_t slot, Batch* batch) override;
  [[nodiscard]] mep_result_t completion(uint32_t slot, bool is_urgent, Completion* out) override;
  bool progress(bool before_sleep) override;

  [[nodiscard]] mep_result_t fence_out(uint32_t slot) override;
  void give_up(uint32_t slot) override;
  bool quiesced(uint32_t slot, uint64_t number) override;
  void hold_windows(bool is_held) override;
  bool take_failure(PeerFailure* out) override;

  // Connections whose greeting is not over, for tests.
  size_t half_open();

 private:
  void peer_failed() override;
  void peer_blocked(uint32_t slot, int socket) override;
  void watch_left(uint32_t slot, int socket) override;
  void watch_data(uint32_t slot, const Stream& stream, uint32_t events) override;
  void ignore_data(const Stream& stream) override;

  // Under windows_lock_.
  [[nodiscard]] mep_result_t find_peer(uint32_t slot, TcpPeer** out) const;
  TcpPeer* peer_at(uint32_t slot) const {
    return slot < peers_.size() ? peers_[slot].get() : nullptr;
  }
  [[nodiscard]] static mep_result_t post_one(TcpPeer* peer, const Posting& posting);
  void connect_peer(TcpPeer* peer, UniqueFd* socket, const Hello& hello,
                    const Challenge& challenge);
  // Under set_up_mutex_.
  [[nodiscard]] mep_result_t start();
  [[nodiscard]] mep_result_t begin_connection(uint32_t slot, std::span<const std::byte> addresses);
  void advance_greetings();
  void set_timer();
  void kick();

  const TransportOptions options_;
  Options own_options_;
  bool has_own_options_;
  UniqueFd data_epoll_;     // connections that are up
  UniqueFd control_epoll_;  // listeners, greetings, sockets without room, the two below
  UniqueFd timer_;
  UniqueFd kick_;

  std::mutex set_up_mutex_;
  std::unique_ptr<Greeter> greeter_;
  bool timer_runs_ = false;

  mutable WriterFirstLock windows_lock_;
  std::vector<std::unique_ptr<TcpPeer>> peers_;  // by slot, null: none
  std::vector<TcpPeer*> connected_;
  WindowExports exports_;
  std::atomic<uint64_t> last_target_{0};  // relaxed: a count

  // Some peer's socket may have no room. Sequentially consistent: see Transport::hand_over().
  std::atomic<bool> any_blocked_{false};
  // Some peer has a failure to tell. Release, acquire: of which, its own mutex guards.
  std::atomic<bool> any_failed_{false};
};

}  // namespace mep::tcp
