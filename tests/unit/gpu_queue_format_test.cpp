// labels: quick
// Requests, completions and doorbells against bytes written by hand from the formats' documents.
#include <cstring>
#include <vector>

#include "support/cmocka_cpp.hpp"
#include "support/mapped_peer.hpp"

namespace {

using namespace mep::gpu_queue;  // NOLINT(google-build-using-namespace)
using Bytes = std::vector<uint8_t>;

const RemoteMemory kRemote{0x1122334455667788, 0xaabbccdd};
const LocalMemory kLocal{reinterpret_cast<const void*>(uintptr_t{0x0102030405060708}), 0x0a0b0c0d};

const Bytes kRemoteSegment = {0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
                              0xaa, 0xbb, 0xcc, 0xdd, 0,    0,    0,    0};
const Bytes kLocalAddress = {0x0a, 0x0b, 0x0c, 0x0d, 1, 2, 3, 4, 5, 6, 7, 8};

Bytes operator+(Bytes left, const Bytes& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// The rest of the block is zero.
void assert_bytes(const Request& request, Bytes expected) {
  expected.resize(64);
  assert_memory_equal(&request, expected.data(), 64);
}

void requests_without_a_queue(void**) {
  assert_bytes(nop(), {0, 0, 0, 0x00, 0, 0, 0, 1});
  assert_bytes(write(kRemote, kLocal, 0x12345),
               Bytes{0, 0, 0, 0x08, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0} + kRemoteSegment +
                   Bytes{0x00, 0x01, 0x23, 0x45} + kLocalAddress);
  assert_bytes(write_immediate(kRemote, kLocal, 16, 0xfedcba98),
               Bytes{0, 0, 0, 0x09, 0, 0, 0, 3, 0, 0, 0, 0, 0xfe, 0xdc, 0xba, 0x98} +
                   kRemoteSegment + Bytes{0, 0, 0, 16} + kLocalAddress);
  assert_bytes(fetch_add(kRemote, 0x0123456789abcdef, kLocal),
               Bytes{0, 0, 0, 0x12, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0} + kRemoteSegment +
                   Bytes{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0, 0, 0, 0, 0, 0, 0, 0} +
                   Bytes{0, 0, 0, 8} + kLocalAddress);
}

void inline_writes(void**) {
  // A word lands as the little-endian integer that it is.
  assert_bytes(write_word(kRemote, 0x0123456789abcdef),
               Bytes{0, 0, 0, 0x08, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0} + kRemoteSegment +
                   Bytes{0x80, 0, 0, 8, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01});
  Bytes data(28);
  for (uint8_t i = 0; i < 28; ++i) data[i] = static_cast<uint8_t>(0xe0 + i);
  for (uint8_t bytes = 1; bytes <= 28; ++bytes) {
    const uint8_t segments = bytes <= 12 ? 3 : 4;
    assert_bytes(write_inline(kRemote, data.data(), bytes),
                 Bytes{0, 0, 0, 0x08, 0, 0, 0, segments, 0, 0, 0, 0, 0, 0, 0, 0} + kRemoteSegment +
                     Bytes{0x80, 0, 0, bytes} + Bytes(data.begin(), data.begin() + bytes));
  }
}

// A queue on plain memory. The doorbell is a word.
struct Rig {
  explicit Rig(uint64_t first) {
    queue.ring = ring;
    queue.ready = ready;
    queue.record = &record;
    queue.doorbell = &doorbell;
    queue.queue_pair = 0xabcdef;
    queue.entries = 4;
    make_empty(&queue, &completion, first);
  }
  void complete(const Bytes& last_twelve) {
    memcpy(reinterpret_cast<char*>(&completion) + 52, last_twelve.data(), 12);
  }
  Request ring[4];
  uint64_t ready[4] = {};
  CompletionEntry completion;
  DoorbellRecord record;
  uint64_t doorbell = 0;
  Queue queue{};
};

void what_is_posted(void**) {
  Rig rig(0x1fffe);
  assert_memory_equal(&rig.completion, Bytes(64, 0xff).data(), 64);
  SendQueue<> queue(&rig.queue, {});
  assert_true(queue.post(write(kRemote, kLocal, 1)) == Status::kOk);
  assert_true(queue.post(nop()) == Status::kOk);
  assert_true(queue.post(nop()) == Status::kOk);
  // Slots 2, 3, 0 of four; a ring of four asks for a completion each time.
  assert_bytes(rig.ring[2],
               Bytes{0x00, 0xff, 0xfe, 0x08, 0xab, 0xcd, 0xef, 3, 0, 0, 0, 0x08, 0, 0, 0, 0} +
                   kRemoteSegment + Bytes{0, 0, 0, 1} + kLocalAddress);
  assert_bytes(rig.ring[3], {0x00, 0xff, 0xff, 0x00, 0xab, 0xcd, 0xef, 1, 0, 0, 0, 0x08});
  assert_bytes(rig.ring[0], {0x00, 0x00, 0x00, 0x00, 0xab, 0xcd, 0xef, 1, 0, 0, 0, 0x08});
  assert_memory_equal(&rig.record, (Bytes{0, 0, 0, 0, 0, 0, 0x00, 0x01}).data(), 8);
  assert_memory_equal(&rig.doorbell, (Bytes{0x00, 0x00, 0x01, 0x00, 0xab, 0xcd, 0xef, 0x00}).data(),
                      8);
}

void what_completes(void**) {
  Rig rig(0x1fffe);
  const uint64_t stopped = 1;
  SendQueue<> queue(&rig.queue, Patience{UINT64_MAX, &stopped, 1});
  for (int i = 0; i < 3; ++i) assert_true(queue.post(nop()) == Status::kOk);
  assert_true(queue.flush() == Status::kAborted);
  QueueError error;
  assert_false(queue.error(&error));
  // wqe_counter 0xffff, the request before the last one.
  rig.complete({0, 0, 0, 0, 0x00, 0xab, 0xcd, 0xef, 0xff, 0xff, 0x5a, 0x00});
  assert_true(queue.flush() == Status::kAborted);
  assert_true(rig.queue.done == 0x20000);
  // Completions of requests that are not under way: one back, one more than the ring ahead, far from both.
  for (const uint16_t counter : {0xfffe, 0x0004, 0x7fff, 0x8000}) {
    rig.complete({0, 0, 0, 0, 0, 0, 0, 0, static_cast<uint8_t>(counter >> 8),
                  static_cast<uint8_t>(counter), 0, 0});
    assert_true(queue.flush() == Status::kAborted);
    assert_true(rig.queue.done == 0x20000);
  }
  rig.complete({0, 0, 0, 0, 0x00, 0xab, 0xcd, 0xef, 0x00, 0x00, 0x5a, 0x01});
  assert_true(queue.flush() == Status::kOk);
  // A later one fails: hardware's syndrome and its type, the vendor's, the syndrome.
  assert_true(queue.post(nop()) == Status::kOk);
  rig.complete({0x11, 0x22, 0x33, 0x12, 0x08, 0xab, 0xcd, 0xef, 0x00, 0x01, 0x5a, 0xd1});
  assert_true(queue.flush() == Status::kFailed);
  assert_true(queue.error(&error));
  assert_int_equal(error.syndrome, 0x12);
  assert_int_equal(error.vendor, 0x33);
  assert_int_equal(error.wqe_counter, 1);
  assert_true(queue.post(nop()) == Status::kFailed);
}

void no_room(void**) {
  Rig rig(0);
  SendQueue<> queue(&rig.queue, Patience{0, nullptr, 0});
  for (int i = 0; i < 4; ++i) assert_true(queue.post(nop()) == Status::kOk);
  assert_true(queue.post(nop()) == Status::kTimedOut);
  assert_true(rig.queue.reserved == 4);
  rig.complete({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  assert_true(queue.post(nop()) == Status::kOk);
  assert_true(queue.post(nop()) == Status::kTimedOut);
}

// A put of any size: nothing, inline, one write, or as many as it takes.
void sizes_of_puts(void**) {
  Rig rig(0);
  QueuePeer<> peer(&rig.queue, {});
  uint8_t data[28] = {7};
  assert_true(peer.put(kRemote, kLocal, 0) == Status::kOk);
  assert_true(peer.put(kRemote, {data, 0}, 28) == Status::kOk);
  assert_true(peer.put(kRemote, kLocal, 29) == Status::kOk);
  assert_true(peer.put(kRemote, kLocal, kMaxWrite + 5) == Status::kOk);
  assert_true(rig.queue.reserved == 4);
  const uint32_t sizes[] = {kInline | 28, 29, 1u << 30, 5};
  for (uint32_t i = 0; i < 4; ++i) assert_int_equal(Big32(rig.ring[i].words[8]).raw, sizes[i]);
  assert_true(get_segment<RemoteSegment>(rig.ring[3], 1).address.value() ==
              kRemote.address + (1u << 30));
  assert_true(get_segment<DataSegment>(rig.ring[3], 2).address.value() ==
              0x0102030405060708 + (1u << 30));
}

void a_mapped_peer(void**) {
  for (const size_t shift : {0, 1, 8}) {
    for (const size_t bytes : {0, 1, 15, 16, 17, 100}) {
      alignas(16) uint8_t from[128];
      alignas(16) uint8_t to[144] = {};
      alignas(16) uint8_t expected[144] = {};
      for (uint8_t i = 0; i < 128; ++i) from[i] = static_cast<uint8_t>(i + 1);
      memcpy(expected + shift, from, bytes);
      uint64_t word = 0;
      MappedPeer<> peer;
      assert_true(peer.put({reinterpret_cast<uintptr_t>(to + shift), 0}, {from, 0}, bytes) ==
                  Status::kOk);
      assert_true(peer.signal({reinterpret_cast<uintptr_t>(&word), 0}, bytes + 1) == Status::kOk);
      assert_true(peer.flush() == Status::kOk);
      assert_memory_equal(to, expected, sizeof to);
      assert_true(word == bytes + 1);
    }
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(requests_without_a_queue),
      cmocka_unit_test(inline_writes),
      cmocka_unit_test(what_is_posted),
      cmocka_unit_test(what_completes),
      cmocka_unit_test(no_room),
      cmocka_unit_test(sizes_of_puts),
      cmocka_unit_test(a_mapped_peer),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
