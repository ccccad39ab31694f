#include "core/queued/queue_pairs.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/guarded.hpp"
#include "transport/gpu_queue/memory_executor.hpp"
#include "transport/gpu_queue/transport_executor.hpp"

namespace mep {
namespace {

using gpu_queue::Executor;
using gpu_queue::Request;

// A queue shares these with the NIC beside its ring, each on a line of its own.
struct Words {
  gpu_queue::CompletionEntry completion;
  alignas(64) gpu_queue::DoorbellRecord record;
  alignas(64) uint64_t doorbell;
};

constexpr size_t bytes_of_queue(uint32_t entries) {
  return sizeof(Words) + entries * sizeof(Request);
}

}  // namespace

QueuePairs::~QueuePairs() {
  finish();
  end();
  windows_.flush_puts();
}

size_t QueuePairs::ring_bytes(uint32_t ranks, uint32_t entries) {
  return ranks * bytes_of_queue(entries);
}

mep_result_t QueuePairs::offer(uint64_t id, size_t bytes) {
  MEP_TRY(windows_.create(id, bytes));
  return comm_.world().windows().offer(windows_.own(), comm_.slots());
}

mep_result_t QueuePairs::connect(const CommView& view, const Memory& memory,
                                 const Deadline& deadline) {
  MEP_TRY(windows_.receive(view.incarnations, deadline));
  memory_ = memory;
  queues_.resize(comm_.size());
  reached_.resize(comm_.size());
  served_.resize(comm_.size());
  for (const uint32_t rank : view.live) {
    if (windows_.has(rank)) MEP_TRY(add_queue(rank, view));
  }
  return MEP_SUCCESS;
}

bool QueuePairs::reaches(const CommView& view) const {
  return std::all_of(view.live.begin(), view.live.end(),
                     [&](uint32_t rank) { return reaches(view, rank); });
}

mep_result_t QueuePairs::reach(const CommView& view, const Deadline& deadline,
                               std::vector<uint32_t>* added) {
  MEP_TRY(windows_.reach_joiners(view, deadline, "queues of GPUs"));
  for (const uint32_t rank : view.live) {
    if (reaches(view, rank) || !windows_.reaches(rank, view.incarnations[rank])) continue;
    MEP_TRY(add_queue(rank, view));
    added->push_back(rank);
  }
  return MEP_SUCCESS;
}

mep_result_t QueuePairs::add_queue(uint32_t rank, const CommView& view) {
  {
    const std::lock_guard lock(mutex_);
    if (served_[rank] != 0) remove(rank);  // keep() has not been called for the view yet
  }
  std::byte* own = memory_.rings + rank * bytes_of_queue(memory_.entries);
  std::memset(own, 0, bytes_of_queue(memory_.entries));
  auto* words = reinterpret_cast<Words*>(own);
  gpu_queue::Queue& queue = queues_[rank];
  queue.ring = reinterpret_cast<Request*>(own + sizeof(Words));
  queue.record = &words->record;
  queue.doorbell = &words->doorbell;
  queue.ready = memory_.ready + size_t{rank} * memory_.entries;
  queue.queue_pair = nic_->new_queue_pair();
  queue.entries = memory_.entries;
  make_empty(&queue, &words->completion, 0);

  gpu_queue::QueueWiring wiring;
  wiring.ring = queue.ring;
  wiring.entries = queue.entries;
  wiring.completions = &words->completion;
  wiring.record = queue.record;
  wiring.doorbell = queue.doorbell;
  wiring.queue_pair = queue.queue_pair;
  wiring.local = {{kSourceKey, std::bit_cast<uint64_t>(memory_.source), memory_.source_bytes,
                   memory_.source, true}};
  const Remote& remote = windows_[rank];
  const bool is_mapped = remote.mapped != nullptr;
  const uint64_t place = is_mapped ? std::bit_cast<uint64_t>(remote.mapped) : remote.window;
  wiring.remote = {{kWindowKey, 0, windows_.own()->bytes(), place}};
  MEP_TRY(guarded([&] { return serve(wiring, rank, view); }));
  reached_[rank] = view.incarnations[rank];
  return MEP_SUCCESS;
}

mep_result_t QueuePairs::serve(const gpu_queue::QueueWiring& wiring, uint32_t rank,
                               const CommView& view) {
  const Remote& remote = windows_[rank];
  std::unique_ptr<Executor> executor;
  if (remote.mapped != nullptr) {
    executor = std::make_unique<gpu_queue::MemoryExecutor>();
  } else {
    // Kernels poll their words: there is nobody to be woken.
    executor = std::make_unique<gpu_queue::TransportExecutor>(remote.transport, remote.slot, false);
    MEP_TRY(nic_->keep_moving(remote.transport));
  }
  const std::lock_guard lock(mutex_);
  const bool has_left = kept_epoch_ > view.epoch && members_[rank] != view.incarnations[rank];
  if (has_ended_ || has_left) return MEP_SUCCESS;
  MEP_TRY(nic_->add_queue(wiring, std::move(executor)));
  served_[rank] = view.incarnations[rank];
  return MEP_SUCCESS;
}

void QueuePairs::finish() const {
  for (const gpu_queue::Queue& queue : queues_) {
    if (queue.queue_pair != 0) nic_->finish_queue(queue.queue_pair);
  }
}

void QueuePairs::keep(const CommView& view) {
  const std::lock_guard lock(mutex_);
  members_ = view.incarnations;
  kept_epoch_ = view.epoch;
  for (uint32_t rank = 0; rank < served_.size(); ++rank) {
    if (served_[rank] != 0 && served_[rank] != members_[rank]) remove(rank);
  }
}

void QueuePairs::end() {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  for (uint32_t rank = 0; rank < served_.size(); ++rank) {
    if (served_[rank] != 0) remove(rank);
  }
}

// Under the mutex.
void QueuePairs::remove(uint32_t rank) {
  served_[rank] = 0;
  (void)nic_->remove_queue(queues_[rank].queue_pair);
}

}  // namespace mep
