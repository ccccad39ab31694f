#include "core/bootstrap/handshake.hpp"

#include <sodium.h>

#include <cstring>
#include <mutex>

#include "base/fork_hold.hpp"
#include "base/status.hpp"

namespace mep {
namespace {

static_assert(sizeof(PublicKey) == crypto_scalarmult_BYTES);
static_assert(kStreamKeyBytes == crypto_secretstream_xchacha20poly1305_KEYBYTES);
static_assert(sizeof(StreamHeader) == crypto_secretstream_xchacha20poly1305_HEADERBYTES);

constexpr char kTranscriptLabel[] = "MEP handshake";
constexpr char kKeysLabel[] = "MEP keys";

const unsigned char* as_bytes(const void* memory) {
  return static_cast<const unsigned char*>(memory);
}

void add_text(crypto_generichash_state* state, const char* text) {
  crypto_generichash_update(state, as_bytes(text), std::strlen(text));
}

void add_block(crypto_generichash_state* state, std::span<const std::byte> block) {
  const uint32_t length = static_cast<uint32_t>(block.size());
  crypto_generichash_update(state, as_bytes(&length), sizeof length);
  crypto_generichash_update(state, as_bytes(block.data()), block.size());
}

using MasterKey = std::array<unsigned char, crypto_generichash_KEYBYTES_MAX>;

template <typename Key>
void make_key(const MasterKey& master, const char* label, Key* out) {
  crypto_generichash(reinterpret_cast<unsigned char*>(out->data()), out->size(), as_bytes(label),
                     std::strlen(label), master.data(), master.size());
}

}  // namespace

mep_result_t prepare_crypto() {
  const ForkHold hold;
  static std::once_flag once;
  static bool ready = false;
  std::call_once(once, [] { ready = sodium_init() >= 0; });
  if (ready) return MEP_SUCCESS;
  return fail(MEP_ERR_SYSTEM, "libsodium finds no source of random numbers");
}

void wipe(void* memory, size_t bytes) {
  sodium_memzero(memory, bytes);
}

void random_bytes(void* memory, size_t bytes) {
  randombytes_buf(memory, bytes);
}

bool equal_secrets(std::span<const std::byte> left, std::span<const std::byte> right) {
  return left.size() == right.size() && sodium_memcmp(left.data(), right.data(), left.size()) == 0;
}

std::array<std::byte, kProofBytes> seal_with_secret(const JobSecret& secret,
                                                    std::span<const std::byte> message) {
  std::array<std::byte, kProofBytes> seal;
  crypto_generichash(reinterpret_cast<unsigned char*>(seal.data()), seal.size(),
                     as_bytes(message.data()), message.size(), secret.key().data(),
                     secret.key().size());
  return seal;
}

EphemeralKey::EphemeralKey() {
  randombytes_buf(private_key_.data(), private_key_.size());
  crypto_scalarmult_base(reinterpret_cast<unsigned char*>(public_key_.data()), private_key_.data());
}

EphemeralKey::~EphemeralKey() {
  sodium_memzero(private_key_.data(), private_key_.size());
}

HandshakeKeys::~HandshakeKeys() {
  for (StreamKey* key : {&from_caller_, &from_answerer_, &caller_proof_, &answerer_proof_}) {
    sodium_memzero(key->data(), key->size());
  }
  sodium_memzero(session_.key.data(), session_.key.size());
}

mep_result_t HandshakeKeys::derive(const EphemeralKey& own, const PublicKey& peer,
                                   std::span<const std::byte> caller_hello,
                                   std::span<const std::byte> answerer_hello,
                                   const JobSecret& secret) {
  std::array<unsigned char, crypto_scalarmult_BYTES> shared{};
  if (crypto_scalarmult(shared.data(), own.private_key_.data(), as_bytes(peer.data())) != 0) {
    return fail(MEP_ERR_DENIED, "a public key that makes no secret");
  }
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, transcript_.size());
  add_text(&state, kTranscriptLabel);
  add_block(&state, caller_hello);
  add_block(&state, answerer_hello);
  crypto_generichash_final(&state, transcript_.data(), transcript_.size());

  MasterKey master;
  crypto_generichash_init(&state, secret.key().data(), secret.key().size(), master.size());
  add_text(&state, kKeysLabel);
  crypto_generichash_update(&state, shared.data(), shared.size());
  crypto_generichash_update(&state, transcript_.data(), transcript_.size());
  crypto_generichash_final(&state, master.data(), master.size());
  make_key(master, "session", &session_.key);
  make_key(master, "caller to answerer", &from_caller_);
  make_key(master, "answerer to caller", &from_answerer_);
  make_key(master, "caller proof", &caller_proof_);
  make_key(master, "answerer proof", &answerer_proof_);
  sodium_memzero(&state, sizeof state);
  sodium_memzero(master.data(), master.size());
  sodium_memzero(shared.data(), shared.size());
  return MEP_SUCCESS;
}

std::array<std::byte, kProofBytes> HandshakeKeys::proof_of(HandshakeSide side,
                                                           const StreamHeader& header) const {
  const StreamKey& key = side == HandshakeSide::kCaller ? caller_proof_ : answerer_proof_;
  std::array<std::byte, kProofBytes> proof;
  crypto_generichash_state state;
  crypto_generichash_init(&state, key.data(), key.size(), proof.size());
  crypto_generichash_update(&state, transcript_.data(), transcript_.size());
  crypto_generichash_update(&state, header.data(), header.size());
  crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(proof.data()), proof.size());
  sodium_memzero(&state, sizeof state);
  return proof;
}

}  // namespace mep
