#include "transport/tcp/record_cipher.hpp"

#include <sodium.h>

#include <bit>
#include <cstring>

namespace mep::tcp {
namespace {

static_assert(kRecordKeyBytes == crypto_aead_chacha20poly1305_ietf_KEYBYTES);
static_assert(kRecordNonceBytes == crypto_aead_chacha20poly1305_ietf_NPUBBYTES);
static_assert(kRecordTagBytes == crypto_aead_chacha20poly1305_ietf_ABYTES);

class SodiumCipher final : public RecordCipher {
 public:
  ~SodiumCipher() override { sodium_memzero(key_, sizeof key_); }
  const char* failure() const override { return "ChaCha20-Poly1305 of libsodium has failed"; }
  bool set_key(const unsigned char* key) override {
    std::memcpy(key_, key, sizeof key_);
    return true;
  }
  bool seal(const unsigned char* nonce, std::span<const std::byte> clear, std::span<std::byte> body,
            std::byte* tag) override {
    return crypto_aead_chacha20poly1305_ietf_encrypt_detached(
               raw(body.data()), raw(tag), nullptr, raw(body.data()), body.size(),
               raw(clear.data()), clear.size(), nullptr, nonce, key_) == 0;
  }
  Opened open(const unsigned char* nonce, std::span<const std::byte> clear,
              std::span<std::byte> body, const std::byte* tag) override {
    const bool is_right = crypto_aead_chacha20poly1305_ietf_decrypt_detached(
                              raw(body.data()), nullptr, raw(body.data()), body.size(), raw(tag),
                              raw(clear.data()), clear.size(), nonce, key_) == 0;
    return is_right ? Opened::kAuthentic : Opened::kNotAuthentic;
  }

 private:
  unsigned char key_[kRecordKeyBytes] = {};
};

}  // namespace

const char* cipher_name(Cipher cipher) {
  return cipher == Cipher::kAes256Gcm ? "AES-256-GCM" : "ChaCha20-Poly1305";
}

CipherSet own_ciphers() {
  return kCommonCiphers | libcrypto_ciphers();
}

Cipher best_cipher(CipherSet both) {
  return static_cast<Cipher>(std::bit_width(both | kCommonCiphers) - 1);
}

std::unique_ptr<RecordCipher> make_sodium_cipher(Cipher cipher) {
  if (cipher != Cipher::kChaCha20Poly1305) return nullptr;
  return std::make_unique<SodiumCipher>();
}

std::unique_ptr<RecordCipher> make_cipher(Cipher cipher) {
  return (libcrypto_ciphers() & cipher_bit(cipher)) != 0 ? make_libcrypto_cipher(cipher)
                                                         : make_sodium_cipher(cipher);
}

}  // namespace mep::tcp
