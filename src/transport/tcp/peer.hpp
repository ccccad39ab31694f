// One peer of the tcp transport and, once they are made, the connections to it.
//
// Invariants
//   - Data from a peer lands only in windows that were exported with a token that it names, and in its
//     open targets, inside of their bounds, and never in the doorbell. Anything else ends the connection
//     and is evidence against that peer.
//   - After fence() nothing of the peer lands any more.
//   - A signal or mark takes effect only after all that was put before it on any connection has landed: all but
//     large puts goes on the first connection, and a kAfter there says how much of the others comes first.
// Locks: in_mutex_ for what is received, out_mutex_ for what is sent, both for the sockets themselves; in
// this order. The windows and imports are guarded by the transport's lock, which every caller holds.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/unique_fd.hpp"
#include "transport/tcp/frame.hpp"
#include "transport/tcp/sealing.hpp"
#include "transport/tcp/stream.hpp"
#include "transport/transport.hpp"
#include "transport/window.hpp"

namespace mep {
struct Doorbell;
}

namespace mep::tcp {

// This rank's windows that peers may write, by the token that they were told.
class WindowExports {
 public:
  // The token of a window stays the same when it is exported again.
  uint64_t add(const std::shared_ptr<Window>& window);
  // False: no such token was given out. *out null: the window is gone by now.
  bool find(uint64_t token, std::shared_ptr<Window>* out) const;
  Doorbell* doorbell() const { return doorbell_; }

 private:
  std::unordered_map<uint64_t, std::weak_ptr<Window>> windows_;
  std::shared_ptr<Window> world_window_;  // kept: its doorbell is rung at any time
  Doorbell* doorbell_ = nullptr;
};

// Events that a peer tells its transport.
class PeerEvents {
 public:
  virtual ~PeerEvents() = default;
  // Its take_failure() says why.
  virtual void peer_failed() = 0;
  // The socket has no room: somebody is to send when it has.
  virtual void peer_blocked(uint32_t slot, int socket) = 0;
  // Threads that sleep are to wake for these events of a connection that is up, or for none any more.
  virtual void watch_data(uint32_t slot, const Stream& stream, uint32_t events) = 0;
  virtual void ignore_data(const Stream& stream) = 0;
  // The control thread is to be told, for no other thread sends.
  virtual void watch_left(uint32_t slot, int socket) = 0;
};

// A post to a peer for which more than this waits to be sent finds the queue full. Tests lower it, while there is no world.
extern size_t max_queued_bytes;
// The number of a connection's first record. Tests raise it, while there is no world.
extern uint64_t first_record_number;

// A rank's part in the agreement on a connection, and the agreement.
struct Wishes {
  Protection protection = Protection::kPlain;
  CipherSet ciphers = kCommonCiphers;
  uint8_t streams = 1;
};
struct Agreement {
  Protection protection = Protection::kPlain;
  Cipher cipher = Cipher::kChaCha20Poly1305;
  uint8_t streams = 1;
  bool operator==(const Agreement&) const = default;
};

class TcpPeer {
 public:
  enum class State : uint8_t { kConnecting, kUp, kGivenUp, kFailed, kFenced };
  struct Import {
    uint64_t token = 0;
    size_t bytes = 0;
    uint32_t generation = 0;
  };

  TcpPeer(const PeerIdentity& self, const PeerIdentity& peer, const PeerSession& session,
          const Wishes& wishes, PeerEvents* events)
      : self_(self), identity_(peer), session_(session), wishes_(wishes), events_(events) {
    streams_.push_back(std::make_unique<Stream>());
  }
  ~TcpPeer() { sodium_memzero(session_.key.data(), session_.key.size()); }
  TcpPeer(const TcpPeer&) = delete;
  TcpPeer& operator=(const TcpPeer&) = delete;

  const PeerIdentity& self() const { return self_; }
  const PeerIdentity& identity() const { return identity_; }
  const PeerSession& session() const { return session_; }
  const Wishes& wishes() const { return wishes_; }
  // One of the two connects, the other accepts.
  bool connects() const { return self_.slot > identity_.slot; }
  // Acquire: who sees a connection up sees how it is protected.
  State state() const { return state_.load(std::memory_order_acquire); }
  bool blocked() const { return blocked_.load(std::memory_order_relaxed); }
  uint64_t marked() const { return marked_.load(std::memory_order_acquire); }
  // How it is reached, in words.
  const char* text() const;

  std::unordered_map<uint64_t, Import>& imports() { return imports_; }
  const std::unordered_map<uint64_t, Import>& imports() const { return imports_; }

  // The connections that are made come one after the other.
  uint8_t next_stream() const { return made_; }
  size_t streams() const { return streams_.size(); }
  int socket(size_t stream) const { return streams_[stream]->socket.get(); }
  // A greeting is over: takes the socket. False: it is not the next one, or the peer was given up meanwhile.
  bool add_stream(UniqueFd* socket, const Hello& hello, const Challenge& challenge);
  // All are there.
  void establish();
  void fail_connecting(std::string reason);
  // Once after each failure.
  bool take_failure(PeerFailure* out);

  // Frames on their way. MEP_ERR_PEER_FAILED: the peer is not reached any more; kWouldBlock: nothing was queued.
  // `kind`: kPut, or kTarget.
  [[nodiscard]] mep_result_t put(FrameKind kind, uint64_t token, uint64_t offset, const void* local,
                                 size_t bytes);
  [[nodiscard]] mep_result_t signal(uint64_t token, uint64_t offset, uint64_t word, bool wake);
  // Urgent: nothing of the caller's memory is needed any more.
  Completion completion(bool is_urgent);
  // See Drain. Postings that the peer had queued before there was a connection are not let in after.
  bool quiesced(uint64_t number);
  // Nothing more is sent; what has come is still received.
  void give_up();
  // Sends what is left, if the socket has room again.
  void send_left();
  // Has watch_left() called if something is left.
  bool watch_left();
  // Takes what has come on a connection, without waiting. Whether something had.
  bool receive(const WindowExports& exports, size_t stream);

  // See WindowExchange. The numbers of all peers' targets differ and grow.
  void open_target(uint64_t number, std::byte* memory, size_t bytes);
  void close_target(uint64_t number);

  // No byte of the peer lands after this.
  void fence();

 private:
  enum class Taken : uint8_t { kAll, kHeld, kEnded };  // held: the rest waits for other connections
  struct Target {
    uint64_t number = 0;
    std::byte* memory = nullptr;
    size_t bytes = 0;
  };
  struct Targets {
    std::vector<Target> open;
    uint64_t last = 0;  // that was opened
  };
  // The first connection waits until `bytes` have landed of connection `stream`; 0: it does not wait.
  struct Hold {
    size_t stream = 0;
    uint64_t bytes = 0;
    bool is_unwatched = false;  // no thread wakes for the first one; changed under both mutexes
  };

  [[nodiscard]] mep_result_t check_up() const;
  [[nodiscard]] mep_result_t check_room();
  size_t queued_bytes() const;
  void send_queued();
  // False: the connections have ended by it.
  [[nodiscard]] bool send_stream(Stream* stream);
  [[nodiscard]] bool seal_queued(Outgoing* out);
  Stream* stream_for(size_t bytes);
  size_t queue_put(FrameKind kind, uint64_t token, uint64_t offset, const std::byte* from,
                   size_t bytes);
  void queue_after();
  void queue_mark(Stream* stream) const;
  template <typename Queue>
  void queue_whole(Queue&& queue);
  void forget_queued();
  void watch(const Stream& stream);
  void end_connecting(std::string reason);
  void fail_sending(const char* reason, int error = 0);
  void fail_receiving(const char* reason, int error = 0);
  void end_receiving(Stream* stream, const char* reason, int error = 0);
  bool read(const WindowExports& exports, Stream* stream, int* looks);
  bool read_plain(const WindowExports& exports, Stream* stream, bool* more);
  bool read_sealed(const WindowExports& exports, Stream* stream, bool* more);
  void watch_hold();
  // Takes bytes of the stream's buffer.
  Taken take(const WindowExports& exports, Stream* stream, size_t at, size_t count);
  Taken take_frame(const WindowExports& exports, Stream* stream, const DataFrame& frame);
  Taken take_mark(Incoming* in, bool is_first, const DataFrame& frame);
  Taken take_target(Landing* landing, const DataFrame& frame, bool is_late);
  Taken take_after(const DataFrame& frame);
  static Taken take_signal(const DataFrame& frame, Window* window, const WindowExports& exports);
  Taken deny(const char* what);

  const PeerIdentity self_;
  const PeerIdentity identity_;
  PeerSession session_;
  const Wishes wishes_;
  PeerEvents* const events_;
  std::unordered_map<uint64_t, Import> imports_;  // by window; guarded by the transport

  std::atomic<State> state_{State::kConnecting};
  Agreement agreed_;
  std::vector<std::unique_ptr<Stream>> streams_;  // at least one; changed under both mutexes
  uint8_t made_ = 0;                              // of them; by the control thread alone

  std::mutex out_mutex_;
  uint64_t posted_ = 0;             // puts and signals
  uint64_t sent_mark_ = 0;          // the last that was queued
  bool is_failure_untold_ = false;  // and why it failed: two texts, the first one's or errno's
  const char* failure_reason_ = "";
  int failure_error_ = 0;
  std::string failure_text_;
  // Relaxed: a hint that send_left() has something to do.
  std::atomic<bool> blocked_{false};

  std::mutex in_mutex_;
  Targets targets_;
  Hold hold_;
  // Until this mark has come on a connection the peer's frames there are dropped. Relaxed: set by the control thread before it makes
  // the connection.
  std::atomic<uint64_t> let_in_from_{0};
  // Release: what was put before the mark is there for who sees it.
  std::atomic<uint64_t> marked_{0};
};

}  // namespace mep::tcp
