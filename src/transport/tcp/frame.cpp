#include "transport/tcp/frame.hpp"

#include <cstring>

namespace mep::tcp {
namespace {

constexpr uint16_t kFrameMagic = 0x4d54;
constexpr uint64_t kHelloMagic = 0x335043542d50454d;      // "MEP-TCP3"
constexpr uint64_t kChallengeMagic = 0x344843542d50454d;  // "MEP-TCH4"
constexpr uint8_t kWakeFlag = 1;

template <typename Number>
Number read_at(std::span<const std::byte> bytes, size_t at) {
  Number value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

template <typename Number>
void write_at(std::byte* out, size_t at, Number value) {
  std::memcpy(out + at, &value, sizeof value);
}

bool is_protection(uint32_t value) {
  return value <= static_cast<uint32_t>(Protection::kEncrypted);
}
bool is_cipher(uint32_t value) {
  return value <= static_cast<uint32_t>(Cipher::kAes256Gcm);
}
bool is_streams(uint8_t count) {
  return count >= 1 && count <= kMaxStreams;
}
bool is_cipher_set(CipherSet set) {
  return (set & ~kAllCiphers) == 0 && (set & kCommonCiphers) == kCommonCiphers;
}

}  // namespace

size_t encode_frame(const DataFrame& frame, std::byte* out) {
  write_at(out, 0, kFrameMagic);
  write_at(out, 2, static_cast<uint8_t>(frame.kind));
  write_at(out, 3, frame.wake ? kWakeFlag : uint8_t{0});
  write_at(out, 4, frame.bytes);
  write_at(out, 8, frame.token);
  write_at(out, 16, frame.offset);
  if (frame.kind != FrameKind::kSignal) return kFrameHeaderBytes;
  write_at(out, kFrameHeaderBytes, frame.word);
  return kSignalBytes;
}

Parse parse_frame(std::span<const std::byte> bytes, DataFrame* out, size_t* used) {
  if (bytes.size() < kFrameHeaderBytes) return Parse::kIncomplete;
  if (read_at<uint16_t>(bytes, 0) != kFrameMagic) return Parse::kMalformed;
  const auto kind = read_at<uint8_t>(bytes, 2);
  const auto flags = read_at<uint8_t>(bytes, 3);
  DataFrame frame;
  frame.bytes = read_at<uint32_t>(bytes, 4);
  frame.token = read_at<uint64_t>(bytes, 8);
  frame.offset = read_at<uint64_t>(bytes, 16);
  if (frame.offset + frame.bytes < frame.offset) return Parse::kMalformed;
  switch (kind) {
    case static_cast<uint8_t>(FrameKind::kPut):
    case static_cast<uint8_t>(FrameKind::kTarget):
      if (flags != 0 || frame.bytes == 0 || frame.bytes > kMaxPutBytes) return Parse::kMalformed;
      frame.kind = static_cast<FrameKind>(kind);
      *used = kFrameHeaderBytes;
      break;
    case static_cast<uint8_t>(FrameKind::kSignal):
      if ((flags & ~kWakeFlag) != 0 || frame.bytes != sizeof frame.word) return Parse::kMalformed;
      if (frame.offset % sizeof frame.word != 0) return Parse::kMalformed;
      if (bytes.size() < kSignalBytes) return Parse::kIncomplete;
      frame.kind = FrameKind::kSignal;
      frame.wake = flags != 0;
      frame.word = read_at<uint64_t>(bytes, kFrameHeaderBytes);
      *used = kSignalBytes;
      break;
    case static_cast<uint8_t>(FrameKind::kMark):
      if (flags != 0 || frame.bytes != 0 || frame.token != 0) return Parse::kMalformed;
      frame.kind = FrameKind::kMark;
      *used = kFrameHeaderBytes;
      break;
    case static_cast<uint8_t>(FrameKind::kAfter):
      if (flags != 0 || frame.bytes != 0) return Parse::kMalformed;
      frame.kind = FrameKind::kAfter;
      *used = kFrameHeaderBytes;
      break;
    default:
      return Parse::kMalformed;
  }
  *out = frame;
  return Parse::kComplete;
}

void encode_record_header(size_t body_bytes, std::byte* out) {
  write_at(out, 0, static_cast<uint32_t>(body_bytes));
}

Parse parse_record_header(std::span<const std::byte> bytes, size_t* body_bytes) {
  if (bytes.size() < kRecordHeaderBytes) return Parse::kIncomplete;
  const auto length = read_at<uint32_t>(bytes, 0);
  if (length == 0 || length > kMaxRecordBodyBytes) return Parse::kMalformed;
  *body_bytes = length;
  return Parse::kComplete;
}

void encode_hello(const Hello& hello, std::byte* out) {
  write_at(out, 0, kHelloMagic);
  write_at(out, 8, hello.from_slot);
  write_at(out, 12, hello.to_slot);
  write_at(out, 16, hello.from_incarnation);
  write_at(out, 24, hello.to_incarnation);
  write_at(out, 32, static_cast<uint8_t>(hello.wanted));
  write_at(out, 33, hello.streams);
  write_at(out, 34, hello.stream);
  write_at(out, 35, uint8_t{0});
  write_at(out, 36, hello.ciphers);
  std::memcpy(out + 40, hello.nonce.data(), hello.nonce.size());
}

Parse parse_hello(std::span<const std::byte> bytes, Hello* out) {
  if (bytes.size() < kHelloBytes) return Parse::kIncomplete;
  const auto wanted = read_at<uint8_t>(bytes, 32);
  const auto streams = read_at<uint8_t>(bytes, 33);
  const auto stream = read_at<uint8_t>(bytes, 34);
  const auto ciphers = read_at<CipherSet>(bytes, 36);
  if (read_at<uint64_t>(bytes, 0) != kHelloMagic || !is_protection(wanted) ||
      !is_streams(streams) || stream >= streams || read_at<uint8_t>(bytes, 35) != 0 ||
      !is_cipher_set(ciphers)) {
    return Parse::kMalformed;
  }
  out->from_slot = read_at<uint32_t>(bytes, 8);
  out->to_slot = read_at<uint32_t>(bytes, 12);
  out->from_incarnation = read_at<uint64_t>(bytes, 16);
  out->to_incarnation = read_at<uint64_t>(bytes, 24);
  out->wanted = static_cast<Protection>(wanted);
  out->streams = streams;
  out->stream = stream;
  out->ciphers = ciphers;
  std::memcpy(out->nonce.data(), bytes.data() + 40, out->nonce.size());
  return Parse::kComplete;
}

void encode_challenge(const Challenge& challenge, std::byte* out) {
  write_at(out, 0, kChallengeMagic);
  write_at(out, 8, static_cast<uint32_t>(challenge.chosen));
  write_at(out, 12, static_cast<uint8_t>(challenge.cipher));
  write_at(out, 13, challenge.streams);
  write_at(out, 14, uint16_t{0});
  std::memcpy(out + 16, challenge.nonce.data(), challenge.nonce.size());
  std::memcpy(out + 48, challenge.proof.data(), challenge.proof.size());
}

Parse parse_challenge(std::span<const std::byte> bytes, Challenge* out) {
  if (bytes.size() < kChallengeBytes) return Parse::kIncomplete;
  const auto chosen = read_at<uint32_t>(bytes, 8);
  const auto cipher = read_at<uint8_t>(bytes, 12);
  const auto streams = read_at<uint8_t>(bytes, 13);
  if (read_at<uint64_t>(bytes, 0) != kChallengeMagic || !is_protection(chosen) ||
      !is_cipher(cipher) || !is_streams(streams) || read_at<uint16_t>(bytes, 14) != 0) {
    return Parse::kMalformed;
  }
  out->chosen = static_cast<Protection>(chosen);
  out->cipher = static_cast<Cipher>(cipher);
  out->streams = streams;
  std::memcpy(out->nonce.data(), bytes.data() + 16, out->nonce.size());
  std::memcpy(out->proof.data(), bytes.data() + 48, out->proof.size());
  return Parse::kComplete;
}

}  // namespace mep::tcp
