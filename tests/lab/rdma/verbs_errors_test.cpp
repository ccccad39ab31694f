// Verbs when something breaks: bad keys, broken queue pairs, links that go down, devices that go
// away, fenced peers that go on. Two transports of one process, over the lab's devices; runs in its guest
// as root: ./dev lab rdma.
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "adapters.hpp"
#include "base/clock.hpp"
#include "base/status.hpp"
#include "support/cmocka_cpp.hpp"
#include "support/posting.hpp"
#include "transport/verbs/verbs_transport.hpp"

namespace mep::test {
namespace {

using verbs::VerbsTransport;

constexpr uint64_t kData = 5;
constexpr size_t kDataBytes = size_t{1} << 20;
constexpr uint64_t kLimitMs = 60000;

struct End {
  PeerIdentity identity;
  std::unique_ptr<VerbsTransport> transport;
  std::shared_ptr<Window> world;
  std::shared_ptr<Window> data;

  std::atomic<uint64_t>& word(uint64_t offset) const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(data->data() + offset);
  }
};

struct Pair {
  End ends[2];
  End& a() { return ends[0]; }
  End& b() { return ends[1]; }
  uint32_t slot_a() const { return ends[0].identity.slot; }
  uint32_t slot_b() const { return ends[1].identity.slot; }
};

void connect(End& from, End& to, const std::vector<std::byte>& offer) {
  assert_int_equal(to.transport->add_peer(to.identity, from.identity, offer, {}), MEP_SUCCESS);
}

void give_window(End& from, End& to, const std::shared_ptr<Window>& window) {
  WindowExport exported;
  assert_int_equal(from.transport->export_window(to.identity.slot, window, &exported), MEP_SUCCESS);
  assert_int_equal(to.transport->import_window(from.identity.slot, window->id(), window->bytes(),
                                               exported.blob, UniqueFd()),
                   MEP_SUCCESS);
}

std::unique_ptr<Pair> make_pair(const char* hca_a, const char* hca_b) {
  auto pair = std::make_unique<Pair>();
  std::vector<std::byte> offers[2];
  for (uint32_t i = 0; i < 2; ++i) {
    End& end = pair->ends[i];
    end.identity = {3 + 4 * i, 0x100 + i, 7, 1 + i, 0};
    TransportOptions options;
    options.near_adapters = only_adapters(i == 0 ? hca_a : hca_b);
    end.transport = std::make_unique<VerbsTransport>(options);
    if (end.transport->open(&offers[i]) != MEP_SUCCESS) fail_msg("%s", last_error_text());
    assert_int_equal(Window::create(kWorldWindowId, 4096, &end.world), MEP_SUCCESS);
    assert_int_equal(Window::create(kData, kDataBytes, &end.data), MEP_SUCCESS);
  }
  connect(pair->a(), pair->b(), offers[0]);
  connect(pair->b(), pair->a(), offers[1]);
  give_window(pair->a(), pair->b(), pair->a().world);
  give_window(pair->b(), pair->a(), pair->b().world);
  give_window(pair->a(), pair->b(), pair->a().data);
  give_window(pair->b(), pair->a(), pair->b().data);
  return pair;
}

bool wait_for(const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::after_ms(kLimitMs);
  while (!condition()) {
    if (deadline.expired()) return false;
    std::this_thread::yield();
  }
  return true;
}

// Until all that was posted has been acknowledged.
mep_result_t arrive(VerbsTransport& transport, uint32_t slot) {
  (void)wait_for([&] {
    (void)transport.progress(false);
    return transport.is_acknowledged(slot);
  });
  return flush_posted(transport, slot);
}

// Puts until an answer is not success.
mep_result_t put_until_refused(End& from, uint32_t slot) {
  std::vector<std::byte> bytes(20000, std::byte{7});
  const Deadline deadline = Deadline::after_ms(kLimitMs);
  while (!deadline.expired()) {
    mep_result_t result = post_put(*from.transport, slot, kData, 4096, bytes.data(), bytes.size());
    if (result == MEP_SUCCESS) result = arrive(*from.transport, slot);
    if (result != MEP_SUCCESS) return result;
  }
  return MEP_SUCCESS;
}

void expect_failure(End& from, uint32_t slot, const char* text) {
  uint64_t value = 1;
  assert_int_equal(post_put(*from.transport, slot, kData, 0, &value, 8), MEP_ERR_PEER_FAILED);
  if (strstr(last_error_text(), text) == nullptr) fail_msg("\"%s\": %s", text, last_error_text());
  assert_int_equal(post_signal(*from.transport, slot, kData, 0, 1, true), MEP_ERR_PEER_FAILED);
  assert_int_equal(arrive(*from.transport, slot), MEP_ERR_PEER_FAILED);
  PeerFailure failure;
  assert_true(from.transport->take_failure(&failure));
  assert_int_equal(failure.slot, slot);
  if (strstr(failure.reason.c_str(), text) == nullptr) fail_msg("%s", failure.reason.c_str());
  assert_false(from.transport->take_failure(&failure));  // told once
  std::printf("  evidence: %s\n", failure.reason.c_str());
}

void run(const std::string& command) {
  // NOLINTNEXTLINE(cert-env33-c,concurrency-mt-unsafe): the guest is the test's own
  if (std::system(command.c_str()) != 0) fail_msg("%s", command.c_str());
}

// Ends of a link that was down have forgotten their neighbours.
void bring_link_up() {
  run("ip link set veth0 up && ip link set veth1 up");
  for (int side = 0; side < 2; ++side) {
    run("ip neighbour replace 10.77.0." + std::to_string(2 - side) + " lladdr 02:4d:45:50:00:0" +
        std::to_string(2 - side) + " dev veth" + std::to_string(side) + " nud permanent");
  }
  if (!wait_for([] { return verbs::active_ports().size() == 2; })) fail_msg("no link");
}

void bad_key(void**) {
  const auto pair = make_pair("rxe0:1", "rxe1:1");
  pair->a().transport->spoil_key(pair->slot_b(), kData);
  std::vector<std::byte> bytes(20000, std::byte{7});
  assert_int_equal(
      post_put(*pair->a().transport, pair->slot_b(), kData, 0, bytes.data(), bytes.size()),
      MEP_SUCCESS);
  assert_int_equal(arrive(*pair->a().transport, pair->slot_b()), MEP_ERR_PEER_FAILED);
  expect_failure(pair->a(), pair->slot_b(), "remote access error");
  for (size_t i = 0; i < kDataBytes; ++i) assert_true(pair->b().data->data()[i] == std::byte{0});
}

// Nobody calls flush: the control thread's look finds it.
void found_without_a_call(void**) {
  const auto pair = make_pair("rxe0:1", "rxe1:1");
  pair->a().transport->spoil_key(pair->slot_b(), kData);
  assert_int_equal(post_signal(*pair->a().transport, pair->slot_b(), kData, 0, 1, false),
                   MEP_SUCCESS);
  PeerFailure failure;
  assert_true(wait_for([&] {
    pair->a().transport->serve();
    return pair->a().transport->take_failure(&failure);
  }));
  assert_int_equal(failure.slot, pair->slot_b());
  assert_true(failure.incarnation == pair->b().identity.incarnation);
}

void queue_pair_error(void**) {
  const auto pair = make_pair("rxe0:1", "rxe1:1");
  pair->a().transport->break_queue_pair(pair->slot_b());
  assert_int_equal(put_until_refused(pair->a(), pair->slot_b()), MEP_ERR_PEER_FAILED);
  expect_failure(pair->a(), pair->slot_b(), "HCA rxe0:1");
  // The other side's packets find nobody.
  assert_int_equal(put_until_refused(pair->b(), pair->slot_a()), MEP_ERR_PEER_FAILED);
  expect_failure(pair->b(), pair->slot_a(), "HCA rxe1:1");
}

void link_down_in_a_transfer(void**) {
  const auto pair = make_pair("rxe0:1", "rxe1:1");
  std::atomic<mep_result_t> answer{MEP_SUCCESS};
  std::atomic<bool> started{false};
  std::string text;
  std::thread sender([&] {
    std::vector<std::byte> bytes(200000, std::byte{7});
    const Deadline deadline = Deadline::after_ms(kLimitMs);
    while (!deadline.expired() && answer.load() == MEP_SUCCESS) {
      answer.store(
          post_put(*pair->a().transport, pair->slot_b(), kData, 0, bytes.data(), bytes.size()));
      started.store(true);
    }
    text = last_error_text();
  });
  assert_true(wait_for([&] { return started.load(); }));
  run("ip link set veth1 down");
  sender.join();
  bring_link_up();
  assert_int_equal(answer.load(), MEP_ERR_PEER_FAILED);
  expect_failure(pair->a(), pair->slot_b(), "transport retry counter exceeded");
}

// The peer's process has ended, and packets would be repeated for two minutes.
void given_up_in_a_flush(void**) {
  setenv("MEP_IB_TIMEOUT", "22", 1);  // NOLINT(concurrency-mt-unsafe): one thread
  const auto pair = make_pair("rxe0:1", "rxe1:1");
  unsetenv("MEP_IB_TIMEOUT");  // NOLINT(concurrency-mt-unsafe)
  pair->b().transport.reset();
  std::atomic<bool> posted{false};
  std::atomic<mep_result_t> answer{MEP_SUCCESS};
  std::thread sender([&] {
    std::vector<std::byte> bytes(20000, std::byte{7});
    answer = post_put(*pair->a().transport, pair->slot_b(), kData, 0, bytes.data(), bytes.size());
    posted.store(true);
    if (answer == MEP_SUCCESS) answer = arrive(*pair->a().transport, pair->slot_b());
  });
  assert_true(wait_for([&] { return posted.load(); }));
  assert_int_equal(answer.load(), MEP_SUCCESS);
  const Deadline limit = Deadline::after_ms(kLimitMs);
  pair->a().transport->give_up(pair->slot_b());
  sender.join();
  assert_false(limit.expired());
  assert_int_equal(answer.load(), MEP_ERR_PEER_FAILED);
  PeerFailure failure;
  assert_false(pair->a().transport->take_failure(&failure));  // whoever gives it up knows
}

// A zombie: the peer was fenced out and does not know it.
void fenced_peer_goes_on(void**) {
  const auto pair = make_pair("rxe0:1", "rxe1:1");
  assert_int_equal(post_signal(*pair->a().transport, pair->slot_b(), kData, 0, 1, false),
                   MEP_SUCCESS);
  assert_true(wait_for([&] { return pair->b().word(0).load() == 1; }));
  assert_int_equal(pair->b().transport->fence_out(pair->slot_a()), MEP_SUCCESS);
  // The first writes are accepted there; none lands.
  assert_int_equal(put_until_refused(pair->a(), pair->slot_b()), MEP_ERR_PEER_FAILED);
  for (size_t i = 8; i < kDataBytes; ++i) assert_true(pair->b().data->data()[i] == std::byte{0});
  assert_true(pair->b().transport->traits().renews_windows);
  // The old key of a renewed window leads to pages that nobody reads, even over a connection that works.
  const auto other = make_pair("rxe0:1", "rxe1:1");
  assert_int_equal(other->b().data->renew(), MEP_SUCCESS);
  assert_int_equal(post_signal(*other->a().transport, other->slot_b(), kData, 0, 9, false),
                   MEP_SUCCESS);
  assert_int_equal(arrive(*other->a().transport, other->slot_b()), MEP_SUCCESS);
  assert_true(other->b().word(0).load() == 0);
  give_window(other->b(), other->a(), other->b().data);
  assert_int_equal(post_signal(*other->a().transport, other->slot_b(), kData, 0, 9, false),
                   MEP_SUCCESS);
  assert_true(wait_for([&] { return other->b().word(0).load() == 9; }));
}

void marks_come_behind_puts(void**) {
  const auto pair = make_pair("rxe0:1,rxe1:1", "rxe0:1,rxe1:1");
  std::vector<std::byte> bytes(kDataBytes - 4096);
  uint64_t number = 0x7ffffffa;  // across the end of what travels of it
  for (uint8_t round = 1; round <= 12; ++round, ++number) {
    std::memset(bytes.data(), round, bytes.size());
    assert_int_equal(
        post_put(*pair->a().transport, pair->slot_b(), kData, 0, bytes.data(), bytes.size()),
        MEP_SUCCESS);
    assert_true(wait_for([&] {
      (void)pair->a().transport->quiesced(pair->slot_b(), number);
      (void)pair->b().transport->progress(false);
      return pair->b().transport->quiesced(pair->slot_a(), number);
    }));
    assert_true(wait_for([&] {
      (void)pair->a().transport->progress(false);
      return pair->a().transport->quiesced(pair->slot_b(), number);
    }));
    for (const size_t i : {size_t{0}, bytes.size() / 3, bytes.size() / 2, bytes.size() - 1}) {
      assert_true(pair->b().data->data()[i] == std::byte{round});
    }
  }
}

// Until that is true of `end`, which makes progress meanwhile.
bool progress_until(End& end, const std::function<bool()>& condition) {
  return wait_for([&] {
    (void)end.transport->progress(false);
    return condition();
  });
}

// A target that computes for long: more wakes than it has receive requests, and nobody calls progress.
// They are taken from the sender all the same, and all there when the target calls.
void wakes_of_a_busy_target(void**) {
  constexpr uint64_t kWakes = 5 * verbs::Hca::kReceives;
  const auto pair = make_pair("rxe0:1", "rxe1:1");
  std::atomic<bool> sent{false};
  std::thread sender([&] {
    for (uint64_t word = 1; word <= kWakes; ++word) {
      assert_int_equal(post_signal(*pair->a().transport, pair->slot_b(), kData, 64, word, true),
                       MEP_SUCCESS);
    }
    assert_int_equal(arrive(*pair->a().transport, pair->slot_b()), MEP_SUCCESS);
    sent.store(true);
  });
  const bool taken = wait_for([&] {
    pair->b().transport->serve();
    return sent.load();
  });
  sender.join();
  assert_true(taken);
  assert_true(progress_until(pair->b(), [&] { return pair->b().word(64).load() == kWakes; }));
}

// Its signals have come before its end was noticed; nobody has taken them yet.
// (A soft device keeps completions of a queue pair that is destroyed, mlx5 drops them: that they are taken
// before is not proven here.)
void signals_of_a_gone_peer(void**) {
  const auto pair = make_pair("rxe0:1", "rxe1:1");
  const std::vector<std::byte> bytes(300, std::byte{7});
  for (uint64_t word = 1; word <= 9; ++word) {  // the first whole, the others with their puts
    assert_int_equal(
        post_put(*pair->a().transport, pair->slot_b(), kData, 4096, bytes.data(), bytes.size()),
        MEP_SUCCESS);
    assert_int_equal(post_signal(*pair->a().transport, pair->slot_b(), kData, 64, word, true),
                     MEP_SUCCESS);
  }
  assert_int_equal(arrive(*pair->a().transport, pair->slot_b()), MEP_SUCCESS);
  pair->b().transport->give_up(pair->slot_a());
  assert_true(progress_until(pair->b(), [&] { return pair->b().word(64).load() == 9; }));
  assert_true(pair->b().data->data()[4096 + 299] == std::byte{7});
}

// Signals that a peer posted before it was fenced out, and that nobody has taken, are not written after.
void signals_of_a_fenced_peer(void**) {
  const auto pair = make_pair("rxe0:1", "rxe1:1");
  const auto signal = [&](uint64_t offset, uint64_t word) {
    assert_int_equal(post_signal(*pair->a().transport, pair->slot_b(), kData, offset, word, true),
                     MEP_SUCCESS);
    assert_int_equal(arrive(*pair->a().transport, pair->slot_b()), MEP_SUCCESS);
  };
  signal(64, 1);
  assert_true(progress_until(pair->b(), [&] { return pair->b().word(64).load() == 1; }));
  signal(64, 2);   // by a code
  signal(128, 3);  // whole
  assert_int_equal(pair->b().transport->fence_out(pair->slot_a()), MEP_SUCCESS);
  for (int round = 0; round < 1000; ++round) {
    (void)pair->b().transport->progress(false);
  }
  assert_true(pair->b().word(64).load() == 1);
  assert_true(pair->b().word(128).load() == 0);
}

// Every chunk of the pool is on its way, to several peers' worth of puts.
void copies_wait_for_room(void**) {
  const auto pair = make_pair("rxe0:1,rxe1:1", "rxe0:1,rxe1:1");
  std::vector<std::byte> bytes(kDataBytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i * 7 + i / 251);
  for (int round = 0; round < 12; ++round) {  // 12 MiB through 8
    assert_int_equal(
        post_put(*pair->a().transport, pair->slot_b(), kData, 0, bytes.data(), bytes.size()),
        MEP_SUCCESS);
  }
  assert_int_equal(arrive(*pair->a().transport, pair->slot_b()), MEP_SUCCESS);
  assert_memory_equal(pair->b().data->data(), bytes.data(), bytes.size());
}

// The network interface under both devices is deleted, and the devices with it. The kernel takes a soft
// device away only when its last user has closed it; what shows before is that it can do nothing any more.
void device_goes_away(void**) {
  const auto pair = make_pair("rxe0:1", "rxe1:1");
  assert_int_equal(post_signal(*pair->a().transport, pair->slot_b(), kData, 0, 1, false),
                   MEP_SUCCESS);
  assert_true(wait_for([&] { return pair->b().word(0).load() == 1; }));
  std::thread remover([] {
    // NOLINTNEXTLINE(cert-env33-c,concurrency-mt-unsafe): the guest is the test's own
    (void)!std::system("timeout 60 ip link delete veth1");
  });
  const mep_result_t answer_a = put_until_refused(pair->a(), pair->slot_b());
  const mep_result_t answer_b = put_until_refused(pair->b(), pair->slot_a());
  if (answer_a == MEP_ERR_PEER_FAILED) expect_failure(pair->a(), pair->slot_b(), "HCA rxe0:1");
  if (answer_b == MEP_ERR_PEER_FAILED) expect_failure(pair->b(), pair->slot_a(), "HCA rxe1:1");
  pair->a().transport.reset();
  pair->b().transport.reset();
  remover.join();
  assert_int_equal(answer_a, MEP_ERR_PEER_FAILED);
  assert_int_equal(answer_b, MEP_ERR_PEER_FAILED);
  assert_true(verbs::active_ports().empty());
  // A transport that starts now is told so.
  VerbsTransport late({});
  std::vector<std::byte> offer;
  assert_int_equal(late.open(&offer), MEP_ERR_UNSUPPORTED);
  std::printf("  open: %s\n", last_error_text());
}

}  // namespace
}  // namespace mep::test

int main(int argc, char** argv) {
  using namespace mep::test;
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  const CMUnitTest tests[] = {
      cmocka_unit_test(bad_key),
      cmocka_unit_test(found_without_a_call),
      cmocka_unit_test(queue_pair_error),
      cmocka_unit_test(given_up_in_a_flush),
      cmocka_unit_test(fenced_peer_goes_on),
      cmocka_unit_test(marks_come_behind_puts),
      cmocka_unit_test(wakes_of_a_busy_target),
      cmocka_unit_test(signals_of_a_gone_peer),
      cmocka_unit_test(signals_of_a_fenced_peer),
      cmocka_unit_test(copies_wait_for_room),
      cmocka_unit_test(link_down_in_a_transfer),
      cmocka_unit_test(device_goes_away),  // the last: the device does not come back
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
