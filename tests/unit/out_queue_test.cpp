// Bytes leave the queue in their order, whether they are copied, lie outside or were copied later.
// labels: quick
#include <algorithm>
#include <random>
#include <vector>

#include "support/cmocka_cpp.hpp"
#include "transport/tcp/out_queue.hpp"

namespace {

using mep::tcp::OutQueue;
using Bytes = std::vector<std::byte>;

// A header and what belongs to it, as a put queues them.
void queue_put(OutQueue* queue, const Bytes& header, const Bytes& data, int parts) {
  for (int i = 0; i < parts; ++i) {
    std::byte* place = queue->extend(header.size());
    std::copy(header.begin(), header.end(), place);
    if (!data.empty())
      queue->append_external(data.data(), data.size(), static_cast<uint64_t>(i) + 1);
  }
}

void drain(OutQueue* queue, size_t bytes, Bytes* out) {
  const size_t begin = out->size();
  out->resize(begin + bytes);
  out->resize(begin + queue->copy_front(out->data() + begin, bytes));
  queue->consume(out->size() - begin);
}

void what_is_queued_comes_out_in_order(void**) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    OutQueue queue;
    Bytes expected;
    Bytes sent;
    for (int i = 0; i < 60; ++i) {
      const auto value = static_cast<unsigned char>(i);
      const Bytes header(random() % OutQueue::kMaxCopyBytes + 1, std::byte{value});
      Bytes body(random() % 2 == 0 ? 5000 : 0, std::byte{static_cast<unsigned char>(~value)});
      const int parts = static_cast<int>(random() % 4) + 1;
      queue_put(&queue, header, body, parts);
      for (int part = 0; part < parts; ++part) {
        expected.insert(expected.end(), header.begin(), header.end());
        expected.insert(expected.end(), body.begin(), body.end());
      }
      queue.own_all();
      assert_int_equal(queue.first_external(), 0);
      std::fill(body.begin(), body.end(), std::byte{0});  // the caller's again
      if (random() % 3 == 0) drain(&queue, random() % (queue.bytes() + 1), &sent);
    }
    drain(&queue, queue.bytes(), &sent);
    assert_true(queue.empty());
    assert_true(sent == expected);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(what_is_queued_comes_out_in_order)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
