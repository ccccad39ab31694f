// labels: gate threads tsan
// A queue that is full, of a transport whose bytes are under way for a while: over loopback TCP.
#include "support/transport_conformance.hpp"
#include "transport/tcp/sealing.hpp"
#include "transport/tcp/tcp_transport.hpp"

namespace {

using namespace mep::test;  // NOLINT(google-build-using-namespace)
using mep::PeerFailure;
using mep::PeerIdentity;
using mep::Window;
using mep::tcp::TcpTransport;

const PeerIdentity kTo{3, 103, 7, 1, 0};
const PeerIdentity kFrom{9, 109, 7, 3, 0};

mep::PeerSession session() {
  mep::PeerSession session;
  session.key.fill(std::byte{1});
  return session;
}

bool eventually(const std::function<bool()>& condition) {
  const mep::Deadline deadline = mep::Deadline::after_ms(kLimitMs);
  while (!condition()) {
    if (deadline.expired()) return false;
    sched_yield();
  }
  return true;
}

// A rank whose progress the test makes.
struct Quiet {
  explicit Quiet(const PeerIdentity& identity) : self(identity), transport({}) {
    std::vector<std::byte> offer;
    assert_int_equal(transport.open(&offer), MEP_SUCCESS);
    assert_int_equal(Window::create(kDataWindow, kBytes, &data), MEP_SUCCESS);
  }
  void add(const Quiet& peer) {
    assert_int_equal(transport.add_peer(self, peer.self, {}, session()), MEP_SUCCESS);
  }
  void give_window(Quiet& peer) {
    mep::WindowExport exported;
    assert_int_equal(transport.export_window(peer.self.slot, data, &exported), MEP_SUCCESS);
    assert_int_equal(
        peer.transport.import_window(self.slot, kDataWindow, kBytes, exported.blob, {}),
        MEP_SUCCESS);
  }
  void move() {
    (void)transport.progress(false);
    transport.serve();
  }
  static constexpr size_t kBytes = size_t{32} << 20;
  const PeerIdentity self;
  TcpTransport transport;
  std::shared_ptr<Window> data;
};

// A peer takes nothing: the queue says that it is full, and counts what it still reads. It goes on where it
// stopped when the peer takes again, or ends when the peer is given up.
void a_full_queue_says_so(void**) {
  for (const bool gives_up : {false, true}) {
    Quiet from(kFrom);
    Quiet to(kTo);
    from.add(to);
    to.add(from);
    from.give_window(to);
    to.give_window(from);
    assert_true(eventually([&] {
      from.move();
      to.move();
      return from.transport.status(kTo.slot).is_connected;
    }));
    std::vector<std::byte> bytes(Quiet::kBytes - 8);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern(7, i);
    const mep::Posting postings[] = {mep::Posting::put(kDataWindow, 8, bytes.data(), bytes.size()),
                                     mep::Posting::signal(kDataWindow, 0, 5, false)};
    mep::Batch batch{};
    mep_result_t result = MEP_SUCCESS;
    uint64_t whole = 0;
    for (; result == MEP_SUCCESS && whole < 1000; ++whole) {
      batch = {{postings, 2}};
      result = from.transport.post(kTo.slot, &batch);
    }
    assert_int_equal(result, mep::kWouldBlock);
    assert_true(batch.next < 2);
    mep::Completion completion;
    assert_int_equal(from.transport.completion(kTo.slot, false, &completion), MEP_SUCCESS);
    assert_true(completion.posted == 2 * (whole - 1) + batch.next);
    assert_true(completion.completed < completion.posted);
    if (gives_up) {
      from.transport.give_up(kTo.slot);
      assert_int_equal(from.transport.post(kTo.slot, &batch), MEP_ERR_PEER_FAILED);
      assert_int_equal(from.transport.completion(kTo.slot, false, &completion), MEP_SUCCESS);
      assert_true(completion.completed == completion.posted);
      PeerFailure failure;
      assert_false(from.transport.take_failure(&failure));  // whoever gives it up knows
      continue;
    }
    assert_true(eventually([&] {
      to.move();
      from.move();
      result = from.transport.post(kTo.slot, &batch);
      return result != mep::kWouldBlock;
    }));
    assert_int_equal(result, MEP_SUCCESS);
    assert_true(eventually([&] {
      to.move();
      from.move();
      return from.transport.completion(kTo.slot, false, &completion) == MEP_SUCCESS &&
             completion.completed == completion.posted;
    }));
    assert_true(completion.posted == 2 * whole);
    auto* word = reinterpret_cast<std::atomic<uint64_t>*>(to.data->data());
    assert_true(eventually([&] {
      to.move();
      return word->load(std::memory_order_acquire) == 5;
    }));
    assert_memory_equal(to.data->data() + 8, bytes.data(), bytes.size());
  }
}

}  // namespace

int main() {
  assert_int_equal(mep::tcp::prepare_sodium(), MEP_SUCCESS);
  const CMUnitTest tests[] = {cmocka_unit_test(a_full_queue_says_so)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
