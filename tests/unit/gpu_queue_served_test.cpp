// labels: quick threads asan
// A queue of the software NIC turn by turn: which requests it refuses and how, in which order it executes and completes, and
// that no bytes in a ring harm it.
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "support/cmocka_cpp.hpp"
#include "support/served_rig.hpp"
#include "transport/gpu_queue/served_queue.hpp"

namespace {

using namespace mep::gpu_queue;  // NOLINT(google-build-using-namespace)
using namespace mep_test;        // NOLINT(google-build-using-namespace)

LocalMemory local_at(uint64_t offset, uint32_t key = kLocal) {
  return {reinterpret_cast<const void*>(kNames + offset), key};
}
RemoteMemory remote_at(uint64_t offset, uint32_t key = kRemote) {
  return {kPeerNames + offset, key};
}
Request good_put() {
  return write(remote_at(64), local_at(64), 100);
}

struct Bad {
  const char* what;
  uint8_t syndrome;
  Reason reason;
  Request request;
  std::function<void(Request*)> spoil;  // in the ring
};

Request sized(Request request, uint32_t bytes) {
  request.words[8] = big(bytes);
  return request;
}

std::vector<Bad> bad_requests() {
  const auto xor_word = [](uint32_t word, uint32_t bits) {
    return [=](Request* r) { r->words[word] ^= big(bits); };
  };
  const Request put = good_put();
  const Request inlined = write_inline(remote_at(1), "abcdefghijklmnopqrstuvwxyz", 20);
  const Request add = fetch_add(remote_at(8), 5, local_at(16));
  return {
      {"the index of the lap before", 2, Reason::kIndex, put, xor_word(0, kEntries << 8)},
      {"another queue pair", 2, Reason::kQueuePair, put, xor_word(1, 1 << 8)},
      {"an opcode of READ", 2, Reason::kOpcode, put, xor_word(0, 0x18)},
      {"an opcode of nothing", 2, Reason::kOpcode, put, xor_word(0, 0xf7)},
      {"a modifier", 2, Reason::kModifier, put, xor_word(0, 8u << 24)},
      {"a signature", 2, Reason::kReserved, put, xor_word(2, 1u << 24)},
      {"a stream", 2, Reason::kReserved, put, xor_word(2, 1u << 8)},
      {"an immediate of a plain write", 2, Reason::kReserved, put, xor_word(3, 1)},
      {"reserved bits of the remote segment", 2, Reason::kReserved, put, xor_word(7, 1u << 31)},
      {"fm_ce_se 0x09", 2, Reason::kCompletion, put, xor_word(2, 1)},
      {"fm_ce_se 0x88", 2, Reason::kCompletion, put, xor_word(2, 0x80)},
      {"no segments", 2, Reason::kSegments, put, xor_word(1, 3)},
      {"a write of 4 segments", 2, Reason::kSegments, put, xor_word(1, 7)},
      {"a request of two blocks", 2, Reason::kSegments, put, xor_word(1, 3 ^ 5)},
      {"67 segments", 2, Reason::kSegments, put, xor_word(1, 64)},
      {"a nop of 2 segments", 2, Reason::kSegments, nop(), xor_word(1, 3)},
      {"an addition of 3 segments", 2, Reason::kSegments, add, xor_word(1, 7)},
      {"an addition that compares", 2, Reason::kCompare, add, xor_word(11, 1)},
      {"no bytes", 1, Reason::kBytes, sized(put, 0), nullptr},
      {"more than 1 GiB", 1, Reason::kBytes, sized(put, (1u << 30) + 1), nullptr},
      {"no inline bytes", 1, Reason::kInlineBytes, sized(inlined, 0x80000000), nullptr},
      {"29 inline bytes", 1, Reason::kInlineBytes, sized(inlined, 0x8000001d), nullptr},
      {"12 inline bytes in 4 segments", 1, Reason::kInlineBytes, sized(inlined, 0x8000000c),
       nullptr},
      {"20 inline bytes in 3 segments", 1, Reason::kInlineBytes, inlined, xor_word(1, 7)},
      {"4 bytes for the value before", 1, Reason::kAtomicBytes, add, xor_word(12, 12)},
      {"an unknown lkey", 4, Reason::kLocalKey, write(remote_at(0), local_at(0, kNobody), 9),
       nullptr},
      {"the peer's key as lkey", 4, Reason::kLocalKey, write(remote_at(0), local_at(0, kRemote), 9),
       nullptr},
      {"a byte before", 4, Reason::kLocalRange, write(remote_at(0), local_at(uint64_t(-1)), 9),
       nullptr},
      {"a byte behind", 4, Reason::kLocalRange, write(remote_at(0), local_at(kBytes - 99), 100),
       nullptr},
      {"around the end of addresses", 4, Reason::kLocalRange,
       write(remote_at(0), local_at(uint64_t(-4) - kNames), 100), nullptr},
      {"a value before in memory to read", 4, Reason::kLocalAccess,
       fetch_add(remote_at(8), 5, local_at(16, kReadOnly)), nullptr},
      {"an unknown rkey", 0x13, Reason::kRemoteKey, write(remote_at(0, kNobody), local_at(0), 9),
       nullptr},
      {"an own key as rkey", 0x13, Reason::kRemoteKey, write_word(remote_at(0, kLocal), 1),
       nullptr},
      {"a byte behind there", 0x13, Reason::kRemoteRange,
       write(remote_at(kBytes - 99), local_at(0), 100), nullptr},
      {"a byte before there", 0x13, Reason::kRemoteRange,
       write_inline(remote_at(uint64_t(-1)), "ab", 2), nullptr},
      {"a word behind", 0x13, Reason::kRemoteRange, write_word(remote_at(kBytes), 1), nullptr},
      {"a write where none may be", 0x13, Reason::kRemoteAccess,
       write_word(remote_at(0, kNoWrite), 1), nullptr},
      {"an addition where none may be", 0x13, Reason::kRemoteAccess,
       fetch_add(remote_at(8, kNoAtomic), 5, local_at(16)), nullptr},
      {"an addition at 4", 0x12, Reason::kMisaligned, fetch_add(remote_at(4), 5, local_at(16)),
       nullptr},
      {"an immediate", 0x12, Reason::kUnsupported,
       write_immediate(remote_at(0), local_at(0), 16, 7), nullptr},
  };
}

// One bad request between good ones: those before it are done, it is named, the rest is flushed, now and later, and another
// queue goes on.
void each_bad_request_is_named(void**) {
  for (const Bad& bad : bad_requests()) {
    Rig rig(0xfffe);
    Rig other(5, {}, 99);
    print_message("%s\n", bad.what);
    rig.local[32 + 64] = 77;
    rig.put_in_ring(good_put());
    Request& slot = rig.put_in_ring(bad.request);
    if (bad.spoil) bad.spoil(&slot);
    rig.put_in_ring(write_word(remote_at(1024), 9));
    rig.put_in_ring(nop(), false);
    rig.ring_record(static_cast<uint32_t>(rig.next & 0xffff));
    const auto before = rig.peer.memory;
    rig.serve();
    rig.expect(0, 0xfffe);
    Rig::Seen seen{};
    assert_true(rig.poll(&seen));
    assert_int_equal(seen.opcode, 13);
    assert_int_equal(seen.counter, 0xffff);
    assert_int_equal(seen.syndrome, bad.syndrome);
    assert_int_equal(seen.vendor, static_cast<uint8_t>(bad.reason));
    rig.expect(13, 0x10000, 5);
    rig.expect(13, 0x10001, 5);
    rig.expect_none();
    rig.put_in_ring(good_put());
    rig.tell();
    rig.serve();
    rig.expect(13, 0x10002, 5);
    // The first request alone has changed a byte of the peer's memory.
    assert_int_equal(rig.peer.memory[32 + 64], 77);
    rig.peer.memory[32 + 64] = 0;
    assert_memory_equal(rig.peer.memory.data(), before.data(), before.size());
    other.put_in_ring(write_word(remote_at(1024), 9));
    other.tell();
    other.serve();
    other.expect(0, 5);
    assert_int_equal(other.peer.words, 1);
  }
}

void doorbells_are_checked(void**) {
  struct Case {
    std::function<void(Rig*)> ring;
    Reason reason;
  };
  const std::vector<Case> cases = {
      {[](Rig* rig) { rig->ring_record(0xfff0 + 1 + kEntries); },
       Reason::kRecord},                                               // more than has room
      {[](Rig* rig) { rig->ring_record(0xffef); }, Reason::kRecord},   // back
      {[](Rig* rig) { rig->ring_record(0x1fff3); }, Reason::kRecord},  // 17 bits
      {[](Rig* rig) { rig->own_pair = 1, rig->ring_record(0xfff3), rig->own_pair = kQueuePair; },
       Reason::kDoorbell},
  };
  for (const Case& one : cases) {
    Rig rig(0xfff0);
    rig.put_in_ring(good_put(), false);
    rig.tell();
    rig.serve();
    rig.expect_none();
    rig.put_in_ring(good_put());
    one.ring(&rig);
    rig.serve();
    Rig::Seen seen{};
    assert_true(rig.poll(&seen));
    assert_int_equal(seen.opcode, 13);
    assert_int_equal(seen.counter, 0xfff1);
    assert_int_equal(seen.syndrome, 2);
    assert_int_equal(seen.vendor, static_cast<uint8_t>(one.reason));
    rig.expect_none();
  }
  // Exactly what has room is right, and a record alone is not looked at.
  Rig rig(0xfff0);
  for (uint32_t i = 0; i < kEntries; ++i) rig.put_in_ring(nop(), i == kEntries - 1);
  rig.record.send.raw = big(0xfff8);
  rig.serve();
  rig.expect_none();
  rig.tell();
  rig.serve();
  rig.expect(0, 0xfff7);
}

// Laps of the ring and of the completions, with all that a queue may do.
void good_requests_land(void**) {
  Rig rig(0xffff - 40);
  for (uint32_t round = 0; round < 100; ++round) {
    for (uint32_t i = 0; i < 100; ++i) rig.local[32 + i] = static_cast<uint8_t>(round + i);
    const uint64_t first = rig.next;
    std::array<uint8_t, 28> small;
    small.fill(static_cast<uint8_t>(round));
    rig.put_in_ring(write(remote_at(3), local_at(0), 100), false);
    rig.put_in_ring(write_inline(remote_at(200), small.data(), 28), round % 2 == 0);
    rig.put_in_ring(write_word(remote_at(256), round * uint64_t{0x1'0000'0001}), false);
    rig.put_in_ring(fetch_add(remote_at(264), 3, local_at(512)));
    rig.put_in_ring(write(remote_at(272), local_at(512), 8),
                    false);  // a word that does not travel inline
    rig.put_in_ring(nop());
    rig.tell();
    rig.serve();
    if (round % 2 == 0) rig.expect(0, first + 1);
    rig.expect(0, first + 3);
    rig.expect(0, first + 5);
    rig.expect_none();
    const uint8_t* there = rig.peer.memory.data() + 32;
    assert_memory_equal(there + 3, &rig.local[32], 100);
    assert_memory_equal(there + 200, small.data(), 28);
    uint64_t word, sum;
    std::memcpy(&word, there + 256, 8);
    std::memcpy(&sum, there + 264, 8);
    assert_int_equal(word, round * uint64_t{0x1'0000'0001});
    assert_int_equal(sum, 3 * (round + 1));
    uint64_t before;
    std::memcpy(&before, &rig.local[32 + 512], 8);
    assert_int_equal(__builtin_bswap64(before), 3 * round);
    assert_memory_equal(there + 272, &before, 8);
  }
}

// In parts: a way that is full now and then, and turns that end, lose and repeat no byte.
void large_puts_land(void**) {
  constexpr uint32_t kLarge = (5u << 20) + 13;
  Rig rig(0, {}, kQueuePair, kLarge + 8);
  for (uint32_t i = 0; i < kLarge; ++i)
    rig.local[32 + i] = static_cast<uint8_t>(i * 2654435761u >> 24);
  rig.put_in_ring(write(remote_at(7), local_at(0), kLarge));
  rig.tell();
  for (uint32_t turn = 0; turn < 40; ++turn) {
    rig.peer.has_room = turn % 3 == 2;
    (void)rig.queue->take_turn();
    if (turn == 2)
      assert_in_range(rig.peer.memory[32 + 7 + kLarge - 1], 0, 0);  // others have their turns
  }
  rig.peer.has_room = true;
  rig.serve();
  rig.expect(0, 0);
  assert_memory_equal(rig.peer.memory.data() + 32 + 7, rig.local.data() + 32, kLarge);
  assert_true(rig.peer.posted > 2 && rig.peer.posted < 20);
}

// The way to the peer keeps no order and holds sources: words and completions come behind the puts all the same.
void words_and_completions_wait_for_puts(void**) {
  Rig rig;
  rig.peer.holds = true;
  rig.put_in_ring(good_put());
  rig.put_in_ring(write_word(remote_at(1024), 9));
  rig.tell();
  rig.turns(50);
  assert_int_equal(rig.peer.held.size(), 1);
  assert_int_equal(rig.peer.words, 0);
  rig.expect_none();
  rig.peer.release();
  rig.serve();
  assert_int_equal(rig.peer.words, 1);
  rig.expect(0, 0);
  rig.expect(0, 1);
  // An addition waits too, and so does the completion of an error for those before it.
  rig.put_in_ring(good_put(), false);
  rig.put_in_ring(fetch_add(remote_at(8), 5, local_at(16)));
  rig.tell();
  rig.turns(50);
  assert_int_equal(rig.peer.memory[32 + 8], 0);
  rig.expect_none();
  rig.peer.release();
  rig.serve();
  assert_int_equal(rig.peer.memory[32 + 8], 5);
  rig.expect(0, 3);
  rig.put_in_ring(good_put());
  rig.put_in_ring(write_word(remote_at(0, kNobody), 9));
  rig.tell();
  rig.turns(50);
  rig.expect_none();
  rig.peer.release();
  rig.serve();
  rig.expect(0, 4);
  rig.expect(13, 5, 0x13);
}

void a_full_way_is_tried_again(void**) {
  Rig rig;
  rig.peer.has_room = false;
  rig.put_in_ring(good_put());
  rig.tell();
  for (int i = 0; i < 20; ++i) assert_true(rig.queue->take_turn() != ServedQueue::Turn::kIdle);
  rig.expect_none();
  rig.peer.has_room = true;
  rig.serve();
  assert_int_equal(rig.peer.posted, 1);
  rig.expect(0, 0);
}

// It is not known which puts have arrived: the first without a completion fails.
void a_lost_peer_ends_the_queue(void**) {
  Rig rig;
  rig.put_in_ring(good_put());
  rig.tell();
  rig.serve();
  rig.expect(0, 0);
  rig.peer.holds = true;
  rig.put_in_ring(good_put(), false);
  rig.put_in_ring(good_put());
  rig.tell();
  rig.turns(5);
  rig.expect_none();
  rig.peer.is_lost = true;
  rig.serve();
  rig.expect(13, 1, 0x15);
  rig.expect(13, 2, 5);
  rig.expect_none();

  Rig posting;
  posting.peer.is_lost = true;
  posting.put_in_ring(good_put());
  posting.put_in_ring(good_put());
  posting.tell();
  posting.serve();
  posting.expect(13, 0, 0x15);
  posting.expect(13, 1, 5);

  Rig adding;
  adding.peer.adds = false;
  adding.put_in_ring(fetch_add(remote_at(8), 5, local_at(16)));
  adding.tell();
  adding.serve();
  adding.expect(13, 0, 0x12);
}

// All that is not completed is flushed, and one more.
void a_closed_queue_flushes(void**) {
  Rig rig;
  rig.peer.holds = true;
  rig.put_in_ring(good_put());
  rig.put_in_ring(write_word(remote_at(1024), 9));
  rig.tell();
  rig.turns(5);
  rig.queue->close();
  rig.expect(13, 0, 5);
  rig.expect(13, 1, 5);
  rig.expect_none();
  Rig idle;
  idle.queue->close();
  idle.expect(13, 0, 5);
  idle.expect_none();
}

void faults_on_demand(void**) {
  QueueFaults late;
  late.late_polls = 10;
  Rig rig(0, late);
  rig.put_in_ring(good_put());
  rig.tell();
  rig.turns(10);
  rig.expect_none();
  rig.turns(2);
  rig.expect(0, 0);

  QueueFaults failing;
  failing.fails_at = 2;
  failing.syndrome = 0x10;
  Rig fails(0, failing);
  for (int i = 0; i < 4; ++i) fails.put_in_ring(good_put(), i != 1);
  fails.tell();
  fails.serve();
  fails.expect(0, 0);
  fails.expect(13, 2, 0x10);
  fails.expect(13, 3, 5);
  assert_int_equal(fails.peer.posted, 2);

  QueueFaults mute;
  mute.never_completes = true;
  Rig never(0, mute);
  never.put_in_ring(write_word(remote_at(1024), 9));
  never.tell();
  never.turns(100);
  never.expect_none();
  assert_int_equal(never.peer.words, 1);
}

// Bytes as they come, and good requests with some bits turned. All that was told of is covered by completions in the end.
void no_bytes_harm(void**) {
  std::mt19937_64 random(20240611);
  const std::vector<Request> good = {good_put(), write_inline(remote_at(9), "abcdefgh", 8),
                                     write_word(remote_at(16), 5),
                                     fetch_add(remote_at(8), 5, local_at(16)), nop()};
  uint32_t failures = 0;
  constexpr uint32_t kRounds = 10000;
  for (uint32_t round = 0; round < kRounds; ++round) {
    Rig rig(random() & 0xffff);
    const uint64_t first = rig.next;
    const uint32_t count = 1 + static_cast<uint32_t>(random() % kEntries);
    for (uint32_t i = 0; i < count; ++i) {
      Request& slot = rig.put_in_ring(good[random() % good.size()]);
      if (random() % 8 == 0) {
        for (uint32_t& word : slot.words) word = static_cast<uint32_t>(random());
      } else if (random() % 2 == 0) {
        for (uint64_t bits = random() % 3; bits != 0; --bits) {
          slot.words[random() % 16] ^= 1u << random() % 32;
        }
      }
    }
    const bool rings_anything = random() % 16 == 0;
    rig.ring_record(static_cast<uint32_t>(rig.next & 0xffff));
    if (rings_anything) rig.doorbell = random() | 1;
    rig.serve();
    Rig::Seen seen{};
    uint64_t covered = first;
    bool failed = false;
    while (rig.poll(&seen)) {
      assert_true(!failed || (seen.opcode == 13 && seen.syndrome == 5));
      assert_true(seen.opcode == 0 || seen.opcode == 13);
      assert_in_range(static_cast<uint16_t>(seen.counter - covered), 0, kEntries - 1);
      covered += static_cast<uint16_t>(seen.counter - covered) + 1;
      failed = failed || seen.opcode == 13;
    }
    failures += failed ? 1 : 0;
    if (failed && !rings_anything) assert_int_equal(covered, rig.next);
    for (uint32_t i = 0; i < 32; ++i) {
      assert_int_equal(rig.peer.memory[i] | rig.peer.memory[kBytes + 32 + i], 0);
      assert_int_equal(rig.local[i] | rig.local[kBytes + 32 + i], 0);
    }
  }
  assert_in_range(failures, kRounds / 10, kRounds - kRounds / 10);
}

void wirings_are_checked(void**) {
  Request ring[4];
  CompletionEntry completion;
  DoorbellRecord record{};
  uint64_t doorbell = 0;
  Peer peer;
  QueueWiring good;
  good.ring = ring;
  good.entries = 4;
  good.completions = &completion;
  good.record = &record;
  good.doorbell = &doorbell;
  good.queue_pair = 1;
  const auto refused = [&](const std::function<void(QueueWiring*)>& spoil) {
    QueueWiring bad = good;
    spoil(&bad);
    std::unique_ptr<ServedQueue> queue;
    return ServedQueue::create(bad, {}, std::make_unique<NotingExecutor>(&peer), &queue) ==
               MEP_ERR_INVALID_ARGUMENT &&
           queue == nullptr;
  };
  assert_false(refused([](QueueWiring*) {}));
  assert_true(refused([](QueueWiring* w) { w->ring = nullptr; }));
  assert_true(refused([](QueueWiring* w) { w->completions = nullptr; }));
  assert_true(refused([](QueueWiring* w) { w->record = nullptr; }));
  assert_true(refused([](QueueWiring* w) { w->doorbell = nullptr; }));
  assert_true(refused([](QueueWiring* w) { w->queue_pair = 0; }));
  assert_true(refused([](QueueWiring* w) { w->queue_pair = 1u << 24; }));
  for (const uint32_t entries : {0u, 1u, 3u, 32768u}) {
    assert_true(refused([&](QueueWiring* w) { w->entries = entries; }));
  }
  for (const uint32_t entries : {0u, 2u, 4u, 6u}) {
    assert_true(refused([&](QueueWiring* w) { w->completion_entries = entries; }));
  }
  assert_true(refused([](QueueWiring* w) { w->remote = {{1, 4, 8, 0, true, true}}; }));
}

}  // namespace

int main() {
  setenv("MEP_LOG", "error", 0);  // each refusal is a warning
  const CMUnitTest tests[] = {cmocka_unit_test(each_bad_request_is_named),
                              cmocka_unit_test(doorbells_are_checked),
                              cmocka_unit_test(good_requests_land),
                              cmocka_unit_test(large_puts_land),
                              cmocka_unit_test(words_and_completions_wait_for_puts),
                              cmocka_unit_test(a_full_way_is_tried_again),
                              cmocka_unit_test(a_lost_peer_ends_the_queue),
                              cmocka_unit_test(a_closed_queue_flushes),
                              cmocka_unit_test(faults_on_demand),
                              cmocka_unit_test(no_bytes_harm),
                              cmocka_unit_test(wirings_are_checked)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
