// labels: gate threads tsan asan
// The tcp transport against peers and strangers that do not keep to its rules: whatever they send lands
// nowhere, ends at most their own connection, and disturbs no other peer.
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <functional>

#include "support/tcp_rogue.hpp"
#include "transport/mapped_transport.hpp"
#include "transport/tcp/sealing.hpp"
#include "transport/tcp/tcp_transport.hpp"

namespace {

using namespace mep::test;  // NOLINT(google-build-using-namespace)
using mep::PeerFailure;
using mep::PeerIdentity;
using mep::PeerSession;
using mep::Window;

struct Crime {
  const char* finding;
  std::function<std::vector<std::byte>(const Victim&)> bytes;
};
std::vector<Crime> crimes() {
  const auto data = [](const Victim& v) { return Victim::token_in(v.data_blob()); };
  const auto put = [=](uint64_t offset, uint32_t bytes) {
    return [=](const Victim& v) { return frame_bytes(put_frame(data(v), offset, bytes), 64); };
  };
  const auto to_target = [](uint64_t number) {
    return [=](const Victim&) { return frame_bytes({FrameKind::kTarget, false, 64, number}, 64); };
  };
  const auto world = [](const Victim& v) { return Victim::token_in(v.world_blob()); };
  return {
      {"no frame", [](const Victim&) { return std::vector<std::byte>(4096, std::byte{0xee}); }},
      {"no window", [](const Victim&) { return frame_bytes(put_frame(0, 0, 64), 64); }},
      {"beyond", put(kWindowBytes - 63, 64)},
      {"beyond", put(kWindowBytes, 8)},
      {"no frame", put(UINT64_MAX - 7, 64)},
      {"no frame", put(0, 0x7fffffff)},
      {"beyond", put(0, mep::tcp::kMaxPutBytes)},
      {"no target", to_target(2)},
      {"end of its target", to_target(1)},
      {"no frame", [=](const Victim& v) { return frame_bytes(signal_frame(data(v), 4, 1)); }},
      {"beyond",
       [=](const Victim& v) { return frame_bytes(signal_frame(data(v), kWindowBytes, 1)); }},
      {"no window", [=](const Victim& v) { return frame_bytes(signal_frame(data(v) ^ 1, 0, 1)); }},
      {"doorbell", [=](const Victim& v) { return frame_bytes(signal_frame(world(v), 8, 1)); }},
      {"doorbell", [=](const Victim& v) { return frame_bytes(put_frame(world(v), 60, 8), 8); }},
      {"out of order",
       [](const Victim&) {
         std::vector<std::byte> bytes = frame_bytes({FrameKind::kMark, false, 0, 0, 5, 0});
         const std::vector<std::byte> back = frame_bytes({FrameKind::kMark, false, 0, 0, 4, 0});
         bytes.insert(bytes.end(), back.begin(), back.end());
         return bytes;
       }},
  };
}

// A member that has gone bad: it knows its key.
void a_rogue_peer_harms_itself_alone(void**) {
  for (const auto& [protection, cipher] : all_ways()) {
    for (const Crime& crime : crimes()) {
      Victim victim({});
      Victim other({}, kFriend);
      victim.add(kRogue, session_of(1));
      victim.add(kFriend, session_of(2));
      other.add(kVictim, session_of(2));
      other.meet(kVictim, victim);
      Rogue rogue(victim, protection, session_of(1), cipher);
      assert_true(rogue.greet());
      assert_true(eventually([&] { return victim.is_connected(kRogue); }));
      std::byte target[63] = {};
      assert_int_equal(victim.transport().open_target(kRogue.slot, target, 63), 1);
      rogue.send_stream(crime.bytes(victim));
      if (!failed_with(victim, kRogue, crime.finding)) fail_msg("%s", crime.finding);
      assert_true(rogue.thrown_out());
      assert_true(victim.unchanged());
      assert_int_equal(post_put(victim.transport(), kRogue.slot, kDataWindow, 0, "x", 1),
                       MEP_ERR_INVALID_ARGUMENT);  // never imported
      // The other one still gets through.
      assert_int_equal(other.transport().import_window(kVictim.slot, kDataWindow, kWindowBytes,
                                                       victim.data_blob(), {}),
                       MEP_SUCCESS);
      assert_int_equal(post_signal(other.transport(), kVictim.slot, kDataWindow, 64, 42, false),
                       MEP_SUCCESS);
      auto* word = reinterpret_cast<std::atomic<uint64_t>*>(victim.data().data() + 64);
      assert_true(eventually([&] { return word->load(std::memory_order_acquire) == 42; }));
    }
  }
}

// Correct frames land, however they are cut up.
void frames_land_byte_by_byte(void**) {
  for (const auto& [protection, cipher] : all_ways()) {
    Victim victim({});
    victim.add(kRogue, session_of(1));
    Rogue rogue(victim, protection, session_of(1), cipher);
    assert_true(rogue.greet());
    const uint64_t token = Victim::token_in(victim.data_blob());
    std::vector<std::byte> stream = frame_bytes(put_frame(token, 100, 50), 50);
    const auto signal = frame_bytes(signal_frame(token, 64, 9));
    stream.insert(stream.end(), signal.begin(), signal.end());
    const std::vector<std::byte> out =
        protection == Protection::kPlain ? stream : rogue.sealed(stream);
    for (const std::byte& byte : out) {
      rogue.send_raw(&byte, 1);
      const timespec nap{0, 20000};
      nanosleep(&nap, nullptr);
    }
    auto* word = reinterpret_cast<std::atomic<uint64_t>*>(victim.data().data() + 64);
    assert_true(eventually([&] { return word->load(std::memory_order_acquire) == 9; }));
    assert_true(std::all_of(victim.data().data() + 100, victim.data().data() + 150,
                            [](std::byte b) { return b == std::byte{0x77}; }));
  }
}

// Somebody between the two: alters, repeats, leaves out, lengthens.
void altered_records_do_not_open(void**) {
  for (const auto& [protection, cipher] : sealed_ways()) {
    for (int kind = 0; kind < 6; ++kind) {
      Victim victim({});
      victim.add(kRogue, session_of(1));
      Rogue rogue(victim, protection, session_of(1), cipher);
      assert_true(rogue.greet());
      const uint64_t token = Victim::token_in(victim.data_blob());
      const std::vector<std::byte> mark = frame_bytes({FrameKind::kMark, false, 0, 0, 7, 0});
      std::vector<std::byte> first = rogue.sealed(mark);
      std::vector<std::byte> second = rogue.sealed(frame_bytes(signal_frame(token, 64, 1)));
      const char* finding = "not authentic";
      switch (kind) {
        case 0:  // altered: each bit of one byte of the body
          second[mep::tcp::kRecordHeaderBytes + 24] ^= std::byte{1};
          break;
        case 1:  // its tag
          second.back() ^= std::byte{0x80};
          break;
        case 2:  // repeated
          second = first;
          break;
        case 3:  // the first left out
          first.clear();
          break;
        case 4:  // in the wrong order
          second.insert(second.end(), first.begin(), first.end());
          first.clear();
          break;
        default: {  // longer than any
          const uint32_t length = 0x10001;
          std::memcpy(second.data(), &length, sizeof length);
          finding = "impossible length";
        }
      }
      rogue.send_raw(first.data(), first.size());
      if (!first.empty()) {
        assert_true(eventually([&] { return victim.transport().quiesced(kRogue.slot, 7); }));
      }
      rogue.send_raw(second.data(), second.size());
      assert_true(failed_with(victim, kRogue, finding));
      assert_true(victim.unchanged());
    }
  }
}

void who_does_not_know_the_key_stays_outside(void**) {
  Victim victim({});
  victim.add(kRogue, session_of(1));
  for (int attempt = 0; attempt < 5; ++attempt) {
    Rogue stranger(victim, Protection::kPlain, session_of(99));
    assert_false(stranger.greet());
    stranger.send_stream(frame_bytes(signal_frame(Victim::token_in(victim.data_blob()), 64, 1)));
    assert_true(stranger.thrown_out());
  }
  assert_false(victim.is_connected(kRogue));
  assert_true(victim.unchanged());
  PeerFailure failure;
  assert_false(victim.transport().take_failure(&failure));  // it says nothing about the real one
  Rogue real(victim, Protection::kPlain, session_of(1));
  assert_true(real.greet());
  assert_true(eventually([&] { return victim.is_connected(kRogue); }));
}

// The rank that connects finds somebody else at the address.
void an_impostor_is_not_talked_to(void**) {
  Victim impostor({});
  impostor.add(kFriend, session_of(5));
  mep::TransportOptions impatient;
  impatient.connect_timeout_ms = 700;
  Victim caller(impatient, kFriend);
  caller.add(kVictim, session_of(6));
  caller.meet(kVictim, impostor);
  assert_true(failed_with(caller, kVictim, "does not know the session's key"));
  assert_false(caller.is_connected(kVictim));
  assert_false(impostor.is_connected(kFriend));
}

void silent_strangers_get_no_place_for_long(void**) {
  Victim victim({});
  std::vector<mep::UniqueFd> strangers;
  for (int i = 0; i < 400; ++i) {
    strangers.push_back(call(victim.offer()));
    if (i % 3 == 0) (void)!write(strangers.back().get(), "GET / HTTP/1.1\r\n", 16);
  }
  assert_true(eventually([&] { return victim.transport().half_open() > 200; }));
  assert_true(victim.transport().half_open() <= 256);
  victim.add(kRogue, session_of(1));
  Rogue real(victim, Protection::kPlain, session_of(1));
  assert_true(real.greet());
  assert_true(eventually([&] { return victim.is_connected(kRogue); }));
  assert_true(eventually([&] { return victim.transport().half_open() == 0; }));
}

// Without a descriptor for a caller the listener stays readable; who watches it must get some rest.
void a_caller_without_a_place_is_no_work(void**) {
  Victim victim({});
  rlimit before{};
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  mep::UniqueFd stranger = call(victim.offer(), [&] {
    const int lowest = dup(0);
    assert_true(lowest >= 0);
    close(lowest);
    rlimit full = before;
    full.rlim_cur = static_cast<rlim_t>(lowest);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &full), 0);
  });
  // The call came before the first look, so the rest is not the time before it.
  pollfd called{victim.transport().events().control, POLLIN, 0};
  const bool rests = eventually([&] { return poll(&called, 1, 0) == 0; });
  const size_t half_open = victim.transport().half_open();
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  assert_true(rests);
  assert_int_equal(half_open, 0);
  assert_true(eventually([&] { return victim.transport().half_open() == 1; }));
}

void a_fence_ends_a_put_in_its_middle(void**) {
  for (const auto& [protection, cipher] : all_ways()) {
    Victim victim({});
    victim.add(kRogue, session_of(1));
    Rogue rogue(victim, protection, session_of(1), cipher);
    assert_true(rogue.greet());
    const uint64_t token = Victim::token_in(victim.data_blob());
    constexpr uint32_t kHalf = 32 << 10;
    rogue.send_stream(frame_bytes(put_frame(token, 0, 2 * kHalf), kHalf));
    const auto landed = [&](size_t at) { return victim.data().data()[at] == std::byte{0x77}; };
    assert_true(eventually([&] {
      // The pump writes it without a signal; the fence below is what orders the look at it.
      (void)victim.transport().progress(false);
      victim.transport().hold_windows(true);
      const bool there = landed(kHalf - 1);
      victim.transport().hold_windows(false);
      return there;
    }));
    assert_int_equal(victim.transport().fence_out(kRogue.slot), MEP_SUCCESS);
    assert_false(landed(kHalf));
    std::memset(victim.data().data(), 0, kWindowBytes);
    rogue.send_stream(std::vector<std::byte>(kHalf, std::byte{0x77}));
    rogue.send_stream(frame_bytes(signal_frame(token, 0, 1)));
    assert_true(rogue.thrown_out());
    assert_true(victim.unchanged());
    assert_int_equal(post_signal(victim.transport(), kRogue.slot, kDataWindow, 0, 1, false),
                     MEP_ERR_PEER_FAILED);
  }
}

// Its host is gone, or its process was killed, with a put half sent.
void a_peer_that_ends_in_a_put_is_evidence(void**) {
  for (const bool reset : {false, true}) {
    Victim victim({});
    victim.add(kRogue, session_of(1));
    Rogue rogue(victim, Protection::kPlain, session_of(1));
    assert_true(rogue.greet());
    const uint64_t token = Victim::token_in(victim.data_blob());
    rogue.send_stream(frame_bytes(put_frame(token, 4096, 100000), 50000));
    if (reset) {
      const linger abort_now{1, 0};
      setsockopt(rogue.socket(), SOL_SOCKET, SO_LINGER, &abort_now, sizeof abort_now);
    }
    rogue.hang_up();
    assert_true(failed_with(victim, kRogue, reset ? "failed" : "closed"));
    // Another incarnation takes its place.
    victim.transport().remove_peer(kRogue.slot);
    victim.add(kRogue, session_of(1));
    Rogue next(victim, Protection::kPlain, session_of(1));
    assert_true(next.greet());
    next.send_stream(frame_bytes(signal_frame(token, 64, 3)));
    auto* word = reinterpret_cast<std::atomic<uint64_t>*>(victim.data().data() + 64);
    assert_true(eventually([&] { return word->load(std::memory_order_acquire) == 3; }));
  }
}

// Data queued in an epoch that ended before there was a connection does not land in the next.
void what_waited_for_a_connection_in_an_old_epoch_is_dropped(void**) {
  Victim victim({});
  victim.add(kRogue, session_of(1));
  assert_true(victim.transport().quiesced(kRogue.slot, 9));  // nothing can be under way
  Rogue rogue(victim, Protection::kPlain, session_of(1));
  assert_true(rogue.greet());
  const uint64_t token = Victim::token_in(victim.data_blob());
  rogue.send_stream(frame_bytes(put_frame(token, 4096, 5000), 5000));
  rogue.send_stream(frame_bytes(signal_frame(token, 64, 1)));
  rogue.send_stream(frame_bytes({FrameKind::kMark, false, 0, 0, 9, 0}));
  rogue.send_stream(frame_bytes(signal_frame(token, 72, 2)));
  const auto word = [&](size_t offset) {
    return reinterpret_cast<std::atomic<uint64_t>*>(victim.data().data() + offset)
        ->load(std::memory_order_acquire);
  };
  assert_true(eventually([&] { return word(72) == 2; }));
  assert_true(victim.transport().quiesced(kRogue.slot, 9));
  assert_true(word(64) == 0);
  assert_true(word(4096) == 0 && word(4096 + 4992) == 0);
}

void interfaces_are_chosen_by_name(void**) {
  std::vector<Address> found;
  assert_int_equal(mep::tcp::local_addresses({"lo/4", false}, &found), MEP_SUCCESS);
  assert_true(found.size() == 1 && found[0].is_loopback && !found[0].is_v6);
  assert_int_equal(mep::tcp::local_addresses({"nothing*,l?/6", false}, &found), MEP_SUCCESS);
  assert_true(found.size() == 1 && found[0].is_v6);
  assert_int_equal(mep::tcp::local_addresses({"nothing*", false}, &found), MEP_ERR_NOT_FOUND);
  assert_int_equal(mep::tcp::local_addresses({"", true}, &found), MEP_SUCCESS);
  assert_true(found.size() == 1 && found[0].is_loopback);
  std::vector<std::byte> bytes = mep::tcp::encode_addresses(found);
  for (size_t length = 0; length < bytes.size(); ++length) {
    assert_true(mep::tcp::parse_addresses({bytes.data(), length}, &found) !=
                mep::tcp::Parse::kComplete);
  }
}

}  // namespace

int main() {
  assert_int_equal(mep::tcp::prepare_sodium(), MEP_SUCCESS);
  const CMUnitTest tests[] = {
      cmocka_unit_test(interfaces_are_chosen_by_name),
      cmocka_unit_test(frames_land_byte_by_byte),
      cmocka_unit_test(a_rogue_peer_harms_itself_alone),
      cmocka_unit_test(altered_records_do_not_open),
      cmocka_unit_test(who_does_not_know_the_key_stays_outside),
      cmocka_unit_test(an_impostor_is_not_talked_to),
      cmocka_unit_test(silent_strangers_get_no_place_for_long),
      cmocka_unit_test(a_caller_without_a_place_is_no_work),
      cmocka_unit_test(a_fence_ends_a_put_in_its_middle),
      cmocka_unit_test(a_peer_that_ends_in_a_put_is_evidence),
      cmocka_unit_test(what_waited_for_a_connection_in_an_old_epoch_is_dropped),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
