// The ciphers of records, each by the library that is fastest at it here: an AEAD with a 256-bit key, a 96-bit nonce
// and a tag of 128 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "transport/tcp/frame.hpp"

namespace mep::tcp {

// Bytes in the form that the libraries take.
inline const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
inline unsigned char* raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}

constexpr size_t kRecordKeyBytes = 32;
constexpr size_t kRecordNonceBytes = 12;

// kFailed: the library could not do it; nothing is known of the record.
enum class Opened : uint8_t { kAuthentic, kNotAuthentic, kFailed };

// One direction of a connection; no call allocates memory. One thread at a time.
class RecordCipher {
 public:
  RecordCipher() = default;
  virtual ~RecordCipher() = default;
  RecordCipher(const RecordCipher&) = delete;
  RecordCipher& operator=(const RecordCipher&) = delete;

  // The text of an error of its library.
  virtual const char* failure() const = 0;
  [[nodiscard]] virtual bool set_key(const unsigned char* key) = 0;
  // Encrypts `body` where it lies; the tag covers `clear`, which stays, and `body`.
  [[nodiscard]] virtual bool seal(const unsigned char* nonce, std::span<const std::byte> clear,
                                  std::span<std::byte> body, std::byte* tag) = 0;
  [[nodiscard]] virtual Opened open(const unsigned char* nonce, std::span<const std::byte> clear,
                                    std::span<std::byte> body, const std::byte* tag) = 0;
};

const char* cipher_name(Cipher cipher);
// Those of which this process can make one.
CipherSet own_ciphers();
// The better of two ranks' common ones.
Cipher best_cipher(CipherSet both);
// Null: this process has no such cipher, or its library makes none.
std::unique_ptr<RecordCipher> make_cipher(Cipher cipher);

// libcrypto's; without it none.
CipherSet libcrypto_ciphers();
std::unique_ptr<RecordCipher> make_libcrypto_cipher(Cipher cipher);
// libsodium's.
std::unique_ptr<RecordCipher> make_sodium_cipher(Cipher cipher);

}  // namespace mep::tcp
