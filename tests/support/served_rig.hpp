// One queue of the software NIC and a poster that writes slots, record and doorbell by itself, from the formats alone.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "support/cmocka_cpp.hpp"
#include "transport/gpu_queue/memory_executor.hpp"
#include "transport/gpu_queue/served_queue.hpp"

namespace mep_test {

using mep::gpu_queue::CompletionEntry;
using mep::gpu_queue::Counts;
using mep::gpu_queue::DoorbellRecord;
using mep::gpu_queue::Executed;
using mep::gpu_queue::Executor;
using mep::gpu_queue::MemoryExecutor;
using mep::gpu_queue::QueueFaults;
using mep::gpu_queue::QueueWiring;
using mep::gpu_queue::RemoteRegion;
using mep::gpu_queue::Request;
using mep::gpu_queue::ServedQueue;

constexpr uint32_t kEntries = 8;
constexpr uint32_t kQueuePair = 0x1234;
// The poster's addresses of local memory; the peer's are 1 TiB above.
constexpr uint64_t kNames = 0x7000'0000'0000;
constexpr uint64_t kPeerNames = kNames + (uint64_t{1} << 40);
constexpr uint32_t kBytes = 4096;
enum Key : uint32_t { kReadOnly = 1, kLocal, kRemote, kNoAtomic, kNoWrite, kNobody };

inline uint32_t big(uint32_t value) {
  return __builtin_bswap32(value);
}

// Puts are held until told, if wanted; what was executed is noted.
struct Peer {
  struct Put {
    uint8_t* to;
    const void* from;
    size_t bytes;
  };
  std::vector<uint8_t> memory;  // with 32 bytes before and behind that nobody may write
  bool holds = false;
  bool has_room = true;
  bool is_lost = false;
  bool adds = true;
  std::vector<Put> held;
  uint64_t posted = 0;
  uint32_t words = 0;

  void release() {
    for (const Put& put : held) std::memcpy(put.to, put.from, put.bytes);
    held.clear();
  }
};

class NotingExecutor final : public Executor {
 public:
  explicit NotingExecutor(Peer* peer) : peer_(peer) {}
  Executed put(const RemoteRegion& region, uint64_t offset, const void* from,
               size_t bytes) override {
    if (peer_->is_lost) return Executed::kLost;
    if (!peer_->has_room) return Executed::kLater;
    ++peer_->posted;
    peer_->held.push_back({reinterpret_cast<uint8_t*>(region.place) + offset, from, bytes});
    if (!peer_->holds) peer_->release();
    return Executed::kDone;
  }
  Executed write_word(const RemoteRegion& region, uint64_t offset, uint64_t word) override {
    ++peer_->words;
    return memory_.write_word(region, offset, word);
  }
  Executed fetch_add(const RemoteRegion& region, uint64_t offset, uint64_t add,
                     uint64_t* before) override {
    if (!peer_->adds) return Executed::kUnsupported;
    return memory_.fetch_add(region, offset, add, before);
  }
  bool counts(Counts* out) override {
    *out = {peer_->posted, peer_->posted - peer_->held.size()};
    return !peer_->is_lost;
  }

 private:
  Peer* peer_;
  MemoryExecutor memory_;
};

struct Rig {
  explicit Rig(uint64_t first = 0, const QueueFaults& faults = {}, uint32_t queue_pair = kQueuePair,
               uint32_t bytes = kBytes)
      : local(bytes + 64),
        next(first),
        seen(0),
        own_pair(queue_pair),
        completion_slots(4 * kEntries) {
    std::memset(static_cast<void*>(completions.data()), 0xff, sizeof completions);
    QueueWiring wiring;
    wiring.ring = ring.data();
    wiring.entries = kEntries;
    wiring.completions = completions.data();
    wiring.completion_entries = completion_slots;
    wiring.record = &record;
    wiring.doorbell = &doorbell;
    wiring.queue_pair = queue_pair;
    wiring.first = first;
    wiring.local = {{kReadOnly, kNames, bytes, bytes_of(local), false},
                    {kLocal, kNames, bytes, bytes_of(local), true}};
    peer.memory.resize(bytes + 64);
    const auto place = reinterpret_cast<uint64_t>(peer.memory.data() + 32);
    wiring.remote = {{kRemote, kPeerNames, bytes, place, true, true},
                     {kNoAtomic, kPeerNames, bytes, place, true, false},
                     {kNoWrite, kPeerNames, bytes, place, false, true}};
    assert_int_equal(
        ServedQueue::create(wiring, faults, std::make_unique<NotingExecutor>(&peer), &queue),
        MEP_SUCCESS);
  }
  static std::byte* bytes_of(std::vector<uint8_t>& memory) {
    return reinterpret_cast<std::byte*>(memory.data()) + 32;
  }

  Request& put_in_ring(const Request& request, bool completes = true) {
    Request& slot = ring[next % kEntries];
    slot = request;
    slot.words[0] |= big(static_cast<uint32_t>(next++ & 0xffff) << 8);
    slot.words[1] |= big(own_pair << 8);
    if (completes) slot.words[2] |= big(0x08);
    return slot;
  }
  void tell() {
    record.send.raw = big(static_cast<uint32_t>(next & 0xffff));
    const Request& last = ring[(next - 1) % kEntries];
    std::memcpy(&doorbell, &last, sizeof doorbell);  // the form with the first 8 bytes of a request
  }
  void ring_record(uint32_t value) {
    record.send.raw = big(value);
    doorbell = uint64_t{big(own_pair << 8)} << 32 | big(value << 8);
  }
  // The turns are counted: nothing may go on for ever.
  void serve() {
    uint32_t turns = 0;
    while (queue->take_turn() != ServedQueue::Turn::kIdle) assert_true(++turns < 100000);
  }
  void turns(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) (void)queue->take_turn();
  }

  struct Seen {
    uint8_t opcode, syndrome, vendor;
    uint16_t counter;
  };
  // The next completion by the owner bit, as drivers find it.
  bool poll(Seen* out) {
    const CompletionEntry& entry = completions[seen % completion_slots];
    const uint32_t word = big(entry.counter_opcode.raw);
    if ((word >> 4 & 0xf) == 0xf || (word & 1) != (seen / completion_slots & 1)) return false;
    const uint32_t syndromes = big(entry.syndromes.raw);
    *out = {static_cast<uint8_t>(word >> 4 & 0xf), static_cast<uint8_t>(syndromes),
            static_cast<uint8_t>(syndromes >> 8), static_cast<uint16_t>(word >> 16)};
    assert_int_equal(big(entry.opcode_queue.raw) & 0xffffff, own_pair);
    ++seen;
    return true;
  }
  void expect(uint8_t opcode, uint64_t index, uint8_t syndrome = 0) {
    Seen completion{};
    assert_true(poll(&completion));
    assert_int_equal(completion.opcode, opcode);
    assert_int_equal(completion.counter, index & 0xffff);
    if (opcode == 13) assert_int_equal(completion.syndrome, syndrome);
  }
  void expect_none() {
    Seen completion{};
    assert_false(poll(&completion));
  }

  Peer peer;
  std::vector<uint8_t> local;
  std::array<Request, kEntries> ring{};
  std::array<CompletionEntry, 4 * kEntries> completions;
  DoorbellRecord record{};
  uint64_t doorbell = 0;
  uint64_t next;
  uint64_t seen;
  uint32_t own_pair;
  uint32_t completion_slots;
  std::unique_ptr<ServedQueue> queue;
};

}  // namespace mep_test
