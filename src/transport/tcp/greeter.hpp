// Makes the connections of the tcp transport: listens, connects, and lets only those through that prove
// that they know the session's key.
//
// Invariants
//   - Never blocks. A stranger holds one of a bounded number of places for a bounded time and learns
//     nothing but that MEP listens here.
//   - Nothing of a connection reaches a peer before both sides have proven themselves, each for a nonce
//     that the other had just made.
// One thread at a time (the transport's set-up mutex).
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "transport/tcp/address.hpp"
#include "transport/tcp/frame.hpp"
#include "transport/tcp/peer.hpp"

namespace mep::tcp {

struct GreeterOptions {
  std::string
      interfaces;  // see AddressFilter; with none, peers on this host are met on loopback alone
  bool one_host =
      false;  // no peer is on another host, whatever ranks are told to take each other for
  uint32_t suspect_ms = 5000;
  uint32_t connect_timeout_ms = 60000;
};

class Greeter {
 public:
  // `epoll` gets every descriptor that is waited for, with `tag` as its data.
  Greeter(GreeterOptions options, int epoll, uint64_t tag)
      : options_(std::move(options)), epoll_(epoll), tag_(tag) {}

  // Listens where peers on this host can call or, `beyond_host`, those on others; once.
  [[nodiscard]] mep_result_t listen(bool beyond_host);
  // On what, with ports.
  const std::vector<Address>& listening() const { return listening_; }
  // A peer that is not connected yet: it may call from now on.
  void add(TcpPeer* peer);
  // Its connection is needed from now on, and is called from here if this rank is the one that connects. Again:
  // no difference.
  void want(TcpPeer* peer, std::span<const Address> addresses);
  void remove(const TcpPeer* peer);
  // Takes over each peer whose connection is made, with its socket.
  using Connected = std::function<void(TcpPeer*, UniqueFd*, const Hello&, const Challenge&)>;
  // Does what can be done now.
  void advance(const Connected& connected);
  // Whether time alone can change something.
  bool needs_time() const;
  size_t half_open() const { return half_open_.size(); }

 private:
  enum class Stage : uint8_t { kConnecting, kAwaitHello, kAwaitPeer, kAwaitChallenge, kAwaitProof };
  enum class Outcome : uint8_t { kWait, kConnected, kDrop };
  // A connection whose greeting is not over.
  struct HalfOpen {
    UniqueFd socket;
    Stage stage = Stage::kAwaitHello;
    uint64_t until_ns = 0;
    TcpPeer* peer = nullptr;
    std::byte bytes[kChallengeBytes] = {};
    size_t have = 0;
    Hello hello;
    Challenge challenge;
    std::string address;
    const char* trouble = "no answer";
  };
  // This rank's attempt to connect to a peer.
  struct Attempt {
    bool is_wanted = false;
    std::vector<Address> addresses;  // none of those that it accepts
    size_t next = 0;
    uint64_t next_try_ns = 0;
    uint64_t give_up_ns = UINT64_MAX;
    bool under_way = false;
    std::string trouble = "not tried yet";
  };

  [[nodiscard]] mep_result_t listen_on(Address* address);
  void accept_all(uint64_t now);
  bool accept_one(const UniqueFd& listener, uint64_t now);
  void close_for_a_while(int error, uint64_t now);
  void take_over(HalfOpen* connection, const Connected& connected);
  void start_attempts(uint64_t now);
  void start_attempt(TcpPeer* peer, Attempt* attempt, uint64_t now);
  [[nodiscard]] bool bind_source(int socket, const Address& target) const;
  [[nodiscard]] mep_result_t own_addresses(bool beyond_host, std::vector<Address>* out) const;
  void note_failed(const HalfOpen& connection, uint64_t now);
  void prepare_socket(int socket) const;
  bool watch(int socket, uint32_t events, bool is_known) const;
  Outcome advance_one(HalfOpen* connection);
  Outcome finish_connect(HalfOpen* connection);
  Outcome answer_hello(HalfOpen* connection);
  Outcome check_challenge(HalfOpen* connection);
  Outcome check_proof(HalfOpen* connection);
  // Reads up to `count` bytes in all; kConnected stands for "all are here".
  static Outcome read_exactly(HalfOpen* connection, size_t count);
  static bool send_whole(const HalfOpen& connection, const std::byte* bytes, size_t count);
  TcpPeer* find_caller(const Hello& hello) const;

  const GreeterOptions options_;
  const int epoll_;
  const uint64_t tag_;
  std::vector<UniqueFd> listeners_;
  std::vector<Address> listening_;
  bool listens_here_ = false;
  bool listens_beyond_ = false;
  // Nobody can be let in: callers wait in the listeners, which are not watched meanwhile.
  bool is_closed_ = false;
  uint64_t closed_until_ns_ = 0;
  std::map<TcpPeer*, Attempt> missing_;  // peers without connection
  std::list<HalfOpen> half_open_;
};

}  // namespace mep::tcp
