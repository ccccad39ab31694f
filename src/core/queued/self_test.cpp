#include "core/queued/self_test.hpp"

#include <sched.h>

#include <cstring>

#include "base/status.hpp"
#include "core/world/remote.hpp"
#include "transport/gpu_queue/peer.hpp"
#include "transport/gpu_queue/request_check.hpp"

namespace mep {
namespace {

using gpu_queue::Patience;
using gpu_queue::QueueError;
using gpu_queue::QueuePeer;
using gpu_queue::Status;

constexpr uint64_t kWindowId = 0x7465737465640000u;
constexpr size_t kPageBytes = 4096;
constexpr uint32_t kEntries = 4;  // each request completes
constexpr size_t kWords = 64;     // of a pattern, behind which its signal lies
constexpr size_t kCellBytes = (kWords + 1) * sizeof(uint64_t);

uint64_t word_of(uint32_t from, uint32_t to, size_t place) {
  return uint64_t{from + 1} << 40 | uint64_t{to + 1} << 16 | place;
}

}  // namespace

template <typename Call>
mep_result_t SelfTest::to_each(const Call& call) {
  for (const uint32_t rank : view_->live) {
    if (pairs_.has_pair(rank)) MEP_TRY(call(rank));
  }
  return MEP_SUCCESS;
}

mep_result_t SelfTest::make(uint32_t number) {
  const uint32_t ranks = comm_.size();
  const size_t ring_bytes = pairs_.ring_bytes(ranks, kEntries);
  rings_.resize(ring_bytes + kPageBytes);
  ready_.resize(size_t{ranks} * kEntries);
  for (uint32_t to = 0; to < ranks; ++to) {
    for (size_t i = 0; i < kWords; ++i) source_.push_back(word_of(comm_.rank(), to, i));
  }
  void* page = rings_.data();
  size_t room = rings_.size();
  QueuePairs::Memory memory;
  memory.rings = static_cast<std::byte*>(std::align(kPageBytes, ring_bytes, page, room));
  memory.entries = kEntries;
  memory.ready = ready_.data();
  MEP_TRY(pairs_.use_source({source_.data(), source_.size() * sizeof(uint64_t)}));
  return pairs_.offer(comm_.id() ^ kWindowId ^ number, ranks * kCellBytes, memory);
}

// First a request alone: those behind one that fails may overwrite its error.
mep_result_t SelfTest::exchange(const Deadline& deadline) {
  const Comm::WaitingScope waiting(comm_);
  const Patience patience{deadline.at_ns(), nullptr, 0};
  queues_.assign(pairs_.queues().begin(), pairs_.queues().end());
  const size_t cell = comm_.rank() * kCellBytes;
  for (const bool is_last : {false, true}) {
    const size_t begin = is_last ? kWords / 2 : 0;
    MEP_TRY(to_each([&](uint32_t to) {
      QueuePeer<> peer(&queues_[to], patience);
      Status status =
          peer.put(peer.in_window(cell + begin * sizeof(uint64_t)),
                   peer.in_source(&source_[to * kWords + begin]), kWords / 2 * sizeof(uint64_t));
      if (is_last && status == Status::kOk) {
        status = peer.signal(peer.in_window(cell + kWords * sizeof(uint64_t)),
                             word_of(comm_.rank(), to, kWords));
      }
      return check(status, to, &queues_[to]);
    }));
    MEP_TRY(to_each([&](uint32_t to) {
      return check(QueuePeer<>(&queues_[to], patience).flush(), to, &queues_[to]);
    }));
  }
  return to_each([&](uint32_t from) { return await(from, deadline); });
}

mep_result_t SelfTest::check(Status status, uint32_t to, gpu_queue::Queue* queue) const {
  if (status == Status::kOk) return MEP_SUCCESS;
  QueueError error{};
  if (QueuePeer<>(queue, {}).error(&error)) {
    return fail(MEP_ERR_DEVICE, "HCA %s: a put to rank %u had %s", hca_.c_str(), to,
                text_of(error).c_str());
  }
  return fail(MEP_ERR_TIMEOUT,
              "HCA %s: %llu of %llu requests of a put to rank %u completed in time", hca_.c_str(),
              static_cast<unsigned long long>(queue->done),
              static_cast<unsigned long long>(queue->reserved), to);
}

mep_result_t SelfTest::await(uint32_t from, const Deadline& deadline) const {
  const std::byte* const window = pairs_.window().data();
  const size_t cell = from * kCellBytes;
  while (load_signal(window, cell + kWords * sizeof(uint64_t)) !=
         word_of(from, comm_.rank(), kWords)) {
    if (deadline.expired()) {
      return fail(MEP_ERR_TIMEOUT, "HCA %s: a put of rank %u did not arrive in time", hca_.c_str(),
                  from);
    }
    (void)sched_yield();
  }
  for (size_t i = 0; i < kWords; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, window + cell + i * sizeof word, sizeof word);
    if (word == word_of(from, comm_.rank(), i)) continue;
    return fail(MEP_ERR_DEVICE, "HCA %s: a put of rank %u arrived with other bytes", hca_.c_str(),
                from);
  }
  return MEP_SUCCESS;
}

}  // namespace mep
