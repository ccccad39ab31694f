// Bytes that come over a TCP data connection. First byte: which parser.
#include "fuzz/fuzz_target.hpp"
#include "transport/tcp/address.hpp"
#include "transport/tcp/frame.hpp"

namespace fuzz {
namespace {

void put(const Sink& sink, const char* name, unsigned char kind, const std::byte* bytes,
         size_t count) {
  std::vector<std::byte> input{std::byte{kind}};
  input.insert(input.end(), bytes, bytes + count);
  sink(name, input);
}

}  // namespace

void one(std::span<const std::byte> input) {
  if (input.empty()) return;
  auto bytes = input.subspan(1);
  switch (static_cast<unsigned>(input[0]) % 5) {
    case 0:
      for (;;) {
        mep::tcp::DataFrame frame;
        size_t used = 0;
        if (mep::tcp::parse_frame(bytes, &frame, &used) != mep::tcp::Parse::kComplete) return;
        require(used >= mep::tcp::kFrameHeaderBytes && used <= bytes.size());
        require(frame.bytes <= mep::tcp::kMaxPutBytes &&
                frame.offset + frame.bytes >= frame.offset);
        if (frame.kind == mep::tcp::FrameKind::kSignal) require(frame.offset % 8 == 0);
        const bool has_data =
            frame.kind == mep::tcp::FrameKind::kPut || frame.kind == mep::tcp::FrameKind::kTarget;
        const size_t data = has_data ? frame.bytes : 0;
        if (used + data > bytes.size()) return;
        bytes = bytes.subspan(used + data);
      }
    case 1: {
      size_t body = 0;
      if (mep::tcp::parse_record_header(bytes, &body) == mep::tcp::Parse::kComplete) {
        require(body <= mep::tcp::kMaxRecordBodyBytes);
      }
      return;
    }
    case 2: {
      mep::tcp::Hello hello;
      if (mep::tcp::parse_hello(bytes, &hello) == mep::tcp::Parse::kComplete) {
        require(bytes.size() >= mep::tcp::kHelloBytes);
      }
      return;
    }
    case 3: {
      mep::tcp::Challenge challenge;
      if (mep::tcp::parse_challenge(bytes, &challenge) == mep::tcp::Parse::kComplete) {
        require(bytes.size() >= mep::tcp::kChallengeBytes);
      }
      return;
    }
    default: {
      std::vector<mep::tcp::Address> addresses;
      (void)mep::tcp::parse_addresses(bytes, &addresses);
      return;
    }
  }
}

void seeds(const Sink& sink) {
  std::byte buffer[256] = {};
  mep::tcp::DataFrame frame{mep::tcp::FrameKind::kPut, false, 16, 5, 64, 0};
  put(sink, "put", 0, buffer, mep::tcp::encode_frame(frame, buffer) + 16);
  frame = {mep::tcp::FrameKind::kSignal, true, 8, 5, 64, 77};
  put(sink, "signal", 0, buffer, mep::tcp::encode_frame(frame, buffer));
  frame = {mep::tcp::FrameKind::kMark, false, 0, 0, 3, 0};
  put(sink, "mark", 0, buffer, mep::tcp::encode_frame(frame, buffer));
  frame = {mep::tcp::FrameKind::kAfter, false, 0, 1, 262144, 0};
  put(sink, "after", 0, buffer, mep::tcp::encode_frame(frame, buffer));
  mep::tcp::encode_record_header(100, buffer);
  put(sink, "record", 1, buffer, mep::tcp::kRecordHeaderBytes);
  mep::tcp::Hello hello;
  hello.from_incarnation = hello.to_incarnation = 9;
  mep::tcp::encode_hello(hello, buffer);
  put(sink, "hello", 2, buffer, mep::tcp::kHelloBytes);
  mep::tcp::encode_challenge({}, buffer);
  put(sink, "challenge", 3, buffer, mep::tcp::kChallengeBytes);
  const std::byte none[1] = {};
  put(sink, "addresses", 4, none, 1);
}

}  // namespace fuzz
