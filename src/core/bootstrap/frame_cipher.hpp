// Frames of a link between hosts after its handshake: u32 length of what follows, then the frame
// (header and payload) as one message of a secretstream (XChaCha20-Poly1305), whose state makes a
// message that is altered, repeated, left out or moved fail to open. The length is authenticated
// with it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "core/bootstrap/handshake.hpp"
#include "mep.h"

namespace mep {

constexpr size_t kSealedLengthBytes = sizeof(uint32_t);
constexpr size_t kSealBytes = 17;  // of the secretstream, per message

class FrameSealer {
 public:
  // Makes the stream's header, which the peer must have to open anything.
  explicit FrameSealer(const StreamKey& key, StreamHeader* header);
  ~FrameSealer();
  FrameSealer(const FrameSealer&) = delete;
  FrameSealer& operator=(const FrameSealer&) = delete;
  // The length and the sealed bytes of `head` and `body` together.
  std::vector<std::byte> seal(std::span<const std::byte> head, std::span<const std::byte> body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class FrameOpener {
 public:
  FrameOpener(const StreamKey& key, const StreamHeader& header);
  ~FrameOpener();
  FrameOpener(const FrameOpener&) = delete;
  FrameOpener& operator=(const FrameOpener&) = delete;
  // `message`: what follows the length. MEP_ERR_DENIED: it is not the next one of this stream.
  [[nodiscard]] mep_result_t open(std::span<const std::byte> message, std::vector<std::byte>* out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mep
