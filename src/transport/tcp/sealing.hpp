// Proves the two ends of a connection to each other, and protects its records.
//
// Invariants
//   - Keys come from the session's key and both nonces: none is used on two connections, and each
//     direction has its own.
//   - A record's number is part of what is authenticated and never travels, so a record that was left
//     out, repeated or moved does not open.
//   - Nothing of a record is used before its tag was found right.
#pragma once

#include <sodium.h>

#include <cstdint>
#include <span>

#include "mep.h"
#include "transport/tcp/frame.hpp"
#include "transport/transport.hpp"

namespace mep::tcp {

// Once per process before anything else here.
[[nodiscard]] mep_result_t prepare_sodium();

Nonce random_nonce();

// The acceptor's, then the connector's proof that it has the session's key.
Proof acceptor_proof(const PeerSession& session, const Hello& hello, const Challenge& challenge);
Proof connector_proof(const PeerSession& session, const Hello& hello, const Challenge& challenge);
bool same_proof(const Proof& left, const Proof& right);

// One direction of a connection.
class RecordKey {
 public:
  RecordKey() = default;
  RecordKey(const PeerSession& session, const Hello& hello, const Challenge& challenge,
            bool from_connector);
  ~RecordKey() { sodium_memzero(key_, sizeof key_); }

  // `record` has room for header, `body_bytes` and tag, and holds the body at its place.
  void seal(std::byte* record, size_t body_bytes);
  // The same in reverse: false means that this is not the record that the peer sent next.
  [[nodiscard]] bool open(std::byte* record, size_t body_bytes);

 private:
  void next_nonce(unsigned char* out);
  void tag(const std::byte* record, size_t body_bytes, unsigned char* out);

  unsigned char key_[32] = {};
  uint64_t number_ = 0;
  bool encrypts_ = false;
};

}  // namespace mep::tcp
