// The bytes that travel on a TCP connection between two ranks. Pure functions: they look at bytes that
// anybody may have sent and touch nothing else.
//
//   greeting   hello (to the acceptor), challenge (back), proof (to the acceptor)
//   then       frames, in plain or as the contents of records
//   record     u32 body bytes | body | 16 bytes tag      the body is a slice of the stream of frames
//   frame      u16 magic, u8 kind, u8 flags, u32 bytes, u64 token, u64 offset     then
//                put     `bytes` bytes for the window that `token` names, at `offset`
//                signal  a u64 word for the window, at `offset` (a multiple of 8)
//                target  as a put, to the memory whose number is `token`
//                mark    nothing; `offset` is a number that the receiver notes
//                after   nothing; what follows waits until `offset` bytes of puts came on connection `token`
//
// Little endian: both ends share a byte order or refuse each other in the hello, by its magic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace mep::tcp {

enum class Parse : uint8_t { kIncomplete, kComplete, kMalformed };

// --- Frames ---------------------------------------------------------------------------------------

enum class FrameKind : uint8_t { kPut = 1, kSignal = 2, kMark = 3, kTarget = 4, kAfter = 5 };

struct DataFrame {
  FrameKind kind = FrameKind::kPut;
  bool wake = false;   // of a signal: wakes the target's threads
  uint32_t bytes = 0;  // of a put, or to a target: what follows the header; of a signal: 8
  uint64_t token = 0;
  uint64_t offset = 0;
  uint64_t word = 0;  // of a signal
};

constexpr size_t kFrameHeaderBytes = 24;
constexpr size_t kSignalBytes = kFrameHeaderBytes + sizeof(uint64_t);
constexpr uint32_t kMaxPutBytes = uint32_t{1} << 30;

// Writes the header, and of a signal its word too; returns how many bytes that were.
size_t encode_frame(const DataFrame& frame, std::byte* out);
// Looks at the beginning of `bytes`. kComplete: *out holds the header (of a signal also its word) and
// *used says how many bytes that were; the data of a put follow them. offset + bytes do not overflow.
Parse parse_frame(std::span<const std::byte> bytes, DataFrame* out, size_t* used);

// --- Records --------------------------------------------------------------------------------------

constexpr size_t kRecordHeaderBytes = 4;
constexpr size_t kRecordTagBytes = 16;
constexpr size_t kMaxRecordBodyBytes = size_t{64} << 10;

void encode_record_header(size_t body_bytes, std::byte* out);
// kComplete: the header is there and right; the body may not be there yet.
Parse parse_record_header(std::span<const std::byte> bytes, size_t* body_bytes);

// --- The greeting ---------------------------------------------------------------------------------

// How frames travel. The stronger of what both sides want holds.
enum class Protection : uint8_t { kPlain = 0, kAuthenticated = 1, kEncrypted = 2 };

// Ciphers of records, the better one later. Each library makes the same bytes by one.
enum class Cipher : uint8_t { kChaCha20Poly1305 = 0, kAes256Gcm = 1 };
using CipherSet = uint32_t;  // 1 << Cipher
constexpr CipherSet cipher_bit(Cipher cipher) {
  return CipherSet{1} << static_cast<uint32_t>(cipher);
}
constexpr CipherSet kAllCiphers =
    cipher_bit(Cipher::kChaCha20Poly1305) | cipher_bit(Cipher::kAes256Gcm);
constexpr CipherSet kCommonCiphers = cipher_bit(Cipher::kChaCha20Poly1305);  // every rank has them

// Connections of a pair of ranks.
constexpr uint8_t kMaxStreams = 8;

using Nonce = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;

struct Hello {
  uint32_t from_slot = 0;
  uint32_t to_slot = 0;
  uint64_t from_incarnation = 0;
  uint64_t to_incarnation = 0;
  Protection wanted = Protection::kPlain;
  uint8_t streams = 1;                 // that the connector wants
  uint8_t stream = 0;                  // which of them this is
  CipherSet ciphers = kCommonCiphers;  // that the connector has
  Nonce nonce{};
};
struct Challenge {
  Protection chosen = Protection::kPlain;
  Cipher cipher = Cipher::kChaCha20Poly1305;  // the best that both have
  uint8_t streams = 1;                        // the fewer of what both want
  Nonce nonce{};
  Proof proof{};  // of the acceptor
};

constexpr size_t kHelloBytes = 72;
constexpr size_t kChallengeBytes = 80;
constexpr size_t kProofBytes = 32;

void encode_hello(const Hello& hello, std::byte* out);
Parse parse_hello(std::span<const std::byte> bytes, Hello* out);
void encode_challenge(const Challenge& challenge, std::byte* out);
Parse parse_challenge(std::span<const std::byte> bytes, Challenge* out);

}  // namespace mep::tcp
