// labels: gate tsan asan
// Queue pairs of mlx5 NICs against a model of the firmware: how they are made, connected, and end; each command refused at
// each step; each bit of each command changed; and requests that travel. It alone finds a command that a NIC would refuse.
// 2 s.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "support/cmocka_cpp.hpp"
#include "support/mlx5_firmware.hpp"
#include "transport/gpu_queue/mlx5_pairs.hpp"
#include "transport/gpu_queue/peer.hpp"

namespace {

using namespace mep::gpu_queue;  // NOLINT(google-build-using-namespace)
namespace m = mep::gpu_queue::mlx5;
using mep::test::Firmware;
using mep::test::ModelFabric;
using mep::test::ModelPort;
using mep::test::PairState;

constexpr uint32_t kEntries = 64;
constexpr uint64_t kWait = 20'000'000'000;

enum class Link { kInfiniBand, kRouted, kRoce };
constexpr Link kLinks[] = {Link::kInfiniBand, Link::kRouted, Link::kRoce};

ModelPort port_of(Link link, uint8_t number) {
  ModelPort port;
  port.is_ethernet = link == Link::kRoce;
  port.needs_global_header = link == Link::kRouted;
  port.lid = static_cast<uint16_t>(0x100 + number);
  port.gid.fill(static_cast<uint8_t>(0x40 + number));
  port.mac.fill(static_cast<uint8_t>(0x60 + number));
  return port;
}
m::PathOptions path_of(Link link) {
  m::PathOptions path;
  path.gid_index = link == Link::kInfiniBand ? 0 : 3;
  path.traffic_class = link == Link::kInfiniBand ? 0 : 0x68;
  path.service_level = 2;
  path.needs_global_header = link == Link::kRouted;
  return path;
}

// One NIC, a queue on it, and the memory that its peer writes.
struct End {
  End(ModelFabric* fabric, Link link, uint8_t number)
      : firmware(fabric, port_of(link, number), 0x100u * (number + 1u)),
        link(link),
        mtu(number == 1 ? 3 : 5) {
    const uint64_t bytes = m::QueueLayout(kEntries).bytes;
    memory = static_cast<std::byte*>(std::aligned_alloc(4096, bytes));
    std::memset(memory, 0, bytes);
    source.fill(number + 1);
    firmware.local = {{7, reinterpret_cast<uint64_t>(source.data()), sizeof source,
                       reinterpret_cast<std::byte*>(source.data()), true}};
  }
  ~End() { std::free(memory); }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  // The other end's memory, under key 9.
  void may_write(End* other) {
    RemoteRegion region;
    region.key = 9;
    region.address = reinterpret_cast<uint64_t>(other->target.data());
    region.bytes = sizeof other->target;
    region.place = region.address;
    firmware.remote = {region};
  }
  mep_result_t make(uint32_t first_psn = 0x123456) {
    const m::QueueLayout layout(kEntries);
    queue.ring = reinterpret_cast<Request*>(memory);
    queue.ready = ready;
    queue.record = reinterpret_cast<DoorbellRecord*>(memory + layout.record);
    queue.entries = kEntries;
    make_empty(&queue, reinterpret_cast<CompletionEntry*>(memory + layout.completion), 0);
    m::Capabilities capabilities;
    MEP_TRY(m::read_capabilities(firmware, &capabilities));
    m::SendQueuePair::Options options;
    options.entries = kEntries;
    options.mtu = mtu;
    options.first_psn = first_psn;
    options.memory = {memory, layout.bytes, -1};
    MEP_TRY(m::SendQueuePair::create(firmware, capabilities, options, &pair));
    queue.queue_pair = pair->number();
    queue.doorbell = pair->doorbell();
    return MEP_SUCCESS;
  }
  m::QueueAddress address() const { return firmware.address_of(*pair, mtu); }
  mep_result_t connect(const End& other) { return pair->connect(other.address(), path_of(link)); }

  // A put, a signal behind it, and a flush.
  Status send(uint64_t value) {
    QueuePeer<> peer(&queue, {SystemMemory::nanoseconds() + kWait, nullptr, 0});
    const uint64_t base = firmware.remote[0].address;
    Status status = peer.put({base, 9}, {source.data(), 7}, sizeof source - 8);
    if (status == Status::kOk) status = peer.signal({base + sizeof source - 8, 9}, value);
    return status == Status::kOk ? peer.flush() : status;
  }
  QueueError error() {
    QueueError found{};
    (void)QueuePeer<>(&queue, {}).error(&found);
    return found;
  }

  Firmware firmware;
  Link link;
  uint32_t mtu;  // the smaller one of both ends counts
  std::byte* memory;
  uint64_t ready[kEntries] = {};
  alignas(64) std::array<uint64_t, 64> source{};
  alignas(64) std::array<uint64_t, 64> target{};
  Queue queue{};
  std::unique_ptr<m::SendQueuePair> pair;
};

struct Two {
  explicit Two(Link link) : left(&fabric, link, 1), right(&fabric, link, 2) {
    left.may_write(&right);
    right.may_write(&left);
  }
  ~Two() {
    left.pair.reset();
    right.pair.reset();
  }
  mep_result_t bring_up() {
    MEP_TRY(left.make(0x111111));
    MEP_TRY(right.make(0x222222));
    MEP_TRY(left.connect(right));
    return right.connect(left);
  }
  ModelFabric fabric;
  End left, right;
};

void requests_travel(void**) {
  for (const Link link : kLinks) {
    Two two(link);
    assert_int_equal(two.bring_up(), MEP_SUCCESS);
    for (uint64_t round = 1; round <= 100; ++round) {
      assert_int_equal(static_cast<int>(two.left.send(round)), static_cast<int>(Status::kOk));
      assert_int_equal(static_cast<int>(two.right.send(2 * round)), static_cast<int>(Status::kOk));
      // Acquire: the signal shows the put before it.
      assert_int_equal(__atomic_load_n(&two.right.target[63], __ATOMIC_ACQUIRE), round);
      assert_int_equal(__atomic_load_n(&two.left.target[63], __ATOMIC_ACQUIRE), 2 * round);
      for (int i = 0; i < 63; ++i) assert_int_equal(two.right.target[i], 2);
      for (int i = 0; i < 63; ++i) assert_int_equal(two.left.target[i], 3);
      two.left.target.fill(0);
      two.right.target.fill(0);
    }
  }
}

// Every step of making and connecting fails once: an error that names the command, and nothing is left.
void each_step_is_refused(void**) {
  for (const Link link : kLinks) {
    uint32_t step = 0;
    for (;; ++step) {
      Two two(link);
      two.left.firmware.refuse_at = step;
      const mep_result_t result = two.bring_up();
      if (two.left.firmware.steps <= step) {
        assert_int_equal(result, MEP_SUCCESS);
        break;
      }
      assert_int_equal(result, MEP_ERR_SYSTEM);
      assert_true(std::strstr(mep_last_error(), "a fault") != nullptr ||
                  std::strstr(mep_last_error(), "the adapter refused ") != nullptr);
      two.left.pair.reset();
      two.right.pair.reset();
      assert_int_equal(two.left.firmware.live + two.right.firmware.live, 0);
      assert_true(two.left.firmware.in_order && two.right.firmware.in_order);
    }
    assert_true(step >= 9);
  }
}

struct Free {
  m::Command command;
  m::Field field;
};
// These may be otherwise, and neither the NIC refuses it nor the peer notices: times, sizes below their limits, rights that nobody
// needs, how the network treats the packets.
const std::vector<Free>& free_fields() {
  static const std::vector<Free> fields = {
      {m::Command::kCreateCq, m::within(m::kCqContextAt, m::cq::kLogSize)},
      {m::Command::kCreateCq, m::within(m::kCqContextAt, m::cq::kRecordAddress)},
      {m::Command::kCreateQp, m::in_qp(m::qp::kTimestamps)},
      {m::Command::kCreateQp, m::in_qp(m::qp::kLogSendQueue)},
      {m::Command::kCreateQp, m::in_qp(m::qp::kRecordAddress)},
      {m::Command::kReset2Init, m::in_qp(m::qp::kAllowsRead)},
      {m::Command::kReset2Init, m::in_qp(m::qp::kAllowsWrite)},
      {m::Command::kReset2Init, m::in_qp(m::qp::kAllowsAtomic)},
      {m::Command::kReset2Init, m::in_qp(m::qp::kAtomicMode)},
      {m::Command::kInit2Rtr, m::in_qp(m::qp::kLogMaxMessage)},
      {m::Command::kInit2Rtr, m::in_qp(m::qp::kNotReadyTimer)},
      {m::Command::kInit2Rtr, m::in_path(m::path::kHopLimit)},
      {m::Command::kInit2Rtr, m::in_path(m::path::kSourceAddress)},
      {m::Command::kInit2Rtr, m::in_path(m::path::kTrafficClass)},
      {m::Command::kInit2Rtr, m::in_path(m::path::kServiceLevel)},
      {m::Command::kInit2Rtr, m::in_path(m::path::kPriority)},
      {m::Command::kInit2Rtr, m::in_path(m::path::kUdpPort)},
      {m::Command::kRtr2Rts, m::in_qp(m::qp::kRetries)},
      {m::Command::kRtr2Rts, m::in_qp(m::qp::kNotReadyRetries)},
      {m::Command::kRtr2Rts, m::in_path(m::path::kAckTimeout)},
  };
  return fields;
}
bool is_free(uint64_t opcode, uint32_t bit) {
  for (const Free& each : free_fields()) {
    if (static_cast<uint64_t>(each.command) == opcode && bit >= each.field.at &&
        bit < each.field.at + each.field.bits) {
      return true;
    }
  }
  return false;
}

// Whether anything notices that bit `bit` of the left end's command is another one.
bool is_noticed(Link link, m::Command command, uint32_t bit) {
  Two two(link);
  two.left.firmware.alter = [&](m::Mailbox* in) {
    if (in->get(m::kOpcode) != static_cast<uint64_t>(command)) return;
    in->data()[bit / 8] ^= static_cast<uint8_t>(0x80u >> bit % 8);
  };
  if (two.bring_up() != MEP_SUCCESS) return true;
  bool allowed = false;
  return !two.fabric.reaches(two.left.pair->number(), false, &allowed) ||
         !two.fabric.reaches(two.right.pair->number(), false, &allowed);
}

void each_bit_counts(void**) {
  for (const Link link : {Link::kRouted, Link::kRoce}) {
    for (const m::Command command :
         {m::Command::kCreateCq, m::Command::kCreateQp, m::Command::kReset2Init,
          m::Command::kInit2Rtr, m::Command::kRtr2Rts}) {
      for (uint32_t bit = 0; bit < m::kLongBytes * 8; ++bit) {
        if (is_free(static_cast<uint64_t>(command), bit)) continue;
        if (!is_noticed(link, command, bit)) {
          fail_msg("bit 0x%x of command 0x%x can be another one", bit,
                   static_cast<unsigned>(command));
        }
      }
    }
  }
}

// A pair whose peer has other numbers, is not there, or is cut off: the requests fail after the tries.
void unreachable_peers(void**) {
  for (int kind = 0; kind < 4; ++kind) {
    Two two(Link::kRoce);
    assert_int_equal(two.left.make(1), MEP_SUCCESS);
    assert_int_equal(two.right.make(2), MEP_SUCCESS);
    m::QueueAddress address = two.right.address();
    if (kind == 0) address.first_psn ^= 1;
    if (kind == 1) address.mac[5] ^= 1;
    assert_int_equal(two.left.pair->connect(address, path_of(Link::kRoce)), MEP_SUCCESS);
    m::QueueAddress back = two.left.address();
    if (kind == 0) back.first_psn ^= 4;
    if (kind != 2) {
      assert_int_equal(two.right.pair->connect(back, path_of(Link::kRoce)), MEP_SUCCESS);
    }
    {
      const std::lock_guard lock(two.fabric.mutex);
      two.fabric.is_down = kind == 3;
    }
    assert_int_equal(static_cast<int>(two.left.send(1)), static_cast<int>(Status::kFailed));
    const uint8_t syndrome = two.left.error().syndrome;
    assert_true(syndrome == 0x15 || syndrome == 0x05);
  }
}

// The host stops a queue: its posters end, also those that come later, and the peer's memory stays as it is.
void stopped_queues(void**) {
  Two two(Link::kInfiniBand);
  assert_int_equal(two.bring_up(), MEP_SUCCESS);
  assert_int_equal(static_cast<int>(two.left.send(5)), static_cast<int>(Status::kOk));
  assert_int_equal(two.left.pair->fail(), MEP_SUCCESS);
  two.right.target.fill(0);
  assert_int_equal(static_cast<int>(two.left.send(6)), static_cast<int>(Status::kFailed));
  assert_int_equal(two.left.error().syndrome, 0x05);
  assert_int_equal(two.right.target[63], 0);
  assert_int_equal(static_cast<int>(two.right.send(7)), static_cast<int>(Status::kFailed));
}

void what_adapters_lack(void**) {
  struct Lack {
    void (*take)(m::Capabilities*);
    const char* says;
  };
  const Lack lacks[] = {
      {[](m::Capabilities* c) { c->ignores_overrun = false; }, "cq_oi is 0"},
      {[](m::Capabilities* c) { c->completion_version = 0; }, "version 0"},
      {[](m::Capabilities* c) { c->log_max_completions = 0; }, "no completion queues"},
      {[](m::Capabilities* c) { c->log_max_entries = 5; }, "32 blocks at most, 64 are wanted"},
      {[](m::Capabilities* c) { c->log_max_message = 20; }, "2^20 bytes"},
      {[](m::Capabilities* c) { c->has_roce = false; }, "no RoCE"},
  };
  for (const Lack& lack : lacks) {
    Two two(Link::kRoce);
    lack.take(&two.left.firmware.capabilities);
    assert_int_equal(two.left.make(), MEP_ERR_UNSUPPORTED);
    assert_non_null(std::strstr(mep_last_error(), lack.says));
    assert_int_equal(two.left.firmware.live, 0);
  }
}

void wrong_arguments(void**) {
  Two two(Link::kRouted);
  End& end = two.left;
  const m::Capabilities good = end.firmware.capabilities;
  m::SendQueuePair::Options options;
  options.mtu = 5;
  options.memory = {end.memory, m::QueueLayout(kEntries).bytes, -1};
  std::unique_ptr<m::SendQueuePair> pair;
  for (const uint32_t entries : {0u, 1u, 48u, 32768u, 128u}) {  // the last: too little memory
    options.entries = entries;
    assert_int_equal(m::SendQueuePair::create(end.firmware, good, options, &pair),
                     MEP_ERR_INVALID_ARGUMENT);
  }
  options.entries = kEntries;
  options.mtu = 6;
  assert_int_equal(m::SendQueuePair::create(end.firmware, good, options, &pair),
                   MEP_ERR_INVALID_ARGUMENT);
  assert_int_equal(end.firmware.steps, 0);
  assert_int_equal(end.make(), MEP_SUCCESS);
  assert_int_equal(two.right.make(), MEP_SUCCESS);
  m::QueueAddress peer = two.right.address();
  peer.has_gid = false;
  assert_int_equal(end.pair->connect(peer, path_of(Link::kRouted)), MEP_ERR_INVALID_ARGUMENT);
  peer = two.right.address();
  peer.queue_pair = 0;
  assert_int_equal(end.pair->connect(peer, path_of(Link::kRouted)), MEP_ERR_INVALID_ARGUMENT);
  assert_int_equal(end.connect(two.right), MEP_SUCCESS);
  assert_int_equal(end.connect(two.right), MEP_ERR_SYSTEM);  // once
}

// The pairs of an object that has the memory of an end.
struct OnePair {
  explicit OnePair(End* end, uint32_t suspect_ms = 5000) {
    assert_int_equal(m::Adapter::open(end->firmware, "model", &adapter), MEP_SUCCESS);
    pairs = std::make_unique<m::AdapterPairs>(adapter.get());
    assert_int_equal(pairs->use_window({end->target.data(), sizeof end->target}), MEP_SUCCESS);
    assert_int_equal(pairs->use_source({end->source.data(), sizeof end->source}), MEP_SUCCESS);
    assert_int_equal(
        pairs->make({end->memory, kEntries, end->ready, suspect_ms}, &end->queue, &pair),
        MEP_SUCCESS);
  }
  mep_result_t connect(const OnePair& other, Queue* queue) const {
    const std::vector<std::byte> address = other.pair->address();
    PeerEnd peer;
    peer.address = address;
    return pair->connect(peer, queue);
  }
  std::unique_ptr<m::Adapter> adapter;
  std::unique_ptr<m::AdapterPairs> pairs;
  std::unique_ptr<NicPair> pair;
};

// A peer's address may be anything.
void wrong_addresses(void**) {
  ModelFabric fabric;
  End end(&fabric, Link::kRouted, 1);
  End on_ethernet(&fabric, Link::kRoce, 2);
  OnePair own(&end);
  const OnePair other(&on_ethernet);
  const uint32_t steps = end.firmware.steps;
  const std::vector<std::byte> good = own.pair->address();
  const std::vector<std::byte> foreign = other.pair->address();
  PeerEnd peer;
  for (const size_t bytes : {size_t{0}, good.size() - 1}) {
    peer.address = {good.data(), bytes};
    assert_int_equal(own.pair->connect(peer, &end.queue), MEP_ERR_DENIED);
  }
  const std::vector<std::byte> zeros(good.size());
  peer.address = zeros;
  assert_int_equal(own.pair->connect(peer, &end.queue), MEP_ERR_DENIED);
  peer.address = foreign;
  assert_int_equal(own.pair->connect(peer, &end.queue), MEP_ERR_MISMATCH);
  assert_int_equal(end.firmware.steps, steps);  // without a command
}

// Without a command: the pair is in reset.
void stopped_before_it_connects(void**) {
  ModelFabric fabric;
  End left(&fabric, Link::kRoce, 1);
  End right(&fabric, Link::kRoce, 2);
  OnePair own(&left);
  const OnePair other(&right);
  const uint32_t steps = left.firmware.steps;
  assert_int_equal(own.pair->fail(mep::Deadline::never()), MEP_SUCCESS);
  assert_int_equal(own.connect(other, &left.queue), MEP_SUCCESS);
  assert_int_equal(left.firmware.steps, steps);
}

// A caller waits until its deadline alone, and the next not at all. After remove() a command has ended, or never runs.
void adapters_that_hang(void**) {
  m::PairStopper stopper;
  assert_int_equal(stopper.start(), MEP_SUCCESS);
  std::atomic<bool> has_begun{false}, hangs{true}, has_ended{false};
  m::PairStopper::Stop first{[&] {
    has_begun = true;
    while (hangs) std::this_thread::yield();
    has_ended = true;
    return mep_result_t{MEP_SUCCESS};
  }};
  m::PairStopper::Stop second{[] { return mep_result_t{MEP_ERR_INTERNAL}; }};
  m::PairStopper::Stop third{[] { return mep_result_t{MEP_ERR_SYSTEM}; }};
  assert_int_equal(stopper.run(&first, mep::Deadline::after_ms(10)), MEP_ERR_TIMEOUT);
  while (!has_begun) std::this_thread::yield();
  assert_int_equal(stopper.run(&second, mep::Deadline::never()), MEP_ERR_TIMEOUT);
  stopper.remove(&second);
  hangs = false;
  stopper.remove(&first);
  assert_true(has_ended);
  assert_int_equal(first.result.value(), MEP_SUCCESS);
  assert_int_equal(stopper.run(&third, mep::Deadline::never()), MEP_ERR_SYSTEM);
  assert_false(second.result.has_value());
  stopper.remove(&third);
}

// The adapter gives up when the world does, but for times that no network has.
void tries_follow_the_time_of_suspicion(void**) {
  struct Case {
    uint32_t suspect_ms, exponent;
  };
  // 8 tries of 4.096 us * 2^17 are 4.3 s.
  for (const Case& each : {Case{1, 14},
                           {537, 14},
                           {1100, 15},
                           {4294, 17},
                           {5000, 17},
                           {8600, 18},
                           {34'000, 19},
                           {35'000, 20},
                           {UINT32_MAX, 20}}) {
    ModelFabric fabric;
    End left(&fabric, Link::kRoce, 1);
    End right(&fabric, Link::kRoce, 2);
    uint64_t exponent = 0, retries = 0;
    left.firmware.alter = [&](m::Mailbox* in) {
      if (in->get(m::kOpcode) != static_cast<uint64_t>(m::Command::kRtr2Rts)) return;
      exponent = in->get(m::in_path(m::path::kAckTimeout));
      retries = in->get(m::in_qp(m::qp::kRetries));
    };
    OnePair own(&left, each.suspect_ms);
    const OnePair other(&right);
    assert_int_equal(own.connect(other, &left.queue), MEP_SUCCESS);
    assert_int_equal(exponent, each.exponent);
    assert_int_equal(retries, 7);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(requests_travel),
      cmocka_unit_test(each_step_is_refused),
      cmocka_unit_test(each_bit_counts),
      cmocka_unit_test(unreachable_peers),
      cmocka_unit_test(stopped_queues),
      cmocka_unit_test(what_adapters_lack),
      cmocka_unit_test(wrong_arguments),
      cmocka_unit_test(wrong_addresses),
      cmocka_unit_test(stopped_before_it_connects),
      cmocka_unit_test(adapters_that_hang),
      cmocka_unit_test(tries_follow_the_time_of_suspicion),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
