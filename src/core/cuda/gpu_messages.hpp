// Messages of a communicator whose GPUs map each other: the host's half of kernels/cuda/coll/messages.hpp. The user's thread
// owns it; the control thread tells it who is out, and the watcher when the world has ended. These two make no CUDA call.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/comm/comm.hpp"
#include "kernels/cuda/coll/messages.hpp"
#include "transport/cuda/device_memory.hpp"

namespace mep {

class GpuMessages {
 public:
  explicit GpuMessages(const Comm& comm) : comm_(comm), marks_(comm.size()) {}
  // coll: the device address of the state whose windows and timeout messages use.
  [[nodiscard]] mep_result_t open(int32_t device, const device::CollState* coll);
  // Pairs with ranks of the view that are new here begin; no kernel of messages runs.
  [[nodiscard]] mep_result_t meet(const CommView& view, void* stream);
  // Changes their order.
  [[nodiscard]] mep_result_t enqueue(std::span<device::Message> messages, uint32_t most_ctas,
                                     void* stream);
  // First failure since the last call.
  [[nodiscard]] mep_result_t take_failure();
  // Kernels that calls have launched still run; replays of graphs are not seen.
  bool busy() const;

  // By the control thread: messages with ranks that the view lacks end.
  void keep(const CommView& view);
  // By the watcher: all end.
  void end(mep_result_t result);

 private:
  uint64_t mark_of(uint64_t incarnation) const;

  const Comm& comm_;
  std::shared_ptr<DeviceMemory> memory_;
  std::shared_ptr<PinnedMemory> pinned_;
  device::MessageState* state_ = nullptr;  // device address
  device::MessagePost* post_ = nullptr;
  std::vector<std::atomic<uint64_t>>
      marks_;  // by rank, of the pair; 0: never met. Relaxed: each for itself
  std::map<void*, DeviceEvent> last_;  // by stream: behind its latest messages
  uint64_t failures_told_ = 0;
};

}  // namespace mep
