// The arithmetic of a handshake: from two hellos and the job's secret to keys that only the two
// ends have. docs/design/handshake.md has it byte by byte.
//
//   T  = BLAKE2b-256("MEP handshake" | length and bytes of the caller's hello | the answerer's)
//   K  = BLAKE2b-512, key: the job's secret,  of  "MEP keys" | X25519(own, other) | T
//   each key = BLAKE2b-256, key: K,  of  its label
//   proof    = BLAKE2b-256, key: the proving side's proof key,  of  T | its stream header
//
// Both hellos name their sender (slot, incarnation, job, protocol) and bring a key made for this
// connection alone, so nothing of another connection fits.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "core/bootstrap/job_secret.hpp"
#include "mep.h"
#include "transport/transport.hpp"

namespace mep {

constexpr size_t kPublicKeyBytes = 32;
constexpr size_t kProofBytes = 32;
constexpr size_t kStreamKeyBytes = 32;

using StreamKey = std::array<unsigned char, kStreamKeyBytes>;
using StreamHeader = std::array<unsigned char, 24>;
using PublicKey = std::array<std::byte, kPublicKeyBytes>;

// Once a process; any thread.
[[nodiscard]] mep_result_t prepare_crypto();

void wipe(void* memory, size_t bytes);
void random_bytes(void* memory, size_t bytes);
// In a time that does not depend on the bytes.
bool equal_secrets(std::span<const std::byte> left, std::span<const std::byte> right);
// BLAKE2b-256 with the job's secret as its key.
std::array<std::byte, kProofBytes> seal_with_secret(const JobSecret& secret,
                                                    std::span<const std::byte> message);

// A key pair for one connection.
class EphemeralKey {
 public:
  EphemeralKey();
  ~EphemeralKey();
  EphemeralKey(const EphemeralKey&) = delete;
  EphemeralKey& operator=(const EphemeralKey&) = delete;
  const PublicKey& public_key() const { return public_key_; }

 private:
  friend class HandshakeKeys;
  std::array<unsigned char, 32> private_key_{};
  PublicKey public_key_{};
};

enum class HandshakeSide { kCaller, kAnswerer };

class HandshakeKeys {
 public:
  HandshakeKeys() = default;
  ~HandshakeKeys();
  HandshakeKeys(const HandshakeKeys&) = delete;
  HandshakeKeys& operator=(const HandshakeKeys&) = delete;

  // MEP_ERR_DENIED: the peer's key is one of those that make no secret.
  [[nodiscard]] mep_result_t derive(const EphemeralKey& own, const PublicKey& peer,
                                    std::span<const std::byte> caller_hello,
                                    std::span<const std::byte> answerer_hello,
                                    const JobSecret& secret);

  std::array<std::byte, kProofBytes> proof_of(HandshakeSide side, const StreamHeader& header) const;
  const StreamKey& key_from(HandshakeSide side) const {
    return side == HandshakeSide::kCaller ? from_caller_ : from_answerer_;
  }
  const PeerSession& session() const { return session_; }

 private:
  std::array<unsigned char, 32> transcript_{};
  StreamKey from_caller_{};
  StreamKey from_answerer_{};
  StreamKey caller_proof_{};
  StreamKey answerer_proof_{};
  PeerSession session_;
};

}  // namespace mep
