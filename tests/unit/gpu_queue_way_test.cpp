// labels: quick threads asan
// A queue of the software NIC over a transport that is always full: each posting takes several calls with the same batch, and
// progress between them.
#include <new>
#include <vector>

#include "support/cmocka_cpp.hpp"
#include "transport/gpu_queue/served_queue.hpp"
#include "transport/gpu_queue/transport_executor.hpp"

namespace {

using namespace mep::gpu_queue;  // NOLINT(google-build-using-namespace)

// It takes a posting at its third call, if there was progress before each, and notes it.
class SlowTransport final : public mep::Transport {
 public:
  SlowTransport() : Transport({}) {}

  mep_result_t post(uint32_t slot, mep::Batch* batch) override {
    is_good = is_good && slot == 8 && batch->next == 0 && batch->postings.size() == 1 &&
              batch->resume == calls_;
    if (is_out_of_memory) throw std::bad_alloc();
    if (!has_room_) return mep::kWouldBlock;
    has_room_ = false;
    batch->resume = ++calls_;
    if (calls_ < 3) return mep::kWouldBlock;
    calls_ = 0;
    ++batch->next;
    postings.push_back(batch->postings[0]);
    return MEP_SUCCESS;
  }
  mep_result_t completion(uint32_t, bool, mep::Completion* out) override {
    *out = {postings.size(), postings.size()};
    return MEP_SUCCESS;
  }
  bool progress(bool) override {
    has_room_ = true;
    return true;
  }
  mep_result_t export_window(uint32_t, const std::shared_ptr<mep::Window>&,
                             mep::WindowExport*) override {
    return MEP_ERR_UNSUPPORTED;
  }
  mep_result_t import_window(uint32_t, uint64_t, size_t, std::span<const std::byte>,
                             mep::UniqueFd) override {
    return MEP_ERR_UNSUPPORTED;
  }
  void drop_window(uint32_t, uint64_t) override {}
  mep_result_t fence_out(uint32_t) override { return MEP_SUCCESS; }
  mep_result_t open(std::vector<std::byte>*) override { return MEP_SUCCESS; }
  mep_result_t add_peer(const mep::PeerIdentity&, const mep::PeerIdentity&,
                        std::span<const std::byte>, const mep::PeerSession&) override {
    return MEP_SUCCESS;
  }
  void remove_peer(uint32_t) override {}
  mep::PeerStatus status(uint32_t) const override { return {}; }

  std::vector<mep::Posting> postings;
  bool is_good = true;
  bool is_out_of_memory = false;

 private:
  bool has_room_ = true;
  uint64_t calls_ = 0;
};

// A queue with two requests: a write of 60 bytes and a word.
struct Served {
  Served() {
    QueueWiring wiring;
    wiring.ring = ring;
    wiring.entries = 4;
    wiring.completions = &completion;
    wiring.record = &record;
    wiring.doorbell = &doorbell;
    wiring.queue_pair = 1;
    wiring.local = {{1, 0x1000, 64, memory, true}};
    wiring.remote = {{2, 0x2000, 4096, 17, true, true}};
    assert_int_equal(
        ServedQueue::create(wiring, {}, std::make_unique<TransportExecutor>(&transport, 8, true),
                            &queue),
        MEP_SUCCESS);
    ring[0] = write({0x2005, 2}, {reinterpret_cast<const void*>(0x1003), 1}, 60);
    ring[1] = write_word({0x2100, 2}, 0x1122334455667788);
    ring[0].words[1] |= 0x00010000;
    ring[1].words[0] |= 0x00010000;
    ring[1].words[1] |= 0x00010000;
    record.send.raw = 0x02000000;
    doorbell = 0x0001000000020000;
  }
  void run() {
    uint32_t turns = 0;
    while (queue->take_turn() != ServedQueue::Turn::kIdle) assert_true(++turns < 1000);
  }

  SlowTransport transport;
  Request ring[4] = {};
  CompletionEntry completion;
  DoorbellRecord record{};
  uint64_t doorbell = 0;
  std::byte memory[64] = {};
  std::unique_ptr<ServedQueue> queue;
};

void a_full_transport_goes_on_with_its_batch(void**) {
  Served served;
  served.run();
  const SlowTransport& transport = served.transport;
  assert_true(transport.is_good);
  assert_int_equal(transport.postings.size(), 2);
  const mep::Posting& put = transport.postings[0];
  assert_true(!put.is_signal && put.window == 17 && put.offset == 5 && put.bytes == 60);
  assert_ptr_equal(put.local, served.memory + 3);
  const mep::Posting& word = transport.postings[1];
  assert_true(word.is_signal && word.wake && word.window == 17 && word.offset == 0x100);
  assert_int_equal(word.word, 0x1122334455667788);
}

// The peer is lost for the queue, and the NIC's thread goes on.
void without_memory_the_queue_ends(void**) {
  Served served;
  served.transport.is_out_of_memory = true;
  served.run();
  served.transport.is_out_of_memory = false;
  served.run();
  assert_true(served.transport.postings.empty());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(a_full_transport_goes_on_with_its_batch),
                              cmocka_unit_test(without_memory_the_queue_ends)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
