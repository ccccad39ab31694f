// One side's way from a fresh connection to a peer that is who it says:
//
//   caller    HELLO                    PROOF DETAILS
//   answerer         HELLO PROOF                      DETAILS
//
// On this host the kernel vouches for the peer, and everything is sent open. Between hosts the proof
// is what counts, and everything after it is sealed. Either way both sides end with the same session
// key. The owner of the connection judges the peer's hello before it answers; what a hello from
// another host says may be used for nothing but the answer until kDone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/function_ref.hpp"
#include "core/bootstrap/hello.hpp"

namespace mep {

// The limits of a peer that has not proven itself yet.
constexpr uint64_t kHelloLimitMs = 5000;
constexpr size_t kStrangerPayloadBytes = 8192;

class Greeting {
 public:
  enum class Step {
    kMore,   // wait for the next frame
    kHello,  // answerer: hello() is there; answer() or give up
    kDone,   // the peer has proven itself
    kOther,  // not a frame of the handshake
  };

  // `details` are sent once the peer has proven itself. All that is referred to must stay.
  Greeting(HandshakeSide side, bool is_remote, const JobSecret& secret, const Details& details);

  // The caller's first step.
  [[nodiscard]] mep_result_t call(ControlLink* link, Hello hello);
  // Takes a frame; *step says what to do next. MEP_ERR_DENIED and MEP_ERR_VERSION: this peer is not let in.
  [[nodiscard]] mep_result_t take(ControlLink* link, Frame* frame, Step* step);
  // The answerer's, after kHello.
  [[nodiscard]] mep_result_t answer(ControlLink* link, Hello hello);

  bool is_remote() const { return is_remote_; }
  bool done() const { return state_ == State::kDone; }
  // The own hello has left on the peer's; the peer may take the link for made before this side does.
  bool answered() const { return state_ >= State::kProof; }
  Hello& hello() { return peer_hello_; }
  Details& details() { return peer_details_; }
  std::vector<UniqueFd>& fds() { return fds_; }                  // that came with the hello
  UniqueFd take_death_page() { return std::move(death_page_); }  // that came with the details
  const PeerSession& session() const { return keys_.session(); }

 private:
  enum class State { kHello, kAnswer, kProof, kDetails, kDone };

  std::vector<std::byte> finish_own(Hello* hello) const;
  mep_result_t take_hello(Frame* frame, Step* step);
  mep_result_t take_proof(ControlLink* link, const Frame& frame);
  mep_result_t derive();
  mep_result_t send_proof(ControlLink* link);
  mep_result_t send_details(ControlLink* link);

  const HandshakeSide side_;
  const bool is_remote_;
  const JobSecret& secret_;
  const Details& own_details_;
  State state_ = State::kHello;
  EphemeralKey key_;
  HandshakeKeys keys_;
  std::unique_ptr<FrameSealer> sealer_;
  std::vector<std::byte> own_bytes_;
  std::vector<std::byte> peer_bytes_;
  Hello peer_hello_;
  Details peer_details_;
  std::vector<UniqueFd> fds_;
  UniqueFd death_page_;
};

// A connection whose other end has not said yet who it is.
struct Connection {
  UniqueFd socket;
  PeerCredentials credentials;
  uint64_t incarnation = 0;  // the one that was looked for; 0: any
};

// Somebody who connected and has not proven itself. `secret` and `details` must stay.
struct Incoming {
  Incoming(Connection&& connection, const JobSecret& secret, const Details& details);
  // Hands its frames to `handler`, if it is readable, until that answers false. False: it is done with, since the
  // handler says so, its stream has ended or makes no sense, or it has not proven itself by `limit`.
  bool serve(FunctionRef<bool(Frame&)> handler, bool is_readable = true);

  std::unique_ptr<ControlLink> link;
  std::unique_ptr<Greeting> greeting;
  PeerCredentials credentials;
  Deadline limit = Deadline::after_ms(kHelloLimitMs);
};

// A peer that has proven itself on `link`, as a world takes it.
PeerLink make_peer_link(std::unique_ptr<ControlLink> link, Greeting* greeting,
                        const SelfDescription& self, const PeerCredentials& credentials);

}  // namespace mep
