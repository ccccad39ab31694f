// labels: gate threads tsan asan
// The protection of records of the tcp transport: that each library makes the right bytes, that both sides take the best
// cipher that both have and nobody on the way can make it a lesser one, and that no number of a record comes twice.
#include <netinet/in.h>
#include <sodium.h>
#include <sys/socket.h>

#include <functional>

#include "support/transport_conformance.hpp"
#include "transport/mapped_transport.hpp"
#include "transport/tcp/sealing.hpp"
#include "transport/tcp/tcp_transport.hpp"

namespace {

using namespace mep::test;  // NOLINT(google-build-using-namespace)
using mep::PeerFailure;
using mep::PeerIdentity;
using mep::PeerSession;
using mep::Window;
using mep::tcp::Address;
using mep::tcp::Challenge;
using mep::tcp::Cipher;
using mep::tcp::CipherSet;
using mep::tcp::Hello;
using mep::tcp::kCommonCiphers;
using mep::tcp::Opened;
using mep::tcp::Options;
using mep::tcp::Protection;
using mep::tcp::RecordCipher;
using mep::tcp::RecordKey;
using mep::tcp::TcpTransport;

constexpr size_t kHeader = mep::tcp::kRecordHeaderBytes;
constexpr size_t kTag = mep::tcp::kRecordTagBytes;
const size_t kSizes[] = {1, 15, 16, 17, 64, 1000, 16384, mep::tcp::kMaxRecordBodyBytes};

bool has(Cipher cipher) {
  return (mep::tcp::own_ciphers() & cipher_bit(cipher)) != 0;
}

const unsigned char* raw(const std::vector<std::byte>& bytes) {
  return mep::tcp::raw(bytes.data());
}

std::vector<std::byte> bytes_of(const char* hex) {
  std::vector<std::byte> out(std::strlen(hex) / 2);
  assert_int_equal(sodium_hex2bin(mep::tcp::raw(out.data()), out.size(), hex, 2 * out.size(),
                                  nullptr, nullptr, nullptr),
                   0);
  return out;
}

std::vector<std::byte> some_bytes(size_t count) {
  std::vector<std::byte> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = pattern(3, i);
  return out;
}

// Another implementation of both ciphers: body and tag; false: libsodium has no such cipher on this CPU.
bool by_oracle(Cipher cipher, const unsigned char* key, const unsigned char* nonce,
               const std::vector<std::byte>& clear, const std::vector<std::byte>& body,
               std::vector<std::byte>* out) {
  out->assign(body.size() + kTag, std::byte{0});
  if (cipher == Cipher::kAes256Gcm && crypto_aead_aes256gcm_is_available() == 0) return false;
  const auto encrypt = cipher == Cipher::kAes256Gcm ? crypto_aead_aes256gcm_encrypt
                                                    : crypto_aead_chacha20poly1305_ietf_encrypt;
  assert_int_equal(encrypt(mep::tcp::raw(out->data()), nullptr, raw(body), body.size(), raw(clear),
                           clear.size(), nullptr, nonce, key),
                   0);
  return true;
}

void check_bytes(RecordCipher* cipher, const std::vector<std::byte>& key,
                 const std::vector<std::byte>& nonce, const std::vector<std::byte>& clear,
                 const std::vector<std::byte>& body, const std::vector<std::byte>& expected) {
  assert_true(cipher->set_key(raw(key)));
  std::vector<std::byte> work = body;
  work.resize(body.size() + kTag);
  std::byte* tag = work.data() + body.size();
  assert_true(cipher->seal(raw(nonce), clear, {work.data(), body.size()}, tag));
  assert_int_equal(work.size(), expected.size());
  assert_memory_equal(work.data(), expected.data(), expected.size());
  assert_true(cipher->open(raw(nonce), clear, {work.data(), body.size()}, tag) ==
              Opened::kAuthentic);
  if (!body.empty()) assert_memory_equal(work.data(), body.data(), body.size());
  *tag ^= std::byte{1};
  assert_true(cipher->open(raw(nonce), clear, {work.data(), body.size()}, tag) ==
              Opened::kNotAuthentic);
}

// Vectors 13 and 16 of "The Galois/Counter Mode of Operation", and 16's data authenticated alone.
void aes_gcm_makes_the_bytes_of_its_vectors(void**) {
  const auto cipher = mep::tcp::make_libcrypto_cipher(Cipher::kAes256Gcm);
  if (!has(Cipher::kAes256Gcm)) skip();
  const std::vector<std::byte> zeros(32);
  check_bytes(cipher.get(), zeros, zeros, {}, {}, bytes_of("530f8afbc74536b9a963b4f1c4cb738b"));
  check_bytes(
      cipher.get(), bytes_of("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"),
      bytes_of("cafebabefacedbaddecaf888"), bytes_of("feedfacedeadbeeffeedfacedeadbeefabaddad2"),
      bytes_of("d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
               "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"),
      bytes_of("522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
               "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
               "76fc6ece0f4e1768cddf8853bb2d551b"));
}

// A rank with libcrypto and one without may be peers.
void libraries_make_the_same_bytes(void**) {
  const std::vector<std::byte> key = some_bytes(mep::tcp::kRecordKeyBytes);
  const std::vector<std::byte> nonce = some_bytes(mep::tcp::kRecordNonceBytes);
  for (const Cipher cipher : {Cipher::kChaCha20Poly1305, Cipher::kAes256Gcm}) {
    const std::unique_ptr<RecordCipher> made[] = {mep::tcp::make_libcrypto_cipher(cipher),
                                                  mep::tcp::make_sodium_cipher(cipher)};
    for (const std::unique_ptr<RecordCipher>& each : made) {
      for (const size_t size : kSizes) {
        if (each == nullptr) continue;
        std::vector<std::byte> expected;
        if (!by_oracle(cipher, raw(key), raw(nonce), some_bytes(kHeader), some_bytes(size),
                       &expected))
          continue;
        check_bytes(each.get(), key, nonce, some_bytes(kHeader), some_bytes(size), expected);
        assert_true(by_oracle(cipher, raw(key), raw(nonce), some_bytes(size), {}, &expected));
        check_bytes(each.get(), key, nonce, some_bytes(size), {}, expected);
      }
    }
  }
}

struct Way {
  Cipher cipher;
  Protection protection;
};

void with_each_way(const std::function<void(const Way&)>& body) {
  for (const Cipher cipher : {Cipher::kChaCha20Poly1305, Cipher::kAes256Gcm}) {
    if (!has(cipher)) continue;
    body({cipher, Protection::kAuthenticated});
    body({cipher, Protection::kEncrypted});
  }
}

PeerSession some_session() {
  PeerSession session;
  session.key.fill(std::byte{5});
  return session;
}

RecordKey key_of(const Way& way, bool from_connector = true, uint64_t first = 0) {
  Challenge challenge;
  challenge.chosen = way.protection;
  challenge.cipher = way.cipher;
  return {some_session(), Hello{}, challenge, from_connector, first};
}

std::vector<std::byte> seal(RecordKey* key, size_t size) {
  std::vector<std::byte> record(kHeader);
  const std::vector<std::byte> body = some_bytes(size);
  record.insert(record.end(), body.begin(), body.end());
  record.resize(record.size() + kTag);
  assert_null(key->seal(record.data(), size));
  return record;
}

bool opens(RecordKey* key, std::vector<std::byte> record) {
  const size_t size = record.size() - kHeader - kTag;
  const char* trouble = key->open(record.data(), size);
  if (trouble != nullptr) assert_string_equal(trouble, "it sent a record that is not authentic");
  return trouble == nullptr &&
         std::memcmp(record.data() + kHeader, some_bytes(size).data(), size) == 0;
}

// The formulas of docs/design/tcp.md, a second time: record `number` of `way` with a body of `size` bytes.
std::vector<std::byte> by_formula(const Way& way, uint64_t number, size_t size) {
  Challenge challenge;
  challenge.chosen = way.protection;
  challenge.cipher = way.cipher;
  std::string text("mep tcp records to acceptor, ");
  text += way.cipher == Cipher::kAes256Gcm ? "AES-256-GCM" : "ChaCha20-Poly1305";
  const size_t said = text.size() + 1;
  text.resize(said + mep::tcp::kHelloBytes + mep::tcp::kChallengeBytes);
  auto* at = reinterpret_cast<std::byte*>(text.data()) + said;
  mep::tcp::encode_hello({}, at);
  mep::tcp::encode_challenge(challenge, at + mep::tcp::kHelloBytes);
  unsigned char secret[32];
  unsigned char key[32];
  const PeerSession session = some_session();
  crypto_generichash(secret, sizeof secret, reinterpret_cast<unsigned char*>(text.data()),
                     text.size(), mep::tcp::raw(session.key.data()), session.key.size());
  const uint64_t key_number = number >> 20;
  crypto_generichash(key, sizeof key, reinterpret_cast<const unsigned char*>(&key_number),
                     sizeof key_number, secret, sizeof secret);
  unsigned char nonce[12] = {};
  std::memcpy(nonce + 4, &number, sizeof number);
  std::vector<std::byte> clear(kHeader);
  const auto length = static_cast<uint32_t>(size);
  std::memcpy(clear.data(), &length, sizeof length);
  std::vector<std::byte> body = some_bytes(size);
  if (way.protection == Protection::kAuthenticated) {
    clear.insert(clear.end(), body.begin(), body.end());
    body.clear();
  }
  std::vector<std::byte> sealed;
  if (!by_oracle(way.cipher, key, nonce, clear, body, &sealed)) return {};
  clear.insert(clear.end(), sealed.begin(), sealed.end());
  return clear;
}

void records_are_those_of_the_formulas(void**) {
  with_each_way([](const Way& way) {
    // The last of a key and the first of the next, too.
    for (const uint64_t first : {uint64_t{0}, mep::tcp::kRecordsPerKey - 1, uint64_t{1} << 50}) {
      RecordKey key = key_of(way, true, first);
      assert_true(key.valid());
      for (uint64_t number = first; number < first + 2; ++number) {
        const std::vector<std::byte> record = seal(&key, 100);
        const std::vector<std::byte> expected = by_formula(way, number, 100);
        if (expected.empty()) continue;
        assert_int_equal(record.size(), expected.size());
        assert_memory_equal(record.data(), expected.data(), expected.size());
      }
    }
  });
}

void no_altered_byte_is_accepted(void**) {
  with_each_way([](const Way& way) {
    RecordKey good = key_of(way);
    const std::vector<std::byte> record = seal(&good, 40);
    RecordKey reader = key_of(way);
    assert_true(opens(&reader, record));
    assert_false(opens(&reader, record));  // a second time
    for (size_t at = kHeader; at < record.size(); ++at) {
      std::vector<std::byte> altered = record;
      altered[at] ^= std::byte{0x10};
      RecordKey other = key_of(way);
      assert_false(opens(&other, altered));
    }
    std::vector<std::byte> shorter = record;  // the header is what it was
    shorter.erase(shorter.begin() + kHeader);
    RecordKey other = key_of(way);
    assert_false(opens(&other, shorter));
    RecordKey back = key_of(way, false);
    assert_false(opens(&back, record));  // returned to its sender
    const bool is_readable = std::memcmp(record.data() + kHeader, some_bytes(40).data(), 40) == 0;
    assert_true(is_readable == (way.protection == Protection::kAuthenticated));
  });
}

void numbers_of_records_come_once(void**) {
  with_each_way([](const Way& way) {
    RecordKey sender = key_of(way, true, mep::tcp::kEndOfRecords - 1);
    RecordKey reader = key_of(way, true, mep::tcp::kEndOfRecords - 1);
    std::vector<std::byte> record = seal(&sender, 8);
    assert_true(opens(&reader, record));
    const std::vector<std::byte> before = record;
    const char* kText = "all record numbers of its connection are used up";
    assert_string_equal(sender.seal(record.data(), 8), kText);
    assert_string_equal(reader.open(record.data(), 8), kText);
    assert_memory_equal(record.data() + kHeader, before.data() + kHeader, before.size() - kHeader);
  });
}

// A length decides how much is read before anything can be checked.
void lengths_of_records_are_bounded(void**) {
  std::byte header[mep::tcp::kRecordHeaderBytes];
  const auto parsed = [&](size_t body_bytes) {
    size_t found = 0;
    mep::tcp::encode_record_header(body_bytes, header);
    return mep::tcp::parse_record_header(header, &found);
  };
  assert_true(parsed(1) == mep::tcp::Parse::kComplete);
  assert_true(parsed(mep::tcp::kMaxRecordBodyBytes) == mep::tcp::Parse::kComplete);
  assert_true(parsed(0) == mep::tcp::Parse::kMalformed);
  assert_true(parsed(mep::tcp::kMaxRecordBodyBytes + 1) == mep::tcp::Parse::kMalformed);
}

const PeerIdentity kLow{3, 103, 7, 1, 0};
const PeerIdentity kHigh{9, 109, 7, 3, 0};
constexpr size_t kBytes = size_t{1} << 20;

// A rank whose progress the test makes.
struct Rank {
  Rank(const PeerIdentity& identity, const PeerIdentity& peer, const Options& own)
      : self(identity), transport(patience(), &own) {
    std::vector<std::byte> offer;
    assert_int_equal(transport.open(&offer), MEP_SUCCESS);
    assert_int_equal(Window::create(kDataWindow, kBytes, &data), MEP_SUCCESS);
    assert_int_equal(transport.add_peer(self, peer, {}, some_session()), MEP_SUCCESS);
    mep::WindowExport exported;
    assert_int_equal(transport.export_window(peer.slot, data, &exported), MEP_SUCCESS);
    blob = exported.blob;
  }
  static mep::TransportOptions patience() {
    mep::TransportOptions options;
    options.connect_timeout_ms = 1000;
    return options;
  }
  void meet(uint32_t slot, const std::vector<std::byte>& window) {
    assert_int_equal(transport.import_window(slot, kDataWindow, kBytes, window, {}), MEP_SUCCESS);
  }
  void move() {
    (void)transport.progress(false);
    transport.serve();
  }
  const PeerIdentity self;
  TcpTransport transport;
  std::shared_ptr<Window> data;
  std::vector<std::byte> blob;
};

bool eventually(Rank* one, Rank* other, const std::function<bool()>& condition) {
  const mep::Deadline deadline = mep::Deadline::after_ms(kLimitMs);
  while (!condition()) {
    if (deadline.expired()) return false;
    one->move();
    other->move();
  }
  return true;
}

bool connect_ranks(Rank* low, Rank* high) {
  low->meet(high->self.slot, high->blob);
  high->meet(low->self.slot, low->blob);
  return eventually(low, high, [&] {
    return low->transport.status(high->self.slot).is_connected &&
           high->transport.status(low->self.slot).is_connected;
  });
}

// Each side may be the one that lacks the better cipher.
void both_take_the_best_that_both_have(void**) {
  const CipherSet all = mep::tcp::own_ciphers();
  for (const CipherSet low_has : {kCommonCiphers, all}) {
    for (const CipherSet high_has : {kCommonCiphers, all}) {
      for (const bool encrypts : {false, true}) {
        Options options;
        options.encrypts = encrypts;
        options.authenticates_all = true;
        options.ciphers = low_has;
        Rank low(kLow, kHigh, options);
        options.ciphers = high_has;
        Rank high(kHigh, kLow, options);
        assert_true(connect_ranks(&low, &high));
        const bool is_aes = (low_has & high_has & cipher_bit(Cipher::kAes256Gcm)) != 0;
        const std::string expected = std::string("tcp (") +
                                     (encrypts ? "encrypted" : "authenticated") + " by " +
                                     (is_aes ? "AES-256-GCM)" : "ChaCha20-Poly1305)");
        assert_string_equal(low.transport.status(kHigh.slot).text, expected.c_str());
        assert_string_equal(high.transport.status(kLow.slot).text, expected.c_str());
        assert_int_equal(post_signal(low.transport, kHigh.slot, kDataWindow, 64, 42, false),
                         MEP_SUCCESS);
        auto* word = reinterpret_cast<std::atomic<uint64_t>*>(high.data->data() + 64);
        assert_true(eventually(&low, &high, [&] { return word->load() == 42; }));
      }
    }
  }
}

// Stands between the two, and hands on each side's greeting after `alter` has seen it.
class Relay {
 public:
  using Alter = std::function<void(std::byte* hello, std::byte* challenge)>;
  Relay(const Address& target, Alter alter)
      : target_(target),
        alter_(std::move(alter)),
        listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    own_ = target;
    own_.port = 0;
    sockaddr_storage address;
    socklen_t length = own_.to_socket_address(&address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    assert_int_equal(bind(listener_.get(), generic, length), 0);
    assert_int_equal(listen(listener_.get(), 8), 0);
    assert_int_equal(getsockname(listener_.get(), generic, &length), 0);
    own_.port = ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~Relay() {
    stop_.store(true);
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  const Address& address() const { return own_; }
  uint32_t greetings() const { return greetings_.load(); }

 private:
  void serve() {
    while (!stop_.load()) {
      const mep::UniqueFd caller(accept(listener_.get(), nullptr, nullptr));
      if (!caller.valid()) continue;
      const mep::UniqueFd called(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_storage address;
      const socklen_t length = target_.to_socket_address(&address);
      if (connect(called.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) continue;
      const timeval limit{1, 0};
      for (const int socket : {caller.get(), called.get()}) {
        setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      }
      std::byte hello[mep::tcp::kHelloBytes];
      std::byte challenge[mep::tcp::kChallengeBytes];
      if (recv(caller.get(), hello, sizeof hello, MSG_WAITALL) != sizeof hello) continue;
      alter_(hello, nullptr);
      (void)!send(called.get(), hello, sizeof hello, MSG_NOSIGNAL);
      if (recv(called.get(), challenge, sizeof challenge, MSG_WAITALL) != sizeof challenge)
        continue;
      alter_(nullptr, challenge);
      (void)!send(caller.get(), challenge, sizeof challenge, MSG_NOSIGNAL);
      greetings_.fetch_add(1);
      std::byte proof;
      (void)!recv(caller.get(), &proof, 1, 0);  // its end, or the beginning of a proof
    }
  }

  const Address target_;
  const Alter alter_;
  Address own_;
  mep::UniqueFd listener_;
  std::atomic<bool> stop_{false};
  std::atomic<uint32_t> greetings_{0};
  std::thread thread_;
};

// Somebody on the way would like the two to use what both have and he can better break.
void nobody_on_the_way_chooses_the_cipher(void**) {
  if (!has(Cipher::kAes256Gcm)) skip();
  const auto lessen = [](std::byte* hello, std::byte* /*challenge*/) {
    if (hello == nullptr) return;
    Hello said;
    assert_true(mep::tcp::parse_hello({hello, mep::tcp::kHelloBytes}, &said) ==
                mep::tcp::Parse::kComplete);
    said.ciphers = kCommonCiphers;
    mep::tcp::encode_hello(said, hello);
  };
  const auto choose = [](std::byte* /*hello*/, std::byte* challenge) {
    if (challenge == nullptr) return;
    Challenge said;
    assert_true(mep::tcp::parse_challenge({challenge, mep::tcp::kChallengeBytes}, &said) ==
                mep::tcp::Parse::kComplete);
    assert_true(said.cipher == Cipher::kAes256Gcm);
    said.cipher = Cipher::kChaCha20Poly1305;
    mep::tcp::encode_challenge(said, challenge);
  };
  for (const Relay::Alter& alter : {Relay::Alter(lessen), Relay::Alter(choose)}) {
    Options options;
    options.authenticates_all = true;
    options.interfaces = "lo/4";
    Rank low(kLow, kHigh, options);
    Rank high(kHigh, kLow, options);
    std::vector<Address> addresses;
    const auto begin = low.blob.begin() + sizeof(mep::WindowTicket);
    assert_true(mep::tcp::parse_addresses({begin, low.blob.end()}, &addresses) ==
                mep::tcp::Parse::kComplete);
    const Relay relay(addresses[0], alter);
    const std::vector<std::byte> detour = mep::tcp::encode_addresses({&relay.address(), 1});
    low.blob.erase(begin, low.blob.end());
    low.blob.insert(low.blob.end(), detour.begin(), detour.end());
    low.meet(kHigh.slot, high.blob);
    high.meet(kLow.slot, low.blob);
    PeerFailure failure;
    assert_true(eventually(&low, &high, [&] { return high.transport.take_failure(&failure); }));
    if (failure.reason.find("the greeting was altered") == std::string::npos) {
      fail_msg("%s", failure.reason.c_str());
    }
    assert_true(relay.greetings() > 0);
    assert_false(low.transport.status(kHigh.slot).is_connected);
    assert_false(high.transport.status(kLow.slot).is_connected);
  }
}

void a_connection_without_numbers_ends(void**) {
  mep::tcp::first_record_number = mep::tcp::kEndOfRecords - 3;
  Options options;
  options.authenticates_all = true;
  Rank low(kLow, kHigh, options);
  Rank high(kHigh, kLow, options);
  assert_true(connect_ranks(&low, &high));
  mep::tcp::first_record_number = 0;
  PeerFailure failure;
  for (uint64_t word = 1; word <= 3; ++word) {
    assert_int_equal(post_signal(low.transport, kHigh.slot, kDataWindow, 64, word, false),
                     MEP_SUCCESS);
    assert_false(low.transport.take_failure(&failure));
  }
  (void)post_signal(low.transport, kHigh.slot, kDataWindow, 64, 4, false);
  assert_true(low.transport.take_failure(&failure));
  assert_string_equal(failure.reason.c_str(), "all record numbers of its connection are used up");
  auto* word = reinterpret_cast<std::atomic<uint64_t>*>(high.data->data() + 64);
  assert_true(eventually(&low, &high, [&] { return high.transport.take_failure(&failure); }));
  assert_true(word->load() == 3);
}

int variant_of_entry = 0;

std::unique_ptr<mep::Transport> make_variant(const mep::TransportOptions& options) {
  Options own;
  own.authenticates_all = variant_of_entry == 1 || variant_of_entry == 4;
  own.encrypts = variant_of_entry == 2 || variant_of_entry == 5;
  if (variant_of_entry == 3) own.interfaces = "lo/6";
  if (variant_of_entry > 3) own.ciphers = kCommonCiphers;
  return std::make_unique<TcpTransport>(options, &own);
}

// The conformance suite's central cases with every way to protect the data, and over IPv6.
void all_protections_and_families(void**) {
  for (int variant = 0; variant < 6; ++variant) {
    RigOptions options;
    options.ranks = 3;
    variant_of_entry = variant;
    constexpr mep::TransportEntry kEntry{"tcp", make_variant};
    run_ranks(kEntry, options, put_signal_body);
    options.ranks = 2;
    run_ranks(kEntry, options, many_windows_body);
    run_ranks(kEntry, options, threads_body);
  }
}

}  // namespace

int main() {
  assert_int_equal(mep::tcp::prepare_sodium(), MEP_SUCCESS);
  const CMUnitTest tests[] = {
      cmocka_unit_test(aes_gcm_makes_the_bytes_of_its_vectors),
      cmocka_unit_test(libraries_make_the_same_bytes),
      cmocka_unit_test(records_are_those_of_the_formulas),
      cmocka_unit_test(no_altered_byte_is_accepted),
      cmocka_unit_test(numbers_of_records_come_once),
      cmocka_unit_test(lengths_of_records_are_bounded),
      cmocka_unit_test(both_take_the_best_that_both_have),
      cmocka_unit_test(nobody_on_the_way_chooses_the_cipher),
      cmocka_unit_test(a_connection_without_numbers_ends),
      cmocka_unit_test(all_protections_and_families),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
