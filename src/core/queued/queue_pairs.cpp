#include "core/queued/queue_pairs.hpp"

#include <bit>
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
  queues_.resize(comm_.size());
  is_served_.resize(comm_.size());
  for (const uint32_t rank : view.live) {
    if (windows_.has(rank)) MEP_TRY(add_queue(rank, memory));
  }
  return MEP_SUCCESS;
}

mep_result_t QueuePairs::add_queue(uint32_t rank, const Memory& memory) {
  std::byte* own = memory.rings + rank * bytes_of_queue(memory.entries);
  auto* words = reinterpret_cast<Words*>(own);
  gpu_queue::Queue& queue = queues_[rank];
  queue.ring = reinterpret_cast<Request*>(own + sizeof(Words));
  queue.record = &words->record;
  queue.doorbell = &words->doorbell;
  queue.ready = memory.ready + size_t{rank} * memory.entries;
  queue.queue_pair = nic_->new_queue_pair();
  queue.entries = memory.entries;
  make_empty(&queue, &words->completion, 0);

  gpu_queue::QueueWiring wiring;
  wiring.ring = queue.ring;
  wiring.entries = queue.entries;
  wiring.completions = &words->completion;
  wiring.record = queue.record;
  wiring.doorbell = queue.doorbell;
  wiring.queue_pair = queue.queue_pair;
  wiring.local = {{kSourceKey, std::bit_cast<uint64_t>(memory.source), memory.source_bytes,
                   memory.source, true}};
  const Remote& remote = windows_[rank];
  const bool is_mapped = remote.mapped != nullptr;
  const uint64_t place = is_mapped ? std::bit_cast<uint64_t>(remote.mapped) : remote.window;
  wiring.remote = {{kWindowKey, 0, windows_.own()->bytes(), place}};
  MEP_TRY(guarded([&]() -> mep_result_t {
    std::unique_ptr<Executor> executor;
    if (is_mapped) {
      executor = std::make_unique<gpu_queue::MemoryExecutor>();
    } else {
      // Kernels poll their words: there is nobody to be woken.
      executor =
          std::make_unique<gpu_queue::TransportExecutor>(remote.transport, remote.slot, false);
      MEP_TRY(nic_->keep_moving(remote.transport));
    }
    return nic_->add_queue(wiring, std::move(executor));
  }));
  is_served_[rank] = true;
  return MEP_SUCCESS;
}

void QueuePairs::finish() const {
  for (const gpu_queue::Queue& queue : queues_) {
    if (queue.queue_pair != 0) nic_->finish_queue(queue.queue_pair);
  }
}

void QueuePairs::keep(const CommView& view) {
  for (uint32_t rank = 0; rank < is_served_.size(); ++rank) {
    if (!is_served_[rank]) continue;
    if (view.is_live(rank) && windows_.reaches(rank, view.incarnations[rank])) continue;
    remove(rank);
  }
}

void QueuePairs::end() {
  for (uint32_t rank = 0; rank < is_served_.size(); ++rank) {
    if (is_served_[rank]) remove(rank);
  }
}

void QueuePairs::remove(uint32_t rank) {
  is_served_[rank] = false;
  (void)nic_->remove_queue(queues_[rank].queue_pair);
}

}  // namespace mep
