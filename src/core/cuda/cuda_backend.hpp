// The part of a backend that does not depend on how collectives travel: EP buffers, and the checks before a kernel is
// enqueued.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/comm/gpu_backend.hpp"
#include "kernels/cuda/device/op_status.hpp"
#include "transport/cuda/device_memory.hpp"

namespace mep {

// The facts of the members' device side that a joiner needs. In whole words; members and joiners run the same version.
struct GpuDescription {
  uint64_t reach = 0;  // GpuReach
  uint64_t most_blocks = 0;
  // Windows:
  uint64_t most_on_a_device = 0;
  uint64_t window_bytes = 0;
  // Queues:
  uint64_t stream_epoch = 0;  // of the comm that carries collectives
  uint64_t uses_adapter = 0;

  // Behind it, with queues, the numbers of the ranks' groups: see groups_of().
  void encode(std::span<const uint64_t> groups, std::vector<std::byte>* out) const;
  [[nodiscard]] bool decode(std::span<const std::byte> bytes, std::vector<uint64_t>* groups);
};

class CudaBackend : public GpuBackend {
 public:
  using GpuBackend::GpuBackend;
  ~CudaBackend() override;
  mep_result_t make_ep_buffers(const EpShape& shape, const EpDeviceOptions& options,
                               std::unique_ptr<EpBuffers>* out) override;
  mep_result_t estimate_ep_buffers(const EpShape& shape, const EpDeviceOptions& options,
                                   mep_ep_size_t* out) const override;
  mep_result_t count_layout(const device::DispatchLayout& layout, void* stream) override;
  mep_result_t show_losses(int32_t* lost, void* stream) override;
  mep_result_t forget_losses(void* stream) override;
  mep_result_t lend_record(void* stream, StreamRecord** out) override;
  mep_result_t allocate(size_t bytes, void** memory) override;
  mep_result_t free(void* memory, std::shared_ptr<const void>* kept) override;
  // Before every call on a stream. The GPU is the thread's current one.
  [[nodiscard]] mep_result_t check_call(const void* stream) const;

 protected:
  // When the backend is made: the records of requests, and the losses.
  [[nodiscard]] mep_result_t open_records();
  // Before a collective; with counts the caller looks at the buffers.
  [[nodiscard]] mep_result_t check_collective(Collective kind, const CollectiveArgs& args,
                                              const void* stream) const;
  // A record of the caller's with room for all ranks; null: none.
  device::OpStatusPlace place_of(mep_op_status_t* status) const;
  // The blocks that this rank gives and gets, whose memory is the GPU's; others have no bytes.
  [[nodiscard]] mep_result_t lay_out_counted(Collective kind, const CollectiveArgs& args,
                                             CountedBlocks* laid) const;
  // Before a group of messages. kept: those that can be enqueued; *lost: what the call returns afterwards, since some send
  // to a rank that is gone. A graph has all of them or none.
  [[nodiscard]] mep_result_t check_group(std::span<const StreamMessage> messages, uint32_t most,
                                         void* stream, std::vector<StreamMessage>* kept,
                                         mep_result_t* lost) const;

 private:
  std::shared_ptr<PinnedMemory> record_memory_;  // of the records, and behind them of the losses
};

}  // namespace mep
