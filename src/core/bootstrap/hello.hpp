// The bootstrap's own frames: what ranks say to each other before they are a world.
//
//   kHello   first frame of whoever connects; the answer of whoever takes it in
//   kAbort   this start has failed, everywhere: code, who found it, text
//   kRetry   not now: the answering rank is busy with an earlier world of the same job
//   kReady   the sender has its links to all ranks
//
// A hello begins with the protocol version, so that versions which differ can still tell each
// other.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/bootstrap/bootstrap.hpp"
#include "core/bootstrap/control_link.hpp"
#include "core/bootstrap/local_socket.hpp"
#include "mep.h"

namespace mep {

constexpr uint32_t kProtocolVersion = 1;
constexpr size_t kMaxJobBytes = 255;
constexpr size_t kMaxOfferBytes = 4096;
constexpr size_t kMaxAbortTextBytes = 900;
constexpr int32_t kMaxRanks = 1 << 16;

enum BootstrapFrame : uint16_t {
  kHelloFrame = 1,
  kAbortFrame = 2,
  kRetryFrame = 3,
  kReadyFrame = 4,
};

enum class HelloKind : uint8_t {
  kInit = 1,    // from a rank that starts together with all others
  kJoin = 2,    // from a newcomer to a running job
  kMember = 3,  // the answer
};

struct Hello {
  HelloKind kind = HelloKind::kInit;
  int32_t size = 0;  // 0 in a newcomer's hello: it takes what the members say
  int32_t max_size = 0;
  uint32_t library_version = 0;
  std::string job;
  PeerIdentity identity;  // identity.slot is the rank
  std::vector<std::byte> offer;
};

Hello make_hello(HelloKind kind, const ResolvedConfig& config, const SelfDescription& self);
std::vector<std::byte> encode_hello(const Hello& hello);
// MEP_ERR_VERSION: another protocol; MEP_ERR_DENIED: malformed. Texts do not name the sender.
[[nodiscard]] mep_result_t decode_hello(std::span<const std::byte> payload, Hello* hello);

// Sends the hello with a descriptor of this process, without it where none can be had.
[[nodiscard]] mep_result_t send_hello(ControlLink* link, const Hello& hello);

// What both sides of a link must agree on; `who` names the peer in the text.
[[nodiscard]] mep_result_t check_hello(const Hello& hello, const Hello& own,
                                       const std::string& who);

// The peer's process, from its hello or else by its pid; invalid when it is this process or neither
// can be had.
UniqueFd adopt_pidfd(const Hello& hello, const SelfDescription& self, Frame* frame,
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

// "rank 3 (pid 4711)".
std::string name_peer(int32_t rank, const PeerCredentials& credentials);

}  // namespace mep
