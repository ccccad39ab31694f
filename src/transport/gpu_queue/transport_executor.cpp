#include "transport/gpu_queue/transport_executor.hpp"

#include <new>

#include "transport/doorbell.hpp"

namespace mep::gpu_queue {

Executed TransportExecutor::post(const Posting& posting) {
  if (batch_.postings.empty()) {
    posting_ = posting;
    batch_ = Batch{{&posting_, 1}};
  }
  mep_result_t result = MEP_ERR_PEER_FAILED;
  try {
    result = transport_->post(slot_, &batch_);
  } catch (const std::bad_alloc&) {
    // The connection is lost.
  }
  if (result == kWouldBlock) return Executed::kLater;
  batch_ = Batch{};
  if (result == MEP_SUCCESS) return Executed::kDone;
  return result == MEP_ERR_PEER_FAILED ? Executed::kLost : Executed::kRefused;
}

Executed TransportExecutor::put(const RemoteRegion& region, uint64_t offset, const void* from,
                                size_t bytes) {
  return post(Posting::put(region.place, offset, from, bytes));
}

Executed TransportExecutor::write_word(const RemoteRegion& region, uint64_t offset, uint64_t word) {
  return post(Posting::signal(region.place, offset, word, wakes_));
}

Executed TransportExecutor::fetch_add(const RemoteRegion& region, uint64_t offset, uint64_t add,
                                      uint64_t* before) {
  std::byte* window = transport_->map(slot_, region.place);
  if (window == nullptr) return Executed::kUnsupported;
  // Release: publishes the puts before it to the peer that acquires the word. Acquire: the poster that reads *before
  // sees what the peer published by it.
  *before = reinterpret_cast<std::atomic<uint64_t>*>(window + offset)
                ->fetch_add(add, std::memory_order_acq_rel);
  Doorbell* doorbell = wakes_ ? transport_->doorbell(slot_) : nullptr;
  if (doorbell != nullptr) doorbell_ring_sleepers(doorbell);
  return Executed::kDone;
}

bool TransportExecutor::counts(Counts* out) {
  return transport_->completion(slot_, true, out) == MEP_SUCCESS;
}

void TransportExecutor::progress() {
  (void)transport_->progress(false);
}

}  // namespace mep::gpu_queue
