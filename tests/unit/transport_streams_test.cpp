// labels: gate threads tsan asan
// Several connections of a pair of ranks: what follows large puts on the first one takes effect after all that was put
// on the others, whatever comes first, and their ends and errors are the pair's.
#include "support/tcp_rogue.hpp"

namespace {

using namespace mep::test;  // NOLINT(google-build-using-namespace)
using mep::Posting;
using mep::Transport;

void want_streams(const char* count) {
  setenv("MEP_TCP_STREAMS", count, 1);
}

// --- Against a peer that sends what the test wants -------------------------------------------------

// Both ends of two connections.
struct Pair {
  explicit Pair(const Way& way) : Pair(way, [](Victim&) {}) {}
  template <typename Before>
  Pair(const Way& way, Before&& before) {
    want_streams("3");
    victim = std::make_unique<Victim>(mep::TransportOptions{});
    victim->add(kRogue, session_of(1));
    before(*victim);
    for (uint8_t stream = 0; stream < 2; ++stream) {
      assert_false(victim->is_connected(kRogue));
      rogues.push_back(std::make_unique<Rogue>(*victim, way.protection, session_of(1), way.cipher,
                                               stream, uint8_t{2}));
      assert_true(rogues.back()->greet());
      assert_int_equal(rogues.back()->challenge().streams, 2);  // the fewer of both
    }
    assert_true(eventually([&] { return victim->is_connected(kRogue); }));
    token = Victim::token_in(victim->data_blob());
  }
  Rogue& first() { return *rogues[0]; }
  Rogue& second() { return *rogues[1]; }
  uint64_t word(size_t offset) const {
    return reinterpret_cast<std::atomic<uint64_t>*>(victim->data().data() + offset)
        ->load(std::memory_order_acquire);
  }
  bool word_comes(size_t offset, uint64_t value) const {
    return eventually([&] { return word(offset) == value; });
  }

  std::unique_ptr<Victim> victim;
  std::vector<std::unique_ptr<Rogue>> rogues;
  uint64_t token = 0;
};

DataFrame after_frame(uint64_t stream, uint64_t bytes) {
  return {FrameKind::kAfter, false, 0, stream, bytes, 0};
}

DataFrame mark_frame(uint64_t number) {
  return {FrameKind::kMark, false, 0, 0, number, 0};
}

std::vector<std::byte> joined(std::initializer_list<std::vector<std::byte>> parts) {
  std::vector<std::byte> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Whether a put has written the byte. It is read while a thread of the victim may write it, which ThreadSanitizer would report.
__attribute__((no_sanitize("thread"))) bool is_written(const std::byte* memory, size_t at) {
  return *const_cast<const volatile std::byte*>(memory + at) == std::byte{0x77};
}

// The byte behind what has landed so far says how far it is.
bool landed_up_to(Pair& pair, size_t offset) {
  const std::byte* const data = pair.victim->data().data();
  return eventually([&] { return is_written(data, offset - 1); });
}

void a_signal_waits_for_the_other_connection(void**) {
  for (const Way& way : all_ways()) {
    Pair pair(way);
    pair.second().send_stream(frame_bytes(put_frame(pair.token, 4096, 9000), 5000));
    assert_true(landed_up_to(pair, 4096 + 5000));
    pair.first().send_stream(
        joined({frame_bytes(signal_frame(pair.token, 64, 1)), frame_bytes(after_frame(1, 9000)),
                frame_bytes(signal_frame(pair.token, 72, 2)), frame_bytes(after_frame(1, 9500)),
                frame_bytes(signal_frame(pair.token, 80, 3))}));
    assert_true(pair.word_comes(64, 1));
    pair.first().send_stream(frame_bytes(signal_frame(pair.token, 88, 4)));
    assert_int_equal(pair.word(72), 0);
    pair.second().send_stream(std::vector<std::byte>(4000, std::byte{0x77}));
    assert_true(pair.word_comes(72, 2));
    assert_true(landed_up_to(pair, 4096 + 9000));
    assert_int_equal(pair.word(80), 0);
    assert_int_equal(pair.word(88), 0);
    pair.second().send_stream(frame_bytes(put_frame(pair.token, 20000, 500), 500));
    assert_true(pair.word_comes(80, 3));
    assert_true(pair.word_comes(88, 4));
  }
}

void frames_belong_on_their_connections(void**) {
  const Way plain{Protection::kPlain, Cipher::kChaCha20Poly1305};
  for (int crime = 0; crime < 5; ++crime) {
    Pair pair(plain);
    const char* finding = crime < 2 ? "wrong one" : crime < 4 ? "does not have" : "out of order";
    switch (crime) {
      case 0:
        pair.second().send_stream(frame_bytes(signal_frame(pair.token, 64, 1)));
        break;
      case 1:
        pair.second().send_stream(frame_bytes(after_frame(1, 0)));
        break;
      case 2:
        pair.first().send_stream(frame_bytes(after_frame(0, 0)));
        break;
      case 3:
        pair.first().send_stream(frame_bytes(after_frame(2, 0)));
        break;
      default:
        pair.second().send_stream(joined({frame_bytes(mark_frame(5)), frame_bytes(mark_frame(4))}));
    }
    assert_true(failed_with(*pair.victim, kRogue, finding));
    assert_true(pair.first().thrown_out());
    assert_true(pair.second().thrown_out());
    assert_true(pair.victim->unchanged());
  }
}

void a_closed_target_is_not_written(void**) {
  for (const Way& way : all_ways()) {
    Pair pair(way);
    std::vector<std::byte> memory(20000);
    TcpTransport& transport = pair.victim->transport();
    const uint64_t number = transport.open_target(kRogue.slot, memory.data(), memory.size());
    pair.second().send_stream(frame_bytes({FrameKind::kTarget, false, 20000, number, 0, 0}, 10000));
    assert_true(eventually([&] { return is_written(memory.data(), 9999); }));
    transport.close_target(kRogue.slot, number);
    std::fill(memory.begin(), memory.end(), std::byte{5});
    pair.second().send_stream(
        joined({std::vector<std::byte>(10000, std::byte{0x77}),
                frame_bytes({FrameKind::kTarget, false, 7000, number, 0, 0}, 7000)}));
    pair.first().send_stream(
        joined({frame_bytes(after_frame(1, 27000)), frame_bytes(signal_frame(pair.token, 64, 1))}));
    assert_true(pair.word_comes(64, 1));
    assert_true(memory == std::vector<std::byte>(20000, std::byte{5}));
  }
}

// Each connection has a mark: on it, puts of an old epoch and of the new one differ.
void puts_of_an_old_epoch_are_dropped_on_each(void**) {
  const Way plain{Protection::kPlain, Cipher::kChaCha20Poly1305};
  Pair pair(plain,
            [](Victim& victim) { assert_true(victim.transport().quiesced(kRogue.slot, 9)); });
  pair.second().send_stream(
      joined({frame_bytes(put_frame(pair.token, 4096, 5000), 5000), frame_bytes(mark_frame(9)),
              frame_bytes(put_frame(pair.token, 20000, 5000), 5000)}));
  assert_true(landed_up_to(pair, 25000));
  pair.first().send_stream(
      joined({frame_bytes(signal_frame(pair.token, 64, 1)), frame_bytes(after_frame(1, 10000)),
              frame_bytes(mark_frame(9)), frame_bytes(signal_frame(pair.token, 72, 1))}));
  assert_true(pair.word_comes(72, 1));
  assert_int_equal(pair.word(64), 0);
  assert_true(pair.victim->data().data()[4096] == std::byte{0});
}

// A peer that leaves closes one after the other, and what it had sent on the first still counts.
void an_end_in_order_waits_for_the_first(void**) {
  for (const Way& way : all_ways()) {
    Pair pair(way);
    pair.second().hang_up();
    pair.first().send_stream(frame_bytes(signal_frame(pair.token, 64, 1)));
    assert_true(pair.word_comes(64, 1));
    pair.first().send_stream(
        joined({frame_bytes(after_frame(1, 1)), frame_bytes(signal_frame(pair.token, 72, 1))}));
    assert_true(failed_with(*pair.victim, kRogue, "closed one of its connections"));
    assert_int_equal(pair.word(72), 0);
  }
}

void a_broken_one_ends_the_pair(void**) {
  for (const Way& way : all_ways()) {
    Pair pair(way);
    const linger abort_now{1, 0};
    setsockopt(pair.second().socket(), SOL_SOCKET, SO_LINGER, &abort_now, sizeof abort_now);
    pair.first().send_stream(frame_bytes(signal_frame(pair.token, 64, 1)));
    pair.second().hang_up();
    assert_true(failed_with(*pair.victim, kRogue, "receiving from it failed"));
    assert_true(pair.first().thrown_out());
    // Until the membership has judged, what it sent on the first one still lands.
    assert_true(pair.word_comes(64, 1));
    pair.first().send_stream(
        joined({frame_bytes(after_frame(1, 1)), frame_bytes(signal_frame(pair.token, 72, 1))}));
    assert_int_equal(pair.victim->transport().fence_out(kRogue.slot), MEP_SUCCESS);
    assert_int_equal(pair.word(72), 0);
  }
}

// --- Two ranks ------------------------------------------------------------------------------------

constexpr size_t kAreaBytes = size_t{1} << 20;
constexpr int kRounds = 40;

// In each round both put pieces of random sizes to each other's window and target, and check all at the signal.
void exchange_body(Rank& rank) {
  const uint32_t number = rank.number();
  const uint32_t peer = Rank::slot(1 - number);
  Transport& transport = rank.transport();
  RANK_CHECK(rank, rank.add_window(mep::kWorldWindowId, 4096));
  RANK_CHECK(rank, rank.add_window(kDataWindow, 4096 + kAreaBytes));
  std::vector<std::byte> landing(kAreaBytes);
  const auto tell = [&](uint64_t offset, uint64_t word) {
    return post_signal(transport, peer, kDataWindow, offset, word, true) == MEP_SUCCESS;
  };
  const uint64_t own = transport.open_target(peer, landing.data(), landing.size());
  RANK_CHECK(rank, own != 0 && tell(0, own));
  const auto& told = rank.own_word(kDataWindow, 0);
  RANK_CHECK(rank, rank.wait_for([&] { return told.load(std::memory_order_acquire) != 0; }));
  const uint64_t target = told.load(std::memory_order_acquire);
  for (uint64_t round = 1; round <= kRounds; ++round) {
    std::vector<std::byte> data(kAreaBytes);
    for (size_t i = 0; i < kAreaBytes; ++i) data[i] = pattern(round * 2 + number, i);
    for (size_t at = 0, bytes = 0; at < kAreaBytes; at += bytes) {
      bytes = std::min<size_t>(kAreaBytes - at, 1 + rank.random()() % 300'000);
      const Posting postings[] = {Posting::put(kDataWindow, 4096 + at, data.data() + at, bytes),
                                  Posting::put_to_target(target, at, data.data() + at, bytes)};
      RANK_CHECK(rank, post_batch(transport, peer, postings) == MEP_SUCCESS);
    }
    RANK_CHECK(rank, tell(8, round));
    RANK_CHECK(rank, rank.wait_word(kDataWindow, 8, round));
    const std::byte* window = rank.window(kDataWindow).data() + 4096;
    for (size_t i = 0; i < kAreaBytes; ++i) {
      const std::byte expected = pattern(round * 2 + 1 - number, i);
      RANK_CHECK(rank, window[i] == expected && landing[i] == expected);
    }
    RANK_CHECK(rank, tell(16, round));
    RANK_CHECK(rank, rank.wait_word(kDataWindow, 16, round));
    RANK_CHECK(rank, flush_posted(transport, peer) == MEP_SUCCESS);
  }
  transport.close_target(peer, own);
  RANK_CHECK(rank, rank.barrier());
}

void all_is_there_at_the_signal(void**) {
  for (const char* streams : {"2", "3", "8"}) {
    for (const char* authenticates : {"0", "1"}) {
      want_streams(streams);
      setenv("MEP_AUTHENTICATE", authenticates, 1);
      for (const mep::TransportEntry& entry : mep::transport_table()) {
        if (std::strcmp(entry.name, "tcp") != 0) continue;
        run_ranks(entry, {RankKind::kThreads, false, 2, {}}, exchange_body);
      }
    }
  }
  unsetenv("MEP_AUTHENTICATE");
}

void other_numbers_are_refused(void**) {
  for (const char* bad : {"0", "9", "-1", "two"}) {
    want_streams(bad);
    std::vector<std::byte> offer;
    TcpTransport transport({});
    assert_int_equal(transport.open(&offer), MEP_ERR_INVALID_ARGUMENT);
    assert_non_null(std::strstr(mep_last_error(), "MEP_TCP_STREAMS"));
  }
}

}  // namespace

int main() {
  assert_int_equal(mep::tcp::prepare_sodium(), MEP_SUCCESS);
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_signal_waits_for_the_other_connection),
      cmocka_unit_test(frames_belong_on_their_connections),
      cmocka_unit_test(a_closed_target_is_not_written),
      cmocka_unit_test(puts_of_an_old_epoch_are_dropped_on_each),
      cmocka_unit_test(an_end_in_order_waits_for_the_first),
      cmocka_unit_test(a_broken_one_ends_the_pair),
      cmocka_unit_test(all_is_there_at_the_signal),
      cmocka_unit_test(other_numbers_are_refused),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
