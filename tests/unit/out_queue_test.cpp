// Memory runs out in the middle of a put while data waits to be sent: the stream is whole all the same.
// labels: quick
#include <cstdlib>
#include <new>
#include <random>
#include <vector>

#include "support/cmocka_cpp.hpp"
#include "transport/tcp/out_queue.hpp"

namespace {

// Requests for memory that are granted; negative: all.
thread_local int granted = -1;

bool is_refused() {
  if (granted < 0) return false;
  if (granted > 0) {
    --granted;
    return false;
  }
  return true;
}

// Not inlined: GCC 14 would see free() and warn that it is no partner of operator new.
[[gnu::noinline]] void* allocate(std::size_t bytes) {
  if (is_refused()) throw std::bad_alloc();
  void* memory = std::malloc(bytes != 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void release(void* memory) noexcept {
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate(bytes);
}
void* operator new[](std::size_t bytes) {
  return allocate(bytes);
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete[](void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  release(memory);
}

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

void a_put_is_queued_whole_or_not_at_all(void**) {
  std::mt19937_64 random(7);
  const Bytes data(5000, std::byte{0xee});
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    OutQueue queue;
    Bytes expected;
    Bytes sent;
    for (int i = 0; i < 60; ++i) {
      const Bytes header(random() % OutQueue::kMaxCopyBytes + 1,
                         std::byte{static_cast<unsigned char>(i)});
      const Bytes none;
      const Bytes& body = random() % 2 == 0 ? data : none;
      const int parts = static_cast<int>(random() % 4) + 1;
      const OutQueue::Mark mark = queue.mark();
      granted = random() % 2 == 0 ? static_cast<int>(random() % 4) : -1;
      bool is_queued = true;
      try {
        queue_put(&queue, header, body, parts);
      } catch (const std::bad_alloc&) {
        is_queued = false;
      }
      granted = -1;
      if (!is_queued) {
        ++refused;
        queue.undo(mark);
      }
      for (int part = 0; is_queued && part < parts; ++part) {
        expected.insert(expected.end(), header.begin(), header.end());
        expected.insert(expected.end(), body.begin(), body.end());
      }
      if (random() % 3 == 0) drain(&queue, random() % (queue.bytes() + 1), &sent);
    }
    drain(&queue, queue.bytes(), &sent);
    assert_true(queue.empty());
    assert_true(sent == expected);
  }
  assert_true(refused > 100);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(a_put_is_queued_whole_or_not_at_all)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
