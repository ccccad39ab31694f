// labels: quick
// A thread that waits sends what is left of a full socket; the control thread does once none waits.
#include <poll.h>
#include <sched.h>

#include <functional>

#include "base/clock.hpp"
#include "support/transport_conformance.hpp"
#include "transport/tcp/tcp_transport.hpp"

namespace {

using mep::Batch;
using mep::Completion;
using mep::Deadline;
using mep::PeerIdentity;
using mep::Posting;
using mep::Window;
using mep::WindowExport;
using mep::test::kLimitMs;

constexpr size_t kPutBytes = 8192;  // too much to be copied
constexpr uint32_t kPuts = 8192;    // more than both sockets hold
constexpr PeerIdentity kSender{9, 109, 7, 1, 0};
constexpr PeerIdentity kReceiver{3, 103, 7, 2, 0};

// A transport without a thread: it does what the test calls.
struct Side {
  explicit Side(const PeerIdentity& identity) : self(identity) {
    std::vector<std::byte> offer;
    assert_int_equal(transport.open(&offer), MEP_SUCCESS);
    assert_int_equal(Window::create(mep::kWorldWindowId, kPutBytes * 2, &window), MEP_SUCCESS);
  }
  std::vector<std::byte> meet(const PeerIdentity& peer) {
    assert_int_equal(transport.add_peer(self, peer, {}, {}), MEP_SUCCESS);
    WindowExport exported;
    assert_int_equal(transport.export_window(peer.slot, window, &exported), MEP_SUCCESS);
    return exported.blob;
  }
  void import(const PeerIdentity& peer, const std::vector<std::byte>& blob) {
    assert_int_equal(
        transport.import_window(peer.slot, mep::kWorldWindowId, kPutBytes * 2, blob, {}),
        MEP_SUCCESS);
  }
  uint64_t completed() {
    Completion completion;
    assert_int_equal(transport.completion(kReceiver.slot, false, &completion), MEP_SUCCESS);
    return completion.completed;
  }

  const PeerIdentity self;
  mep::tcp::TcpTransport transport{mep::TransportOptions{}};
  std::shared_ptr<Window> window;
};

void repeat_until(const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::after_ms(kLimitMs);
  while (!condition()) {
    assert_false(deadline.expired());
    sched_yield();
  }
}

void a_waiting_thread_sends_what_is_left_and_hands_it_over(void** /*state*/) {
  Side sender(kSender);
  Side receiver(kReceiver);
  std::atomic<uint32_t> waits{1};
  sender.transport.count_waits(&waits);
  const std::vector<std::byte> of_receiver = receiver.meet(kSender);
  const std::vector<std::byte> of_sender = sender.meet(kReceiver);
  sender.import(kReceiver, of_receiver);
  receiver.import(kSender, of_sender);
  repeat_until([&] {
    sender.transport.serve();
    receiver.transport.serve();
    return sender.transport.status(kReceiver.slot).is_connected &&
           receiver.transport.status(kSender.slot).is_connected;
  });

  const std::vector<std::byte> bytes(kPutBytes, std::byte{1});
  const Posting put = Posting::put(mep::kWorldWindowId, kPutBytes, bytes.data(), kPutBytes);
  for (uint32_t i = 0; i < kPuts; ++i) {
    Batch batch{{&put, 1}};
    assert_int_equal(sender.transport.post(kReceiver.slot, &batch), MEP_SUCCESS);
  }
  const uint64_t at_first = sender.completed();
  assert_true(at_first < kPuts);

  // A thread that sleeps in its wait sees the room.
  repeat_until([&] {
    (void)receiver.transport.progress(false);
    pollfd data{sender.transport.events().data, POLLIN, 0};
    return poll(&data, 1, 0) == 1;
  });
  sender.transport.serve();
  assert_int_equal(sender.completed(), at_first);

  waits.store(0);
  sender.transport.hand_over();
  repeat_until([&] {
    (void)receiver.transport.progress(false);
    sender.transport.serve();
    return sender.completed() == kPuts;
  });
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_waiting_thread_sends_what_is_left_and_hands_it_over),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
