// The parts of the verbs transport that are plain values: addresses, what peers tell each other, the
// accounting of a send queue, striping, and which memory is registered. No device is needed.
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "base/status.hpp"
#include "support/cmocka_cpp.hpp"
#include "transport/verbs/addresses.hpp"
#include "transport/verbs/registration_cache.hpp"
#include "transport/verbs/send_queue.hpp"
#include "transport/verbs/signal_words.hpp"

namespace mep::verbs {
namespace {

Gid mapped(uint8_t last) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, last};
}
Gid link_local(uint8_t last) {
  return {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last};
}
Gid global(uint8_t last) {
  return {0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last};
}

void gids(void**) {
  const GidEntry list[] = {
      {0, GidType::kRoceV1, link_local(1)}, {1, GidType::kRoceV2, link_local(1)},
      {2, GidType::kRoceV1, mapped(1)},     {3, GidType::kRoceV2, mapped(1)},
      {4, GidType::kRoceV2, global(1)},     {5, GidType::kRoceV2, mapped(2)}};
  assert_int_equal(choose_gid(list, false, -1), 3);
  assert_int_equal(choose_gid(std::span(list, 3), false, -1), 1);  // v2 before v1, whatever address
  assert_int_equal(choose_gid(std::span(list, 1), false, -1), 0);
  assert_int_equal(choose_gid(std::span(list).subspan(4, 1), false, -1), 4);
  assert_int_equal(choose_gid(list, false, 2), 2);
  assert_int_equal(choose_gid(list, false, 9), -1);
  assert_int_equal(choose_gid(list, true, -1), -1);
  const GidEntry infiniband[] = {{0, GidType::kInfiniband, global(7)}};
  assert_int_equal(choose_gid(infiniband, true, -1), 0);
  assert_int_equal(choose_gid(infiniband, false, -1), -1);
  const GidEntry empty[] = {{0, GidType::kRoceV2, {}}};
  assert_int_equal(choose_gid(empty, false, -1), -1);
  assert_int_equal(choose_gid(empty, false, 0), -1);
}

PortAddress roce(uint8_t last) {
  PortAddress port;
  port.mtu = 3;
  port.gid = mapped(last);
  port.speed_mbps = 100000;
  return port;
}
PortAddress infiniband(uint16_t lid, uint8_t prefix) {
  PortAddress port;
  port.is_infiniband = true;
  port.lid = lid;
  port.mtu = 5;
  port.gid = link_local(1);
  port.gid[7] = prefix;
  return port;
}

void rails(void**) {
  const std::vector<PortAddress> two = {roce(1), roce(2)};
  const std::vector<PortAddress> mixed = {infiniband(4, 0), roce(3), roce(4), roce(5)};
  auto pairs = pair_rails(two, mixed);
  assert_int_equal(pairs.size(), 2);
  assert_int_equal(pairs[0].lower, 0);
  assert_int_equal(pairs[0].higher, 1);
  assert_int_equal(pairs[1].higher, 2);
  assert_int_equal(pair_rails(mixed, two).size(), 2);
  assert_int_equal(pair_rails(two, std::vector<PortAddress>{infiniband(4, 0)}).size(), 0);
  PortAddress local = roce(1);
  local.gid = link_local(9);
  assert_false(same_fabric(local, roce(1)));
  assert_false(same_fabric(infiniband(0, 0), infiniband(3, 0)));  // a LID of 0 is none
  assert_false(needs_global_route(infiniband(2, 0), infiniband(3, 0)));
  assert_true(needs_global_route(infiniband(2, 0), infiniband(3, 1)));
  assert_true(needs_global_route(roce(1), roce(2)));
}

void offers(void**) {
  const std::vector<PortAddress> ports = {roce(1), infiniband(77, 3)};
  const std::vector<std::byte> bytes = encode_offer(ports);
  assert_true(bytes.size() <= 1024);
  std::vector<PortAddress> back;
  assert_int_equal(decode_offer(bytes, &back), MEP_SUCCESS);
  assert_int_equal(back.size(), 2);
  assert_true(back[0].gid == ports[0].gid && !back[0].is_infiniband && back[0].mtu == 3);
  assert_true(back[1].is_infiniband && back[1].lid == 77 && back[1].speed_mbps == 0);
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    assert_int_equal(decode_offer(std::span(bytes).first(cut), &back), MEP_ERR_DENIED);
  }
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bent = bytes;
    for (uint32_t i = random() % 4 + 1; i > 0; --i)
      bent[random() % bent.size()] = std::byte(random());
    back.clear();
    if (decode_offer(bent, &back) != MEP_SUCCESS) continue;
    assert_true(back.size() <= kMaxRails);
    for (const PortAddress& port : back) assert_true(port.mtu >= 1 && port.mtu <= kLargestMtu);
  }
}

void windows(void**) {
  const WindowAddress address{5, 4096, 0x7f0000001000, 3, {{11, 22, 33}, {44, 55, 66}}};
  const std::vector<std::byte> blob = encode_window(address);
  assert_true(blob.size() <= 256);
  WindowAddress back;
  assert_int_equal(decode_window(blob, 5, 4096, 2, &back), MEP_SUCCESS);
  assert_int_equal(back.rails[1].queue_pair, 55);
  assert_int_equal(back.generation, 3);
  assert_int_equal(decode_window(blob, 5, 4097, 2, &back), MEP_ERR_MISMATCH);
  assert_int_equal(decode_window(blob, 6, 4096, 2, &back), MEP_ERR_MISMATCH);
  assert_int_equal(decode_window(blob, 5, 4096, 1, &back), MEP_ERR_DENIED);
  WindowAddress wrapping = address;
  wrapping.address = UINT64_MAX - 100;
  assert_int_equal(decode_window(encode_window(wrapping), 5, 4096, 2, &back), MEP_ERR_DENIED);
  WindowAddress wide = address;
  wide.rails[0].queue_pair = 1u << 24;
  assert_int_equal(decode_window(encode_window(wide), 5, 4096, 2, &back), MEP_ERR_DENIED);
}

void port_lists(void**) {
  std::vector<PortName> ports;
  assert_int_equal(parse_port_list("mlx5_0:1,rxe0", &ports), MEP_SUCCESS);
  assert_int_equal(ports.size(), 2);
  assert_true(ports[0].device == "mlx5_0" && ports[0].port == 1);
  assert_true(ports[1].device == "rxe0" && ports[1].port == 0);
  assert_int_equal(parse_port_list("", &ports), MEP_SUCCESS);
  assert_true(ports.empty());
  for (const char* bad : {":1", "a:", "a:0", "a:x", "a:256", ",a"}) {
    assert_int_equal(parse_port_list(bad, &ports), MEP_ERR_INVALID_ARGUMENT);
  }
}

void stripes(void**) {
  for (const size_t bytes : {size_t{1}, size_t{131071}, size_t{131072}, size_t{1000001}}) {
    for (size_t count = 1; count <= kMaxRails; ++count) {
      const Striping striping(bytes, count);
      assert_int_equal(striping.rails(), bytes < Striping::kMinBytes ? 1 : count);
      assert_int_equal(striping.begin(0), 0);
      assert_int_equal(striping.begin(striping.rails()), bytes);
      for (size_t rail = 0; rail < striping.rails(); ++rail) {
        assert_true(striping.begin(rail) <= striping.begin(rail + 1));
      }
    }
  }
}

// Posts and completes at random, as a device may: completions only of signalled requests, in order.
void send_queue(void**) {
  std::mt19937 random(3);
  for (const uint32_t depth : {1u, 2u, 7u, 128u}) {
    SendQueue queue(depth);
    std::vector<uint64_t> signalled;
    size_t completed = 0;
    for (int step = 0; step < 20000; ++step) {
      if (!queue.full() && random() % 3 != 0) {
        const bool wanted = random() % 50 == 0 || queue.must_signal();
        const uint64_t number = queue.post(wanted);
        if (wanted) signalled.push_back(number);
      } else if (completed < signalled.size()) {
        queue.complete(signalled[completed++]);
      } else {
        assert_false(queue.full());  // nothing would ever make room
      }
      assert_true(queue.posted() - queue.completed() <= depth);
      assert_int_equal(queue.last_is_signalled(),
                       queue.posted() == (signalled.empty() ? 0 : signalled.back()));
    }
    queue.complete(queue.posted() + 5);
    assert_true(queue.completed() <= queue.posted());
    queue.abandon();
    assert_true(queue.idle());
  }
}

class CountingRegistrar final : public Registrar {
 public:
  mep_result_t add(const void* memory, size_t bytes, bool, Registration* out) override {
    if (refuse) return fail(MEP_ERR_NO_MEMORY, "refused");
    out->handles[0] = reinterpret_cast<void*>(++last);
    out->lkeys[0] = static_cast<uint32_t>(last);
    live.insert(last);
    begin = memory;
    length = bytes;
    return MEP_SUCCESS;
  }
  void remove(Registration* registration) override {
    if (registration->handles[0] == nullptr) return;
    assert_int_equal(live.erase(reinterpret_cast<uintptr_t>(registration->handles[0])), 1);
    registration->handles[0] = nullptr;
  }
  uintptr_t last = 0;
  bool refuse = false;
  std::set<uintptr_t> live;
  const void* begin = nullptr;
  size_t length = 0;
};

void adopted_memory(void**) {
  CountingRegistrar registrar;
  std::vector<std::byte> memory(100000);
  std::byte* base = memory.data();
  {
    RegistrationCache cache(&registrar, 0);
    Registration found;
    Registration made;
    Registration previous;
    auto whole = std::make_shared<int>(0);
    auto part = std::make_shared<int>(0);
    assert_int_equal(cache.adopt(base, 1000, whole, &made, &previous), MEP_SUCCESS);
    assert_int_equal(cache.adopt(base + 100, 10, part, &made, &previous),
                     MEP_SUCCESS);  // within the other
    assert_int_equal(registrar.live.size(), 2);
    assert_true(cache.find(base + 500, 500, &found));
    assert_int_equal(found.lkeys[0], 1);
    assert_true(cache.find(base + 100, 10, &found));
    assert_false(cache.find(base + 500, 501, &found));
    assert_false(cache.find(base + 1000, 1, &found));
    assert_false(cache.find(base + 900, SIZE_MAX - 10, &found));
    whole.reset();
    assert_false(cache.find(base, 1000, &found));
    assert_true(cache.find(base + 100, 10, &found));
    registrar.refuse = true;
    assert_int_equal(cache.adopt(base + 5000, 10, part, &made, &previous), MEP_ERR_NO_MEMORY);
    registrar.refuse = false;
    auto owner = std::make_shared<int>(1);
    assert_int_equal(cache.adopt(base + 2000, 500, owner, &made, &previous), MEP_SUCCESS);
    assert_null(previous.handles[0]);
    assert_int_equal(cache.adopt(base + 2000, 500, owner, &made, &previous), MEP_SUCCESS);
    assert_non_null(previous.handles[0]);
    cache.release(&previous);
    assert_true(cache.find(base + 2100, 100, &found) && found.lkeys[0] == made.lkeys[0]);
    owner.reset();
    assert_false(cache.find(base + 2100, 100, &found));
    cache.sweep();
    assert_int_equal(registrar.live.size(), 1);
  }
  assert_true(registrar.live.empty());
}

void cached_memory(void**) {
  CountingRegistrar registrar;
  std::vector<std::byte> memory(1 << 20);
  std::byte* base = memory.data();
  Registration found;
  RegistrationCache::Ticket ticket = 0;
  {
    RegistrationCache none(&registrar, 0);
    assert_false(none.borrow(base, 5000, &found, &ticket));
  }
  {
    RegistrationCache cache(&registrar, 64 << 10);
    RegistrationCache::Ticket first = 0;
    assert_true(cache.borrow(base + 10, 30000, &found, &first));
    assert_true(registrar.length >= 30000 &&
                reinterpret_cast<uintptr_t>(registrar.begin) % 4096 == 0);
    assert_true(cache.borrow(base + 20, 100, &found, &ticket));  // within it
    assert_int_equal(ticket, first);
    assert_int_equal(registrar.live.size(), 1);
    cache.give_back(ticket);
    // The first is still in use: there is no room for another large one, for a small one there is.
    assert_false(cache.borrow(base + 200000, 40000, &found, &ticket));
    assert_true(cache.borrow(base + 200000, 10000, &found, &ticket));
    cache.give_back(ticket);
    cache.give_back(first);
    assert_true(cache.borrow(base + 400000, 50000, &found, &ticket));  // the others had to go
    assert_int_equal(registrar.live.size(), 1);
    assert_true(cache.cached_bytes() <= (64 << 10));
    cache.give_back(ticket);
    assert_false(cache.borrow(base, 70000, &found, &ticket));
    registrar.refuse = true;
    assert_false(cache.borrow(base, 1000, &found, &ticket));
    registrar.refuse = false;
  }
  assert_true(registrar.live.empty());
}

struct SignalEnds {
  SignalEnds() {
    assert_int_equal(Window::create(9, 8192, &window), MEP_SUCCESS);
    arrived.offer(window);
  }
  // True: by a code. `whole` and `code` are what travelled.
  bool signal(uint64_t offset, uint64_t value) {
    const bool coded = sent.encode(9, offset, value, &code, &whole);
    if (coded) {
      assert_false(arrived.take_code(code));
    } else {
      arrived.take_definition(std::as_bytes(std::span(&whole, 1)));
    }
    assert_true(word(offset) == value);
    return coded;
  }
  uint64_t word(uint64_t offset) const {
    uint64_t value = 0;
    std::memcpy(&value, window->data() + offset, sizeof value);
    return value;
  }
  std::shared_ptr<Window> window;
  SentSignals sent;
  ArrivedSignals arrived;
  uint32_t code = 0;
  SignalDefinition whole;
};

void signals(void**) {
  const auto ends = std::make_unique<SignalEnds>();
  constexpr uint64_t kTag = uint64_t{1} << 24;
  const uint64_t top = uint64_t{0x8001} << 48 | uint64_t{0xffffff} << 24;
  assert_false(ends->sent.in_use());
  assert_false(ends->signal(64, 1));
  assert_true(ends->sent.in_use());
  assert_true(ends->signal(64, 1));
  assert_true(ends->signal(64, 1 + 8191));
  assert_true(ends->signal(64, 0));
  assert_false(ends->signal(64, 8192));
  assert_true(ends->signal(64, 0));
  assert_true(ends->signal(64, 127 * kTag + 5));
  assert_false(ends->signal(64, 255 * kTag + 5));
  assert_false(ends->signal(64, 254 * kTag + 5));
  assert_false(ends->signal(64, top));
  assert_true(ends->signal(64, top + kTag));  // carried into the epoch
  assert_false(ends->signal(64, UINT64_MAX));
  assert_true(ends->signal(64, 8190));  // around the end of both parts
  // The owner clears words between epochs; what they were does not matter.
  std::memset(ends->window->data() + 64, 0, 8);
  assert_true(ends->signal(64, 8191));
  // A window that may be another one.
  ends->sent.forget(8);
  assert_true(ends->signal(64, 8191));
  ends->sent.forget(9);
  assert_false(ends->signal(64, 8191));
  // More words than entries, in any order: entries are shared, and nothing is mixed up.
  std::mt19937_64 random(5);
  for (int i = 0; i < 20000; ++i) {
    (void)ends->signal(random() % 1024 * 8, random() % 4 * kTag + random() % 100);
  }
}

void signals_from_a_stranger(void**) {
  const auto ends = std::make_unique<SignalEnds>();
  const auto tell = [&](SignalDefinition whole) {
    ends->arrived.take_definition(std::as_bytes(std::span(&whole, 1)));
  };
  const std::vector<std::byte> zeros(8192);
  const auto untouched = [&] {
    return std::memcmp(ends->window->data(), zeros.data(), zeros.size()) == 0;
  };
  tell({8, 64, 1, 0});  // a window that it was not offered
  tell({9, 8192, 1, 0});
  tell({9, 8185, 1, 0});
  tell({9, 60, 1, 0});
  tell({9, UINT64_MAX - 7, 1, 0});
  tell({9, 64, 1, kSignalEntries});
  tell({9, 64, 1, UINT64_MAX});
  ends->arrived.take_definition({});
  const SignalDefinition part{9, 64, 1, 0};
  ends->arrived.take_definition(std::as_bytes(std::span(&part, 1)).first(31));
  for (uint32_t entry = 0; entry < kSignalEntries; ++entry) {
    (void)ends->arrived.take_code(kSignalBit | entry << 21 | 1);
  }
  (void)ends->arrived.take_code(0);
  assert_true(untouched());
  // One that it was offered, and one that is gone.
  tell({9, 8184, 1, 7});
  assert_true(ends->word(8184) == 1);
  ends->window.reset();
  (void)ends->arrived.take_code(kSignalBit | 7u << 21 | 1);
  tell({9, 64, 1, 0});
}

void marks(void**) {
  const auto ends = std::make_unique<SignalEnds>();
  uint64_t number = 0x7ffffffa;
  for (int i = 0; i < 20; ++i, number += static_cast<uint64_t>(i)) {
    assert_true(ends->arrived.take_code(kMarkBit | static_cast<uint32_t>(number)));
    assert_true(ends->arrived.marked() == number);
  }
}

}  // namespace
}  // namespace mep::verbs

int main() {
  using namespace mep::verbs;
  const CMUnitTest tests[] = {
      cmocka_unit_test(gids),
      cmocka_unit_test(rails),
      cmocka_unit_test(offers),
      cmocka_unit_test(windows),
      cmocka_unit_test(port_lists),
      cmocka_unit_test(stripes),
      cmocka_unit_test(send_queue),
      cmocka_unit_test(adopted_memory),
      cmocka_unit_test(cached_memory),
      cmocka_unit_test(signals),
      cmocka_unit_test(signals_from_a_stranger),
      cmocka_unit_test(marks),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
