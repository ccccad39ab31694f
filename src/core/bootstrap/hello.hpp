// The bootstrap's own frames: what ranks say to each other before they are a world.
//
//   kHello    first frame of whoever connects; the answer of whoever takes it in
//   kProof    the sender knows the job's secret and both hellos
//   kDetails  where and how the sender is reached: only for who has proven itself
//   kAbort    this start has failed, everywhere: code, who found it, text
//   kRetry    not now: the answering rank is busy with an earlier world of the same job
//   kReady    the sender has its links to all ranks
//   kAnnounce an abort for a rank of another host that there is no link to
//   kPlaces   at a meeting point: where ranks are
//
// A hello begins with the protocol version, so that versions which differ can still tell each
// other. Until a proof was right nothing that came over a network is believed.
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

constexpr uint32_t kProtocolVersion = 2;
constexpr size_t kMaxJobBytes = 255;
constexpr size_t kMaxOfferBytes = 4096;
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
  kMember = 3,  // the answer
  kMeet = 4,    // to a meeting point, and its answer
};

struct Hello {
  HelloKind kind = HelloKind::kInit;
  int32_t size = 0;  // 0 in a joiner's hello: it takes what the members say
  int32_t max_size = 0;
  uint32_t library_version = 0;
  std::string job;
  PeerIdentity identity;  // identity.slot is the rank
  bool has_secret = false;
  PublicKey key{};  // of this connection alone
};

Hello make_hello(HelloKind kind, const ResolvedConfig& config, const SelfDescription& self);
std::vector<std::byte> encode_hello(const Hello& hello);
// MEP_ERR_VERSION: another protocol; MEP_ERR_DENIED: malformed. Texts do not name the sender.
[[nodiscard]] mep_result_t decode_hello(std::span<const std::byte> payload, Hello* hello);

// Sends an encoded hello; on this host with a descriptor of this process, where it can be had.
[[nodiscard]] mep_result_t send_hello(ControlLink* link, std::span<const std::byte> hello,
                                      bool is_remote);

// A rank's statement for peers that have proven themselves, and for nobody else.
struct Details {
  std::vector<NetAddress> addresses;  // of its listener for other hosts; empty: it has none
  std::vector<std::byte> offer;
};
std::vector<std::byte> encode_details(const Details& details);
bool decode_details(std::span<const std::byte> payload, Details* details);

// Checks what both sides of a link must agree on; `who` names the peer in the text.
[[nodiscard]] mep_result_t check_hello(const Hello& hello, const Hello& own,
                                       const std::string& who);

// The peer's process, from its hello or else by its pid; invalid when it is this process or neither
// can be had.
UniqueFd adopt_pidfd(const Hello& hello, const SelfDescription& self, std::vector<UniqueFd>* fds,
                     const PeerCredentials& credentials);

struct Abort {
  mep_result_t code = MEP_ERR_BOOTSTRAP;
  int32_t sender = -1;  // rank that passes it on
  int32_t origin = -1;  // rank that found it
  std::string text;
};

std::vector<std::byte> encode_abort(const Abort& abort);
// False: malformed. The text is made printable and the code an error.
bool decode_abort(std::span<const std::byte> payload, Abort* abort);

// An abort for the incarnation `target` of a rank that there is no link to, sealed with the job's
// secret. False: it is not for this incarnation, or not of somebody who knows the secret.
std::vector<std::byte> encode_announcement(const Abort& abort, uint64_t target,
                                           const JobSecret& secret);
bool decode_announcement(std::span<const std::byte> payload, uint64_t self, const JobSecret& secret,
                         Abort* abort);

// "rank 3 (pid 4711)", "rank 3 (10.0.0.1:7000)".
std::string name_peer(int32_t rank, const PeerCredentials& credentials);

}  // namespace mep
