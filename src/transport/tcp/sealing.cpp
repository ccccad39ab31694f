#include "transport/tcp/sealing.hpp"

#include <array>
#include <cstring>
#include <string>

#include "base/status.hpp"

namespace mep::tcp {
namespace {

static_assert(sizeof(PeerSession::key) == crypto_generichash_KEYBYTES);

// Keyed BLAKE2b over what the two sides have said, for one purpose.
void derive(const PeerSession& session, const char* purpose, const Hello& hello,
            const Challenge& challenge, unsigned char* out) {
  std::array<std::byte, kHelloBytes> hello_bytes{};
  std::array<std::byte, kChallengeBytes> challenge_bytes{};
  Challenge unproven = challenge;
  unproven.proof = {};
  encode_hello(hello, hello_bytes.data());
  encode_challenge(unproven, challenge_bytes.data());
  crypto_generichash_state state;
  crypto_generichash_init(&state, raw(session.key.data()), session.key.size(), 32);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(purpose),
                            std::strlen(purpose) + 1);
  crypto_generichash_update(&state, raw(hello_bytes.data()), hello_bytes.size());
  crypto_generichash_update(&state, raw(challenge_bytes.data()), challenge_bytes.size());
  crypto_generichash_final(&state, out, 32);
}

Proof prove(const PeerSession& session, const char* purpose, const Hello& hello,
            const Challenge& challenge) {
  Proof proof;
  derive(session, purpose, hello, challenge, raw(proof.data()));
  return proof;
}

}  // namespace

mep_result_t prepare_sodium() {
  if (sodium_init() >= 0) return MEP_SUCCESS;
  return fail(MEP_ERR_SYSTEM, "libsodium cannot be initialised: no source of random numbers");
}

Nonce random_nonce() {
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Proof acceptor_proof(const PeerSession& session, const Hello& hello, const Challenge& challenge) {
  return prove(session, "mep tcp acceptor", hello, challenge);
}

Proof connector_proof(const PeerSession& session, const Hello& hello, const Challenge& challenge) {
  return prove(session, "mep tcp connector", hello, challenge);
}

bool same_proof(const Proof& left, const Proof& right) {
  return sodium_memcmp(left.data(), right.data(), left.size()) == 0;
}

RecordKey::RecordKey(const PeerSession& session, const Hello& hello, const Challenge& challenge,
                     bool from_connector, uint64_t first)
    : number_(first),
      encrypts_(challenge.chosen == Protection::kEncrypted),
      cipher_(make_cipher(challenge.cipher)) {
  std::string purpose =
      from_connector ? "mep tcp records to acceptor, " : "mep tcp records to connector, ";
  purpose += cipher_name(challenge.cipher);
  derive(session, purpose.c_str(), hello, challenge, secret_);
}

// Null, or why there is none.
const char* RecordKey::next_nonce(unsigned char* out) {
  if (number_ == kEndOfRecords) return "all record numbers of its connection are used up";
  const uint64_t key_number = number_ / kRecordsPerKey;
  if (key_number != key_number_) {
    unsigned char key[kRecordKeyBytes];
    crypto_generichash(key, sizeof key, reinterpret_cast<const unsigned char*>(&key_number),
                       sizeof key_number, secret_, sizeof secret_);
    const bool is_set = cipher_->set_key(key);
    sodium_memzero(key, sizeof key);
    if (!is_set) return cipher_->failure();
    key_number_ = key_number;
  }
  std::memset(out, 0, kRecordNonceBytes);
  std::memcpy(out + 4, &number_, sizeof number_);
  ++number_;
  return nullptr;
}

// To the cipher, a body that is only authenticated is text that stays in clear.
const char* RecordKey::seal(std::byte* record, size_t body_bytes) {
  encode_record_header(body_bytes, record);
  unsigned char nonce[kRecordNonceBytes];
  if (const char* trouble = next_nonce(nonce)) return trouble;
  const size_t clear = encrypts_ ? kRecordHeaderBytes : kRecordHeaderBytes + body_bytes;
  const size_t whole = kRecordHeaderBytes + body_bytes;
  return cipher_->seal(nonce, {record, clear}, {record + clear, whole - clear}, record + whole)
             ? nullptr
             : cipher_->failure();
}

const char* RecordKey::open(std::byte* record, size_t body_bytes) {
  unsigned char nonce[kRecordNonceBytes];
  if (const char* trouble = next_nonce(nonce)) return trouble;
  const size_t clear = encrypts_ ? kRecordHeaderBytes : kRecordHeaderBytes + body_bytes;
  const size_t whole = kRecordHeaderBytes + body_bytes;
  switch (cipher_->open(nonce, {record, clear}, {record + clear, whole - clear}, record + whole)) {
    case Opened::kAuthentic:
      return nullptr;
    case Opened::kNotAuthentic:
      return "it sent a record that is not authentic";
    case Opened::kFailed:
      break;
  }
  return cipher_->failure();
}

}  // namespace mep::tcp
