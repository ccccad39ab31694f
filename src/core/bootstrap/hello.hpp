// The bootstrap's own frames: what ranks say to each other before they are a world.
//
//   kHelloFrame     the first frame of the side that connects, and the first answer of the other side
//   kProofFrame     proves that the sender knows the job's secret and both hellos
//   kDetailsFrame   addresses and offer of the sender, for a peer that has proven itself
//   kAbortFrame     this start has failed on all ranks, or the sender refuses this peer: code, the rank that found
//                   it, text
//   kRetryFrame     not now, ask again: most often the answering rank is in an earlier world of the same job
//   kReadyFrame     the sender has its links to all ranks
//   kAnnounceFrame  an abort for a rank of another host to which the sender has no link
//   kEntriesFrame   to and from a meeting point, which serves a rendezvous by address: places of ranks
//
// A hello begins with the protocol version, so that ranks of different versions can say so. Nothing
// that came over a network is believed before its sender's proof was right.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/bootstrap/bootstrap.hpp"
#include "core/bootstrap/control_link.hpp"
#include "core/bootstrap/handshake.hpp"
#include "core/bootstrap/local_socket.hpp"
#include "core/bootstrap/net_address.hpp"
#include "core/membership/slot_set.hpp"
#include "mep.h"

namespace mep {

constexpr uint32_t kProtocolVersion = 4;
constexpr size_t kMaxJobBytes = 255;
constexpr size_t kMaxOfferBytes = 4096;  // of the transports' addresses
constexpr size_t kMaxAbortTextBytes = 900;
constexpr int32_t kMaxRanks = membership::kMaxSlots;

enum BootstrapFrame : uint16_t {
  kHelloFrame = 1,
  kAbortFrame = 2,
  kRetryFrame = 3,
  kReadyFrame = 4,
  kProofFrame = 5,
  kDetailsFrame = 6,
  kAnnounceFrame = 7,
  kEntriesFrame = 8,
};

enum class HelloKind : uint8_t {
  kInit = 1,    // from a rank that starts together with all others
  kJoin = 2,    // from a joiner to a running job
  kMember = 3,  // a rank's answer to kInit or kJoin
  kMeet = 4,    // to a meeting point, and the meeting point's answer
};

struct Hello {
  HelloKind kind = HelloKind::kInit;
  int32_t size = 0;  // 0 in a joiner's hello: it takes what the members say
  int32_t max_size = 0;
  uint32_t library_version = 0;
  std::string job;
  PeerIdentity identity;  // identity.slot is the rank
  bool has_secret = false;
  PublicKey key{};  // made for this connection alone
};

Hello make_hello(HelloKind kind, const ResolvedConfig& config, const SelfDescription& self);
std::vector<std::byte> encode_hello(const Hello& hello);
// MEP_ERR_VERSION: another protocol; MEP_ERR_DENIED: malformed. Texts do not name the sender.
[[nodiscard]] mep_result_t decode_hello(std::span<const std::byte> payload, Hello* hello);

// Sends an encoded hello. To a peer on this host a pidfd of this process goes with it, if the kernel gives one.
[[nodiscard]] mep_result_t send_hello(ControlLink* link, std::span<const std::byte> hello,
                                      bool is_remote);

// How a rank is reached. Only a peer that has proven itself gets it.
struct Details {
  std::vector<NetAddress> addresses;  // of its listener for other hosts; empty: it has none
  std::vector<std::byte> offer;
  std::shared_ptr<DeathPage> death_page;  // own: its descriptor goes to peers on this host; or null
};
std::vector<std::byte> encode_details(const Details& details);
bool decode_details(std::span<const std::byte> payload, Details* details);
// Sends details, to a peer on this host with the death page.
[[nodiscard]] mep_result_t send_details(ControlLink* link, const Details& details, bool is_remote);

// Checks what both sides of a link must agree on; `who` names the peer in the text.
[[nodiscard]] mep_result_t check_hello(const Hello& hello, const Hello& own,
                                       const std::string& who);

// A pidfd of the peer: the one that came with its hello (in `fds`), else one opened by its pid. Invalid: the peer
// is this process or on another host, or the kernel gives none.
UniqueFd adopt_pidfd(const Hello& hello, const SelfDescription& self, std::vector<UniqueFd>* fds,
                     const PeerCredentials& credentials);

struct Abort {
  mep_result_t code = MEP_ERR_BOOTSTRAP;
  int32_t sender = -1;  // rank that sends this frame; may only pass the failure on
  int32_t origin = -1;  // rank that found the failure
  std::string text;
};

std::vector<std::byte> encode_abort(const Abort& abort);
// False: malformed. The text is made printable and the code an error.
bool decode_abort(std::span<const std::byte> payload, Abort* abort);
// Refuses the other end with the thread's last error text, and answers that text. `rank` is the sender; -1: none.
std::string send_abort(ControlLink* link, mep_result_t code, int32_t rank);

// An abort for a rank to which there is no link, addressed to its incarnation `target` and sealed with the
// job's secret. decode: `self` is this rank's incarnation. False: malformed, for another incarnation, or the sender
// does not know the secret.
std::vector<std::byte> encode_announcement(const Abort& abort, uint64_t target,
                                           const JobSecret& secret);
bool decode_announcement(std::span<const std::byte> payload, uint64_t self, const JobSecret& secret,
                         Abort* abort);

// "rank 3 (pid 4711)" on this host, else "rank 3 (10.0.0.1:7000)".
std::string name_peer(int32_t rank, const PeerCredentials& credentials);

}  // namespace mep
