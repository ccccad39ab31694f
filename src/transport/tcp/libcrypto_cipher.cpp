// The only file that sees OpenSSL.
#include "transport/tcp/record_cipher.hpp"

#if MEP_HAVE_OPENSSL
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>

#include <cstring>

#include "base/fork_hold.hpp"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace mep::tcp {
namespace {

// Without such instructions AES is slow, and its tables tell others on the host of the key.
bool cpu_has_aes() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__)
  constexpr unsigned long kBoth = HWCAP_AES | HWCAP_PMULL;
  return (getauxval(AT_HWCAP) & kBoth) == kBoth;
#else
  return false;
#endif
}

const EVP_CIPHER* evp_cipher(Cipher cipher) {
  return cipher == Cipher::kAes256Gcm ? EVP_aes_256_gcm() : EVP_chacha20_poly1305();
}

class LibcryptoCipher final : public RecordCipher {
 public:
  explicit LibcryptoCipher(Cipher cipher) : cipher_(cipher), context_(EVP_CIPHER_CTX_new()) {}
  // Wipes the key.
  ~LibcryptoCipher() override { EVP_CIPHER_CTX_free(context_); }

  // A configuration of OpenSSL may leave a cipher out.
  bool prepare() {
    return checked(
        context_ != nullptr &&
        EVP_CipherInit_ex(context_, evp_cipher(cipher_), nullptr, nullptr, nullptr, 1) == 1 &&
        EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_SET_IVLEN, kRecordNonceBytes, nullptr) == 1);
  }

  const char* failure() const override {
    return cipher_ == Cipher::kAes256Gcm ? "AES-256-GCM of libcrypto has failed"
                                         : "ChaCha20-Poly1305 of libcrypto has failed";
  }

  bool set_key(const unsigned char* key) override {
    return checked(EVP_CipherInit_ex(context_, nullptr, nullptr, key, nullptr, -1) == 1);
  }

  bool seal(const unsigned char* nonce, std::span<const std::byte> clear, std::span<std::byte> body,
            std::byte* tag) override {
    return checked(run(nonce, 1, clear, body) && finish() &&
                   EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_GET_TAG, kRecordTagBytes, tag) == 1);
  }

  Opened open(const unsigned char* nonce, std::span<const std::byte> clear,
              std::span<std::byte> body, const std::byte* tag) override {
    unsigned char expected[kRecordTagBytes];
    std::memcpy(expected, tag, sizeof expected);
    if (!checked(run(nonce, 0, clear, body) &&
                 EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_SET_TAG, kRecordTagBytes, expected) ==
                     1)) {
      return Opened::kFailed;
    }
    return checked(finish()) ? Opened::kAuthentic : Opened::kNotAuthentic;
  }

 private:
  // Errors wait in a queue of the thread, where the caller's own use of OpenSSL would find them.
  static bool checked(bool is_right) {
    if (!is_right) ERR_clear_error();
    return is_right;
  }

  // Lengths fit: a record is short.
  bool run(const unsigned char* nonce, int seals, std::span<const std::byte> clear,
           std::span<std::byte> body) {
    int done = 0;
    return EVP_CipherInit_ex(context_, nullptr, nullptr, nullptr, nonce, seals) == 1 &&
           EVP_CipherUpdate(context_, nullptr, &done, raw(clear.data()),
                            static_cast<int>(clear.size())) == 1 &&
           (body.empty() || EVP_CipherUpdate(context_, raw(body.data()), &done, raw(body.data()),
                                             static_cast<int>(body.size())) == 1);
  }
  bool finish() {
    int done = 0;
    unsigned char none[EVP_MAX_BLOCK_LENGTH];
    return EVP_CipherFinal_ex(context_, none, &done) == 1;
  }

  const Cipher cipher_;
  EVP_CIPHER_CTX* const context_;
};

CipherSet find_ciphers() {
  // Ranks seal until their process is gone, so its exit() must not take libcrypto apart before.
  if (OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr) != 1) return 0;
  CipherSet found = 0;
  for (const Cipher cipher : {Cipher::kChaCha20Poly1305, Cipher::kAes256Gcm}) {
    if (cipher == Cipher::kAes256Gcm && !cpu_has_aes()) continue;
    if (LibcryptoCipher(cipher).prepare()) found |= cipher_bit(cipher);
  }
  return found;
}

}  // namespace

CipherSet libcrypto_ciphers() {
  const ForkHold hold;
  static const CipherSet found = find_ciphers();
  return found;
}

std::unique_ptr<RecordCipher> make_libcrypto_cipher(Cipher cipher) {
  auto made = std::make_unique<LibcryptoCipher>(cipher);
  if (!made->prepare()) return nullptr;
  return made;
}

}  // namespace mep::tcp

#else

namespace mep::tcp {

CipherSet libcrypto_ciphers() {
  return 0;
}

std::unique_ptr<RecordCipher> make_libcrypto_cipher(Cipher /*cipher*/) {
  return nullptr;
}

}  // namespace mep::tcp

#endif
