// A rank with a tcp transport, and a peer that speaks its protocol byte for byte as a test wants it.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/transport_conformance.hpp"
#include "transport/mapped_transport.hpp"
#include "transport/tcp/sealing.hpp"
#include "transport/tcp/tcp_transport.hpp"

namespace mep::test {

using mep::tcp::Address;
using mep::tcp::Challenge;
using mep::tcp::Cipher;
using mep::tcp::DataFrame;
using mep::tcp::FrameKind;
using mep::tcp::Hello;
using mep::tcp::Protection;
using mep::tcp::RecordKey;
using mep::tcp::TcpTransport;

constexpr size_t kWindowBytes = 1 << 20;
inline const PeerIdentity kVictim{3, 103, 7, 1, 0};
inline const PeerIdentity kRogue{8, 108, 7, 2, 0};
inline const PeerIdentity kFriend{9, 109, 7, 3, 0};
inline const PeerIdentity kAbsent{20, 120, 7, 4, 0};

inline PeerSession session_of(uint8_t seed) {
  PeerSession session;
  session.key.fill(std::byte{seed});
  return session;
}

// A transport with a thread that makes its progress.
class Victim {
 public:
  explicit Victim(const mep::TransportOptions& options, const PeerIdentity& self = kVictim)
      : self_(self), transport_(options) {
    std::vector<std::byte> offer;
    assert_int_equal(transport_.open(&offer), MEP_SUCCESS);
    assert_true(offer.empty());
    assert_int_equal(Window::create(mep::kWorldWindowId, 4096, &world_), MEP_SUCCESS);
    assert_int_equal(Window::create(kDataWindow, kWindowBytes, &data_), MEP_SUCCESS);
    // Never comes; with it the transport listens.
    add(kAbsent, session_of(77));
    offer_ = addresses_in(world_blob_);
    pump_ = std::thread([this] {
      while (!stop_.load()) {
        pollfd ready[2] = {{transport_.events().data, POLLIN, 0},
                           {transport_.events().control, POLLIN, 0}};
        if (poll(ready, 2, 5) <= 0) continue;
        (void)transport_.progress(false);
        transport_.serve();
      }
    });
  }
  ~Victim() {
    stop_.store(true);
    pump_.join();
  }
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;

  void add(const PeerIdentity& peer, const PeerSession& session) {
    assert_int_equal(transport_.add_peer(self_, peer, {}, session), MEP_SUCCESS);
    mep::WindowExport exported;
    assert_int_equal(transport_.export_window(peer.slot, world_, &exported), MEP_SUCCESS);
    world_blob_ = exported.blob;
    assert_int_equal(transport_.export_window(peer.slot, data_, &exported), MEP_SUCCESS);
    data_blob_ = exported.blob;
  }
  // Imports the world window of `peer`, which a connection needs.
  void meet(const PeerIdentity& peer, const Victim& owner) {
    assert_int_equal(
        transport_.import_window(peer.slot, mep::kWorldWindowId, 4096, owner.world_blob(), {}),
        MEP_SUCCESS);
  }
  bool is_connected(const PeerIdentity& peer) const {
    return transport_.status(peer.slot).is_connected;
  }
  TcpTransport& transport() { return transport_; }
  const std::vector<std::byte>& offer() const { return offer_; }
  Window& data() { return *data_; }
  Window& world() { return *world_; }
  const std::vector<std::byte>& world_blob() const { return world_blob_; }
  const std::vector<std::byte>& data_blob() const { return data_blob_; }
  static uint64_t token_in(const std::vector<std::byte>& blob) {
    mep::WindowTicket ticket{};
    std::memcpy(&ticket, blob.data(), sizeof ticket);
    return ticket.token;
  }
  static std::vector<std::byte> addresses_in(const std::vector<std::byte>& blob) {
    return {blob.begin() + sizeof(mep::WindowTicket), blob.end()};
  }
  bool unchanged() const {
    return std::all_of(data_->data(), data_->data() + kWindowBytes,
                       [](std::byte b) { return b == std::byte{0}; });
  }

 private:
  const PeerIdentity self_;
  TcpTransport transport_;
  std::vector<std::byte> offer_;
  std::shared_ptr<Window> world_;
  std::shared_ptr<Window> data_;
  std::vector<std::byte> world_blob_;
  std::vector<std::byte> data_blob_;
  std::atomic<bool> stop_{false};
  std::thread pump_;
};

inline bool eventually(const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::after_ms(kLimitMs);
  while (!condition()) {
    if (deadline.expired()) return false;
    const timespec nap{0, 200000};
    nanosleep(&nap, nullptr);
  }
  return true;
}

// `opened` runs once the caller has its descriptor.
inline mep::UniqueFd call(const std::vector<std::byte>& offer,
                          const std::function<void()>& opened = {}) {
  std::vector<Address> addresses;
  assert_true(mep::tcp::parse_addresses(offer, &addresses) == mep::tcp::Parse::kComplete);
  sockaddr_storage address;
  const socklen_t length = addresses[0].to_socket_address(&address);
  mep::UniqueFd socket(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  assert_true(socket.valid());
  if (opened) opened();
  assert_int_equal(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  const timeval limit{kLimitMs / 1000, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return socket;
}

// Speaks the protocol as kRogue, byte for byte as the test wants it.
class Rogue {
 public:
  // `key` may be the wrong one.
  Rogue(Victim& victim, Protection wanted, const PeerSession& key,
        Cipher cipher = Cipher::kChaCha20Poly1305, uint8_t stream = 0, uint8_t streams = 1)
      : socket_(call(victim.offer())), key_(key) {
    hello_.ciphers = mep::tcp::kCommonCiphers | cipher_bit(cipher);
    hello_.from_slot = kRogue.slot;
    hello_.to_slot = kVictim.slot;
    hello_.from_incarnation = kRogue.incarnation;
    hello_.to_incarnation = kVictim.incarnation;
    hello_.wanted = wanted;
    hello_.stream = stream;
    hello_.streams = streams;
    hello_.nonce = mep::tcp::random_nonce();
  }
  // Whether what answered knows the key that the rogue has.
  bool greet() {
    std::byte bytes[mep::tcp::kChallengeBytes];
    mep::tcp::encode_hello(hello_, bytes);
    send_raw(bytes, mep::tcp::kHelloBytes);
    if (recv(socket_.get(), bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes) return false;
    if (mep::tcp::parse_challenge(bytes, &challenge_) != mep::tcp::Parse::kComplete) return false;
    const auto proof = mep::tcp::connector_proof(key_, hello_, challenge_);
    send_raw(proof.data(), proof.size());
    seal_ = RecordKey(key_, hello_, challenge_, true);
    assert_true(challenge_.cipher == mep::tcp::best_cipher(hello_.ciphers));
    return mep::tcp::same_proof(mep::tcp::acceptor_proof(key_, hello_, challenge_),
                                challenge_.proof);
  }
  void send_raw(const std::byte* bytes, size_t count) {
    while (count > 0) {
      const ssize_t sent = ::send(socket_.get(), bytes, count, MSG_NOSIGNAL);
      if (sent <= 0) return;  // it was thrown out
      bytes += sent;
      count -= static_cast<size_t>(sent);
    }
  }
  std::vector<std::byte> sealed(const std::vector<std::byte>& body) {
    std::vector<std::byte> record(mep::tcp::kRecordHeaderBytes + body.size() +
                                  mep::tcp::kRecordTagBytes);
    std::memcpy(record.data() + mep::tcp::kRecordHeaderBytes, body.data(), body.size());
    assert_null(seal_.seal(record.data(), body.size()));
    return record;
  }
  // Sends the bytes as the connection's protection wants them.
  void send_stream(const std::vector<std::byte>& bytes) {
    const std::vector<std::byte> out =
        challenge_.chosen == Protection::kPlain ? bytes : sealed(bytes);
    send_raw(out.data(), out.size());
  }
  bool thrown_out() {
    std::byte byte;
    return recv(socket_.get(), &byte, 1, 0) <= 0;
  }
  int socket() const { return socket_.get(); }
  const Challenge& challenge() const { return challenge_; }
  void hang_up() { socket_.reset(); }

 private:
  mep::UniqueFd socket_;
  PeerSession key_;
  Hello hello_;
  Challenge challenge_;
  RecordKey seal_;
};

inline std::vector<std::byte> frame_bytes(const DataFrame& frame, size_t payload = 0,
                                          std::byte fill = std::byte{0x77}) {
  std::vector<std::byte> bytes(mep::tcp::kSignalBytes);
  bytes.resize(mep::tcp::encode_frame(frame, bytes.data()));
  bytes.insert(bytes.end(), payload, fill);
  return bytes;
}

inline DataFrame put_frame(uint64_t token, uint64_t offset, uint32_t bytes) {
  return {FrameKind::kPut, false, bytes, token, offset, 0};
}
inline DataFrame signal_frame(uint64_t token, uint64_t offset, uint64_t word) {
  return {FrameKind::kSignal, true, 8, token, offset, word};
}

inline bool failed_with(Victim& victim, const PeerIdentity& peer, const char* text) {
  PeerFailure failure;
  if (!eventually([&] { return victim.transport().take_failure(&failure); })) return false;
  const bool right = failure.slot == peer.slot && failure.incarnation == peer.incarnation &&
                     failure.reason.find(text) != std::string::npos;
  if (!right) std::printf("slot %u: %s\n", failure.slot, failure.reason.c_str());
  return right;
}

struct Way {
  Protection protection;
  Cipher cipher;
};

// Those that this build and CPU have.
inline std::vector<Way> sealed_ways() {
  std::vector<Way> ways;
  for (const Cipher cipher : {Cipher::kChaCha20Poly1305, Cipher::kAes256Gcm}) {
    if ((mep::tcp::own_ciphers() & cipher_bit(cipher)) == 0) continue;
    ways.push_back({Protection::kAuthenticated, cipher});
    ways.push_back({Protection::kEncrypted, cipher});
  }
  return ways;
}

inline std::vector<Way> all_ways() {
  std::vector<Way> ways = sealed_ways();
  ways.push_back({Protection::kPlain, Cipher::kChaCha20Poly1305});
  return ways;
}

}  // namespace mep::test
