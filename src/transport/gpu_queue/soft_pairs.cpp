#include "transport/gpu_queue/soft_pairs.hpp"

#include <bit>
#include <mutex>
#include <utility>

#include "base/guarded.hpp"
#include "transport/gpu_queue/memory_executor.hpp"
#include "transport/gpu_queue/transport_executor.hpp"

namespace mep::gpu_queue {
namespace {

// Requests name the peer's window from offset 0.
constexpr uint32_t kWindowKey = 1;
constexpr uint32_t kSourceKey = 2;

// A queue shares these with the NIC beside its ring, each on a line of its own.
struct Words {
  CompletionEntry completion;
  alignas(64) DoorbellRecord record;
  alignas(64) uint64_t doorbell;
};

class SoftPair final : public NicPair {
 public:
  SoftPair(SoftNic* nic, size_t window_bytes, const MemoryRange& source, const Queue& queue,
           Words* words)
      : nic_(nic), window_bytes_(window_bytes) {
    wiring_.ring = queue.ring;
    wiring_.entries = queue.entries;
    wiring_.completions = &words->completion;
    wiring_.record = queue.record;
    wiring_.doorbell = queue.doorbell;
    wiring_.queue_pair = queue.queue_pair;
    wiring_.local = {{kSourceKey, std::bit_cast<uint64_t>(source.address), source.bytes,
                      static_cast<std::byte*>(source.address), true}};
  }
  ~SoftPair() override { (void)fail(Deadline::never()); }
  SoftPair(const SoftPair&) = delete;
  SoftPair& operator=(const SoftPair&) = delete;

  std::vector<std::byte> address() const override { return {}; }

  mep_result_t connect(const PeerEnd& peer, Queue* queue) override {
    const std::lock_guard lock(mutex_);
    return has_failed_ ? MEP_SUCCESS : guarded([&] { return serve(peer, queue); });
  }
  void finish() override { nic_->finish_queue(wiring_.queue_pair); }
  mep_result_t fail(const Deadline& /*deadline*/) override {
    const std::lock_guard lock(mutex_);
    has_failed_ = true;
    return std::exchange(is_served_, false) ? nic_->remove_queue(wiring_.queue_pair) : MEP_SUCCESS;
  }

 private:
  mep_result_t serve(const PeerEnd& peer, Queue* queue) {
    std::unique_ptr<Executor> executor;
    uint64_t place = peer.window;
    if (peer.mapped != nullptr) {
      place = std::bit_cast<uint64_t>(peer.mapped);
      executor = std::make_unique<MemoryExecutor>();
    } else {
      // Kernels poll their words: there is nobody to be woken.
      executor = std::make_unique<TransportExecutor>(peer.transport, peer.slot, false);
      MEP_TRY(nic_->keep_moving(peer.transport));
    }
    wiring_.remote = {{kWindowKey, 0, window_bytes_, place}};
    queue->window_base = 0;
    queue->window_key = kWindowKey;
    MEP_TRY(nic_->add_queue(wiring_, std::move(executor)));
    is_served_ = true;
    return MEP_SUCCESS;
  }

  SoftNic* const nic_;
  const size_t window_bytes_;
  QueueWiring wiring_;
  std::mutex mutex_;  // of what follows
  bool is_served_ = false;
  bool has_failed_ = false;
};

}  // namespace

size_t SoftPairs::ring_bytes(uint32_t entries) {
  return sizeof(Words) + entries * sizeof(Request);
}

mep_result_t SoftPairs::use_window(const MemoryRange& window) {
  window_ = window;
  return MEP_SUCCESS;
}

mep_result_t SoftPairs::use_source(const MemoryRange& source) {
  source_ = source;
  return MEP_SUCCESS;
}

mep_result_t SoftPairs::make(const Ring& ring, Queue* queue, std::unique_ptr<NicPair>* out) {
  auto* words = reinterpret_cast<Words*>(ring.memory);
  queue->ring = reinterpret_cast<Request*>(ring.memory + sizeof(Words));
  queue->record = &words->record;
  queue->doorbell = &words->doorbell;
  queue->ready = ring.ready;
  queue->queue_pair = nic_->new_queue_pair();
  queue->entries = ring.entries;
  queue->source_key = kSourceKey;
  make_empty(queue, &words->completion, 0);
  return guarded([&] {
    *out = std::make_unique<SoftPair>(nic_, window_.bytes, source_, *queue, words);
    return MEP_SUCCESS;
  });
}

}  // namespace mep::gpu_queue
