// labels: quick
// A process that knows everything but the secret can do nothing with a control link between hosts. Both ends run in
// this thread; between them stands a relay that may record, alter, repeat or leave out bytes.
#include <fcntl.h>
#include <sodium.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "core/bootstrap/greeting.hpp"
#include "support/cmocka_cpp.hpp"
#include "support/random_numbers.hpp"

namespace {

using Bytes = std::vector<unsigned char>;

constexpr char kMarker[] = "offer-of-the-caller-that-nobody-may-read";
constexpr char kOtherMarker[] = "offer-of-the-answerer-that-nobody-may-read";
constexpr uint16_t kDataFrame = mep::kFirstWorldFrame + 3;

std::string secret_file(const std::string& bytes, mode_t mode = 0600) {
  char path[] = "/tmp/mep-secret-XXXXXX";
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, bytes.data(), bytes.size()), bytes.size());
  assert_int_equal(fchmod(fd, mode), 0);
  close(fd);
  return path;
}

void load(mep::JobSecret* secret, const std::string& bytes) {
  if (bytes.empty()) return;
  const std::string path = secret_file(bytes);
  assert_int_equal(secret->load(path), MEP_SUCCESS);
  unlink(path.c_str());
}

std::vector<std::byte> marker_bytes(const char* text) {
  const auto bytes = std::as_bytes(std::span(text, strlen(text)));
  return {bytes.begin(), bytes.end()};
}

// One end: a link, its greeting, and the frames that came after it.
struct End {
  mep::UniqueFd far;  // the relay's side
  std::unique_ptr<mep::ControlLink> link;
  std::unique_ptr<mep::Greeting> greeting;
  mep::JobSecret secret;
  mep::Details details;
  mep_result_t result = MEP_SUCCESS;
  std::vector<mep::Frame> frames;

  void open(mep::HandshakeSide side, const char* marker, const std::string& secret_bytes,
            bool is_remote) {
    int sides[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sides), 0);
    far.reset(sides[0]);
    link = std::make_unique<mep::ControlLink>(mep::UniqueFd(sides[1]));
    load(&secret, secret_bytes);
    details.offer = marker_bytes(marker);
    details.addresses.push_back({4, {10, 0, 0, 1}, 7});
    greeting = std::make_unique<mep::Greeting>(side, is_remote, secret, details);
  }

  static mep::Hello hello(mep::HelloKind kind, uint32_t slot) {
    mep::Hello hello;
    hello.kind = kind;
    hello.size = hello.max_size = 4;
    hello.job = "a job";
    hello.identity.slot = slot;
    hello.identity.incarnation = 100 + slot;
    return hello;
  }

  void progress() {
    if (result != MEP_SUCCESS) return;
    mep_result_t decision = MEP_SUCCESS;
    const mep_result_t received = link->receive([&](mep::Frame& frame) {
      if (greeting->done()) {
        frames.push_back(std::move(frame));
        return true;
      }
      mep::Greeting::Step step = mep::Greeting::Step::kMore;
      decision = greeting->take(link.get(), &frame, &step);
      if (decision == MEP_SUCCESS && step == mep::Greeting::Step::kHello) {
        decision = greeting->answer(link.get(), hello(mep::HelloKind::kMember, 1));
      } else if (decision == MEP_SUCCESS && step == mep::Greeting::Step::kOther) {
        decision = MEP_ERR_DENIED;
      }
      return decision == MEP_SUCCESS;
    });
    result = decision != MEP_SUCCESS ? decision : received;
  }
};

struct Pair {
  End caller;
  End answerer;
  Bytes recorded[2];  // to the answerer, to the caller

  explicit Pair(const std::string& caller_secret = std::string(16, 's'),
                const std::string& answerer_secret = std::string(16, 's'), bool is_remote = true) {
    assert_int_equal(mep::prepare_crypto(), MEP_SUCCESS);
    caller.open(mep::HandshakeSide::kCaller, kMarker, caller_secret, is_remote);
    answerer.open(mep::HandshakeSide::kAnswerer, kOtherMarker, answerer_secret, is_remote);
    assert_int_equal(caller.greeting->call(caller.link.get(), End::hello(mep::HelloKind::kInit, 2)),
                     MEP_SUCCESS);
  }

  // `change` may alter what goes by: direction, its place in the stream, the bytes.
  using Change = std::function<void(int direction, size_t offset, Bytes* bytes)>;
  bool relay(const Change& change) {
    bool moved = false;
    for (int direction = 0; direction < 2; ++direction) {
      const int from = (direction == 0 ? caller : answerer).far.get();
      const int to = (direction == 0 ? answerer : caller).far.get();
      Bytes bytes(1 << 16);
      const ssize_t count = recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (count <= 0) continue;
      bytes.resize(static_cast<size_t>(count));
      const size_t offset = recorded[direction].size();
      recorded[direction].insert(recorded[direction].end(), bytes.begin(), bytes.end());
      // The relay passes no descriptors on: it announces none.
      if (offset == 0 && bytes.size() > 6) bytes[6] = 0;
      if (change) change(direction, offset, &bytes);
      if (!bytes.empty()) (void)!send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      moved = true;
    }
    return moved;
  }

  void run(const Change& change = nullptr) {
    for (int idle = 0; idle < 3;) {
      idle = relay(change) ? 0 : idle + 1;
      caller.progress();
      answerer.progress();
    }
  }
  bool both_done() { return caller.greeting->done() && answerer.greeting->done(); }
};

bool holds(const Bytes& bytes, const char* text) {
  return std::search(bytes.begin(), bytes.end(), text, text + strlen(text)) != bytes.end();
}

void both_sides_end_with_the_same_key(void**) {
  for (const bool is_remote : {true, false}) {
    for (const char* secret : {"sixteen bytes or more", ""}) {
      Pair pair(secret, secret, is_remote);
      pair.run();
      assert_true(pair.both_done());
      assert_true(pair.caller.greeting->session().key == pair.answerer.greeting->session().key);
      Pair again(secret, secret, is_remote);
      again.run();
      assert_false(pair.caller.greeting->session().key == again.caller.greeting->session().key);
      assert_memory_equal(pair.caller.greeting->details().offer.data(), kOtherMarker,
                          strlen(kOtherMarker));
      assert_int_equal(pair.answerer.greeting->details().addresses.size(), 1);
    }
  }
}

// The two lines are what an eavesdropper looks for; on a local link they are there, so the search works.
void an_eavesdropper_reads_no_details(void**) {
  for (const bool is_remote : {true, false}) {
    Pair pair(std::string(20, 'x'), std::string(20, 'x'), is_remote);
    pair.run();
    assert_true(pair.both_done());
    const std::vector<std::byte> blob = marker_bytes("window-blob-that-nobody-may-read");
    assert_int_equal(pair.caller.link->send(kDataFrame, blob), MEP_SUCCESS);
    pair.run();
    assert_int_equal(pair.answerer.frames.size(), 1);
    assert_true(pair.answerer.frames[0].payload == blob);
    assert_int_equal(holds(pair.recorded[0], kMarker), !is_remote);
    assert_int_equal(holds(pair.recorded[1], kOtherMarker), !is_remote);
    assert_int_equal(holds(pair.recorded[0], "window-blob-that-nobody"), !is_remote);
  }
}

void who_lacks_the_secret_neither_gets_in_nor_learns(void**) {
  const std::string right(16, 's');
  for (const std::string& wrong : {std::string(), std::string(16, 't')}) {
    for (const bool caller_is_wrong : {true, false}) {
      Pair pair(caller_is_wrong ? wrong : right, caller_is_wrong ? right : wrong);
      pair.run();
      assert_false(pair.caller.greeting->done());
      assert_false(pair.answerer.greeting->done());
      const End& honest = caller_is_wrong ? pair.answerer : pair.caller;
      if (!caller_is_wrong) assert_int_equal(honest.result, MEP_ERR_DENIED);
      for (const Bytes& bytes : pair.recorded) {
        assert_false(holds(bytes, kMarker));
        assert_false(holds(bytes, kOtherMarker));
      }
    }
  }
}

// A stranger that plays on after the proof it cannot check: what it sends is no proof.
void a_made_up_proof_is_refused(void**) {
  Pair pair(std::string(16, 't'), std::string(16, 's'));
  pair.run();
  assert_int_equal(pair.answerer.result, MEP_SUCCESS);  // it waits for the proof
  const std::vector<std::byte> proof(mep::kProofBytes + sizeof(mep::StreamHeader), std::byte{1});
  mep::ControlLink stranger(std::move(pair.answerer.far));
  assert_int_equal(stranger.send(mep::kProofFrame, proof), MEP_SUCCESS);
  pair.answerer.progress();
  assert_int_equal(pair.answerer.result, MEP_ERR_DENIED);
  assert_non_null(strstr(mep::last_error_text(), "MEP_SECRET_FILE"));
}

// The relay sends the caller its own messages back.
void a_mirror_is_no_peer(void**) {
  Pair pair;
  Bytes bytes(1 << 16);
  for (int i = 0; i < 4; ++i) {
    const ssize_t count = recv(pair.caller.far.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0) {
      assert_int_equal(send(pair.caller.far.get(), bytes.data(), static_cast<size_t>(count), 0),
                       count);
    }
    pair.caller.progress();
  }
  assert_false(pair.caller.greeting->done());
}

// Every bit that is turned over in the handshake keeps the two from becoming peers, or what they sent
// each other under another identity than the other's own would be believed.
void an_altered_handshake_never_succeeds(void**) {
  size_t lengths[2];
  {
    Pair pair;
    pair.run();
    assert_true(pair.both_done());
    lengths[0] = pair.recorded[0].size();
    lengths[1] = pair.recorded[1].size();
  }
  for (int direction = 0; direction < 2; ++direction) {
    for (size_t target = 0; target < lengths[direction]; ++target) {
      Pair pair;
      pair.run([&](int from, size_t offset, Bytes* bytes) {
        if (from == direction && target >= offset && target - offset < bytes->size()) {
          (*bytes)[target - offset] ^= static_cast<unsigned char>(1u << (target % 8));
        }
      });
      if (pair.both_done()) fail_msg("byte %zu of direction %d was altered", target, direction);
      // The side that got it believes nothing; the other one only what was sent to it.
      const End& victim = direction == 0 ? pair.answerer : pair.caller;
      assert_false(victim.greeting->done());
    }
  }
}

// Frames of a finished link: each one comes as it was sent and in its place, or the link ends.
void altered_repeated_and_missing_frames_end_the_link(void**) {
  std::mt19937_64 random(mep_reference::seed_of_run());
  for (int round = 0; round < 600; ++round) {
    Pair pair;
    pair.run();
    assert_true(pair.both_done());
    const size_t base = pair.recorded[0].size();
    std::vector<std::vector<std::byte>> payloads;
    for (int i = 0; i < 5; ++i) {
      payloads.emplace_back(random() % 300, static_cast<std::byte>(i));
      assert_int_equal(pair.caller.link->send(kDataFrame, payloads.back()), MEP_SUCCESS);
    }
    const uint64_t kind = random() % 4;
    pair.run([&](int direction, size_t offset, Bytes* bytes) {
      if (direction != 0 || offset != base) return;
      std::vector<Bytes> frames;  // by their lengths, which anybody can read
      for (size_t at = 0; at + 4 <= bytes->size();) {
        uint32_t length = 0;
        memcpy(&length, bytes->data() + at, sizeof length);
        frames.emplace_back(bytes->begin() + static_cast<ptrdiff_t>(at),
                            bytes->begin() + static_cast<ptrdiff_t>(at + 4 + length));
        at += 4 + length;
      }
      assert_int_equal(frames.size(), 5);
      const size_t which = random() % 4;
      if (kind == 0) frames[which][random() % frames[which].size()] ^= 0x40;
      if (kind == 1) frames.insert(frames.begin() + static_cast<ptrdiff_t>(which), frames[which]);
      if (kind == 2) frames.erase(frames.begin() + static_cast<ptrdiff_t>(which));
      if (kind == 3) std::swap(frames[which], frames[which + 1]);
      bytes->clear();
      for (const Bytes& frame : frames) bytes->insert(bytes->end(), frame.begin(), frame.end());
    });
    assert_true(pair.answerer.frames.size() < 5);
    for (size_t i = 0; i < pair.answerer.frames.size(); ++i) {
      assert_true(pair.answerer.frames[i].payload == payloads[i]);
    }
    // A length that was made larger leaves it waiting for what never comes.
    if (kind != 0) assert_int_equal(pair.answerer.result, MEP_ERR_DENIED);
  }
}

// A recorded session does not open another one.
void a_replayed_session_is_refused(void**) {
  Pair first;
  first.run();
  assert_true(first.both_done());
  Pair second;
  assert_int_equal(send(second.answerer.far.get(), first.recorded[0].data(),
                        first.recorded[0].size(), MSG_NOSIGNAL),
                   first.recorded[0].size());
  for (int i = 0; i < 5; ++i) second.answerer.progress();
  assert_false(second.answerer.greeting->done());
  assert_int_equal(second.answerer.result, MEP_ERR_DENIED);
}

void a_cut_within_a_frame_gives_nothing(void**) {
  Pair pair;
  pair.run();
  const std::vector<std::byte> payload(100, std::byte{5});
  assert_int_equal(pair.caller.link->send(kDataFrame, payload), MEP_SUCCESS);
  pair.run([](int, size_t, Bytes* bytes) { bytes->resize(bytes->size() - 1); });
  assert_int_equal(pair.answerer.frames.size(), 0);
  pair.answerer.far.reset();
  pair.answerer.progress();
  assert_int_equal(pair.answerer.result, MEP_ERR_PEER_FAILED);
  assert_int_equal(pair.answerer.frames.size(), 0);
}

void a_sealed_link_takes_no_descriptors(void**) {
  Pair pair;
  pair.run();
  const int fd = pair.caller.link->fd();
  assert_int_equal(pair.caller.link->send(kDataFrame, {}, std::span(&fd, 1)), MEP_ERR_INTERNAL);
}

// Public keys of small order would make a secret that everybody knows.
void keys_that_make_no_secret_are_refused(void**) {
  mep::JobSecret secret;
  const mep::EphemeralKey key;
  mep::HandshakeKeys keys;
  mep::PublicKey zero{};
  assert_int_equal(keys.derive(key, zero, {}, {}, secret), MEP_ERR_DENIED);
  zero[0] = std::byte{1};
  assert_int_equal(keys.derive(key, zero, {}, {}, secret), MEP_ERR_DENIED);
}

// The formulas of docs/design/handshake.md, computed with libsodium's functions directly.
void keys_follow_the_written_formulas(void**) {
  Pair pair(std::string(32, 'k'), std::string(32, 'k'), false);
  mep::EphemeralKey own;
  unsigned char other_private[32];
  mep::PublicKey other_public;
  randombytes_buf(other_private, sizeof other_private);
  crypto_scalarmult_base(reinterpret_cast<unsigned char*>(other_public.data()), other_private);
  const std::string hello_c = "caller's hello";
  const std::string hello_a = "the answer";
  mep::HandshakeKeys keys;
  assert_int_equal(keys.derive(own, other_public, std::as_bytes(std::span(hello_c)),
                               std::as_bytes(std::span(hello_a)), pair.caller.secret),
                   MEP_SUCCESS);
  const auto hash = [](const std::string& key, const std::string& text, size_t bytes) {
    std::string out(bytes, '\0');
    crypto_generichash(reinterpret_cast<unsigned char*>(out.data()), bytes,
                       reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                       reinterpret_cast<const unsigned char*>(key.data()), key.size());
    return out;
  };
  const auto framed = [](const std::string& text) {
    std::string out(4, '\0');
    out[0] = static_cast<char>(text.size());
    return out + text;
  };
  std::string shared(32, '\0');
  assert_int_equal(
      crypto_scalarmult(reinterpret_cast<unsigned char*>(shared.data()), other_private,
                        reinterpret_cast<const unsigned char*>(own.public_key().data())),
      0);
  const std::string transcript = hash("", "MEP handshake" + framed(hello_c) + framed(hello_a), 32);
  const std::string secret = hash("", "MEP job secret" + std::string(32, 'k'), 32);
  const std::string master = hash(secret, "MEP keys" + shared + transcript, 64);
  const std::string session = hash(master, "session", 32);
  assert_memory_equal(keys.session().key.data(), session.data(), 32);
  const std::string stream = hash(master, "caller to answerer", 32);
  assert_memory_equal(keys.key_from(mep::HandshakeSide::kCaller).data(), stream.data(), 32);
  const mep::StreamHeader header{};
  const std::string proof =
      hash(hash(master, "answerer proof", 32), transcript + std::string(sizeof header, '\0'), 32);
  const auto made = keys.proof_of(mep::HandshakeSide::kAnswerer, header);
  assert_memory_equal(made.data(), proof.data(), 32);
}

void secret_files_are_checked(void**) {
  mep::JobSecret secret;
  const auto refuse = [&](const std::string& path, mep_result_t result, const char* part) {
    assert_int_equal(secret.load(path), result);
    assert_false(secret.given());
    if (strstr(mep::last_error_text(), part) == nullptr) fail_msg("%s", mep::last_error_text());
    unlink(path.c_str());
  };
  refuse("/nowhere/secret", MEP_ERR_NOT_FOUND, "/nowhere/secret");
  refuse("/tmp", MEP_ERR_DENIED, "no regular file");
  refuse(secret_file(std::string(15, 'x')), MEP_ERR_DENIED, "15 bytes");
  refuse(secret_file(std::string(5000, 'x')), MEP_ERR_DENIED, "over 4096");
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0610}) {
    refuse(secret_file(std::string(16, 'x'), mode), MEP_ERR_DENIED, "chmod 600");
  }
  if (geteuid() == 0) {
    const std::string path = secret_file(std::string(16, 'x'));
    assert_int_equal(chown(path.c_str(), 65534, 65534), 0);
    refuse(path, MEP_ERR_DENIED, "belongs to user id 65534");
  }
  assert_int_equal(secret.load(""), MEP_SUCCESS);
  assert_false(secret.given());
  load(&secret, std::string(16, 'x'));
  assert_true(secret.given());
}

void announcements_are_for_one_incarnation(void**) {
  mep::JobSecret secret;
  mep::JobSecret other;
  load(&secret, std::string(16, 'a'));
  load(&other, std::string(16, 'b'));
  mep::Abort abort;
  abort.text = "gone wrong";
  const std::vector<std::byte> bytes = mep::encode_announcement(abort, 7, secret);
  mep::Abort out;
  assert_true(mep::decode_announcement(bytes, 7, secret, &out));
  assert_string_equal(out.text.c_str(), "gone wrong");
  assert_false(mep::decode_announcement(bytes, 8, secret, &out));
  assert_false(mep::decode_announcement(bytes, 7, other, &out));
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::vector<std::byte> altered = bytes;
    altered[i] ^= std::byte{4};
    assert_false(mep::decode_announcement(altered, 7, secret, &out));
    assert_false(mep::decode_announcement(std::span(bytes).first(i), 7, secret, &out));
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(both_sides_end_with_the_same_key),
      cmocka_unit_test(an_eavesdropper_reads_no_details),
      cmocka_unit_test(who_lacks_the_secret_neither_gets_in_nor_learns),
      cmocka_unit_test(a_made_up_proof_is_refused),
      cmocka_unit_test(a_mirror_is_no_peer),
      cmocka_unit_test(an_altered_handshake_never_succeeds),
      cmocka_unit_test(altered_repeated_and_missing_frames_end_the_link),
      cmocka_unit_test(a_replayed_session_is_refused),
      cmocka_unit_test(a_cut_within_a_frame_gives_nothing),
      cmocka_unit_test(a_sealed_link_takes_no_descriptors),
      cmocka_unit_test(keys_that_make_no_secret_are_refused),
      cmocka_unit_test(keys_follow_the_written_formulas),
      cmocka_unit_test(secret_files_are_checked),
      cmocka_unit_test(announcements_are_for_one_incarnation),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
