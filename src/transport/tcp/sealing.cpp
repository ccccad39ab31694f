#include "transport/tcp/sealing.hpp"

#include <array>
#include <cstring>

#include "base/status.hpp"

namespace mep::tcp {
namespace {

static_assert(sizeof(PeerSession::key) == crypto_generichash_KEYBYTES);

const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
unsigned char* raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}

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
                     bool from_connector)
    : encrypts_(challenge.chosen == Protection::kEncrypted) {
  derive(session, from_connector ? "mep tcp records to acceptor" : "mep tcp records to connector",
         hello, challenge, key_);
}

void RecordKey::next_nonce(unsigned char* out) {
  std::memset(out, 0, crypto_aead_chacha20poly1305_ietf_NPUBBYTES);
  std::memcpy(out + 4, &number_, sizeof number_);
  ++number_;
}

// Poly1305 over header and body under a key that only this record has: what the AEAD does to
// additional data, without a copy.
void RecordKey::tag(const std::byte* record, size_t body_bytes, unsigned char* out) {
  unsigned char nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
  unsigned char once[crypto_onetimeauth_KEYBYTES];
  next_nonce(nonce);
  crypto_stream_chacha20_ietf(once, sizeof once, nonce, key_);
  crypto_onetimeauth(out, raw(record), kRecordHeaderBytes + body_bytes, once);
}

void RecordKey::seal(std::byte* record, size_t body_bytes) {
  encode_record_header(body_bytes, record);
  std::byte* body = record + kRecordHeaderBytes;
  if (!encrypts_) {
    tag(record, body_bytes, raw(body + body_bytes));
    return;
  }
  unsigned char nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
  next_nonce(nonce);
  crypto_aead_chacha20poly1305_ietf_encrypt_detached(raw(body), raw(body + body_bytes), nullptr,
                                                     raw(body), body_bytes, raw(record),
                                                     kRecordHeaderBytes, nullptr, nonce, key_);
}

bool RecordKey::open(std::byte* record, size_t body_bytes) {
  std::byte* body = record + kRecordHeaderBytes;
  if (!encrypts_) {
    unsigned char expected[kRecordTagBytes];
    tag(record, body_bytes, expected);
    return crypto_verify_16(expected, raw(body + body_bytes)) == 0;
  }
  unsigned char nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
  next_nonce(nonce);
  return crypto_aead_chacha20poly1305_ietf_decrypt_detached(
             raw(body), nullptr, raw(body), body_bytes, raw(body + body_bytes), raw(record),
             kRecordHeaderBytes, nonce, key_) == 0;
}

}  // namespace mep::tcp
