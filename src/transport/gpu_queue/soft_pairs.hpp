// Pairs that a software NIC executes. They reach peers as the transports of the host do, and need no addresses.
#pragma once

#include "transport/gpu_queue/nic_pairs.hpp"
#include "transport/gpu_queue/soft_nic.hpp"

namespace mep::gpu_queue {

class SoftPairs final : public NicPairs {
 public:
  // The NIC outlives it.
  explicit SoftPairs(SoftNic* nic) : nic_(nic) {}

  static size_t ring_bytes(uint32_t entries);
  size_t bytes_of(uint32_t entries) const override { return ring_bytes(entries); }
  bool is_adapter() const override { return false; }
  [[nodiscard]] mep_result_t use_window(const MemoryRange& window) override;
  [[nodiscard]] mep_result_t use_source(const MemoryRange& source) override;
  [[nodiscard]] mep_result_t make(const Ring& ring, Queue* queue,
                                  std::unique_ptr<NicPair>* out) override;

 private:
  SoftNic* const nic_;
  MemoryRange window_, source_;
};

}  // namespace mep::gpu_queue
