// Proves the two ends of a connection to each other, and protects its records.
//
// Invariants
//   - Keys come from the session's key, both nonces, what the two sides said they have, and the name
//     of the cipher: none is used on two connections, and each direction has its own.
//   - No number of a record is used twice under a key. A connection that has used all numbers ends.
//   - A record's number is part of what is authenticated and never travels, so a record that was left
//     out, repeated or moved does not open.
//   - Nothing of a record is used before its tag was found right.
#pragma once

#include <sodium.h>

#include <cstdint>
#include <memory>
#include <span>

#include "mep.h"
#include "transport/tcp/frame.hpp"
#include "transport/tcp/record_cipher.hpp"
#include "transport/transport.hpp"

namespace mep::tcp {

// Once per process before anything else here.
[[nodiscard]] mep_result_t prepare_sodium();

Nonce random_nonce();

// The acceptor's, then the connector's proof that it has the session's key.
Proof acceptor_proof(const PeerSession& session, const Hello& hello, const Challenge& challenge);
Proof connector_proof(const PeerSession& session, const Hello& hello, const Challenge& challenge);
bool same_proof(const Proof& left, const Proof& right);

// After so many records, at most 64 GiB, a new key: the more AES-GCM encrypts under one, the less it hides.
constexpr uint64_t kRecordsPerKey = uint64_t{1} << 20;
// No record has this number.
constexpr uint64_t kEndOfRecords = UINT64_MAX;

// One direction of a connection.
class RecordKey {
 public:
  RecordKey() = default;
  // `first` is the number of the first record.
  RecordKey(const PeerSession& session, const Hello& hello, const Challenge& challenge,
            bool from_connector, uint64_t first = 0);
  RecordKey(RecordKey&&) = default;
  RecordKey& operator=(RecordKey&&) = default;
  ~RecordKey() { sodium_memzero(secret_, sizeof secret_); }

  // False: the library makes no such cipher.
  bool valid() const { return cipher_ != nullptr; }
  // `record` has room for header, `body_bytes` and tag, and holds the body at its place. Null, or why it cannot be
  // sealed.
  [[nodiscard]] const char* seal(std::byte* record, size_t body_bytes);
  // The same in reverse: null if this is the record that the peer sent next, or what it is.
  [[nodiscard]] const char* open(std::byte* record, size_t body_bytes);

 private:
  const char* next_nonce(unsigned char* out);

  unsigned char secret_[kRecordKeyBytes] = {};
  uint64_t number_ = 0;
  uint64_t key_number_ = UINT64_MAX;  // of the key that cipher_ has
  bool encrypts_ = false;
  std::unique_ptr<RecordCipher> cipher_;
};

}  // namespace mep::tcp
