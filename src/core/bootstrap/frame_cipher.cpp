#include "core/bootstrap/frame_cipher.hpp"

#include <sodium.h>

#include <cstring>

#include "base/status.hpp"

namespace mep {

static_assert(kSealBytes == crypto_secretstream_xchacha20poly1305_ABYTES);

struct FrameSealer::State {
  crypto_secretstream_xchacha20poly1305_state stream;
};

struct FrameOpener::State {
  crypto_secretstream_xchacha20poly1305_state stream;
};

FrameSealer::FrameSealer(const StreamKey& key, StreamHeader* header)
    : state_(std::make_unique<State>()) {
  crypto_secretstream_xchacha20poly1305_init_push(&state_->stream, header->data(), key.data());
}

FrameSealer::~FrameSealer() {
  sodium_memzero(state_.get(), sizeof(State));
}

std::vector<std::byte> FrameSealer::seal(std::span<const std::byte> head,
                                         std::span<const std::byte> body) {
  std::vector<std::byte> plain(head.begin(), head.end());
  plain.insert(plain.end(), body.begin(), body.end());
  const auto length = static_cast<uint32_t>(plain.size() + kSealBytes);
  std::vector<std::byte> sealed(kSealedLengthBytes + length);
  std::memcpy(sealed.data(), &length, sizeof length);
  auto* bytes = reinterpret_cast<unsigned char*>(sealed.data());
  crypto_secretstream_xchacha20poly1305_push(&state_->stream, bytes + kSealedLengthBytes, nullptr,
                                             reinterpret_cast<const unsigned char*>(plain.data()),
                                             plain.size(), bytes, kSealedLengthBytes,
                                             crypto_secretstream_xchacha20poly1305_TAG_MESSAGE);
  return sealed;
}

FrameOpener::FrameOpener(const StreamKey& key, const StreamHeader& header)
    : state_(std::make_unique<State>()) {
  // Fails for no header of the right length.
  (void)crypto_secretstream_xchacha20poly1305_init_pull(&state_->stream, header.data(), key.data());
}

FrameOpener::~FrameOpener() {
  sodium_memzero(state_.get(), sizeof(State));
}

mep_result_t FrameOpener::open(std::span<const std::byte> message, std::vector<std::byte>* out) {
  if (message.size() < kSealBytes) return fail(MEP_ERR_DENIED, "a sealed frame that is too short");
  const auto length = static_cast<uint32_t>(message.size());
  out->resize(message.size() - kSealBytes);
  unsigned char tag = 0;
  if (crypto_secretstream_xchacha20poly1305_pull(
          &state_->stream, reinterpret_cast<unsigned char*>(out->data()), nullptr, &tag,
          reinterpret_cast<const unsigned char*>(message.data()), message.size(),
          reinterpret_cast<const unsigned char*>(&length), sizeof length) != 0 ||
      tag != crypto_secretstream_xchacha20poly1305_TAG_MESSAGE) {
    out->clear();
    return fail(MEP_ERR_DENIED, "a frame was altered, repeated or left out on its way");
  }
  return MEP_SUCCESS;
}

}  // namespace mep
