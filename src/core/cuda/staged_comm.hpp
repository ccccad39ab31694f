// A comm's device side where not all peers can be mapped: kernels stage the operation in pinned memory, and a
// thread of this object runs it on a comm of the host, made for nothing else over the same ranks. So the
// order of operations, mismatches, deadlines and view changes are those of hosts.
//
// Why a comm of its own: the comm that the user holds is used by the user's thread (split, agree, making EP
// objects), in no order with operations that wait in streams.
//
// Staging: one block of pinned memory for all operations, since they run one after the other. A larger
// operation is cut into parts, each an operation of the host: an allocation could wait for kernels of
// other ranks that wait for this one. A part that fails fails on all ranks, and none of them goes on with
// the rest.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/comm/comm.hpp"
#include "core/comm/view_participant.hpp"
#include "core/cuda/cuda_backend.hpp"
#include "core/queued/queue_nic.hpp"
#include "core/staged/stage_plan.hpp"
#include "core/staged/stage_server.hpp"
#include "core/staged/staged_counted.hpp"
#include "core/staged/staged_messages.hpp"
#include "kernels/cuda/coll/stage_kernels.hpp"
#include "transport/cuda/device_memory.hpp"

namespace mep {

// Memory and state of one staged channel.
struct StagedChannel {
  std::shared_ptr<DeviceMemory> state_memory;
  std::shared_ptr<PinnedMemory> mailbox_memory;
  [[nodiscard]] mep_result_t open(int32_t device);
  device::StageMailbox* mailbox() const {
    return static_cast<device::StageMailbox*>(mailbox_memory->data());
  }
  device::StageChannel kernels() const {
    return {reinterpret_cast<device::StageState*>(state_memory->data()), mailbox()};
  }
};

class StagedComm : public CudaBackend, public ViewParticipant {
 public:
  // groups: by rank, see groups_of().
  StagedComm(Comm& comm, const GpuPlace& place, std::vector<uint64_t> groups, GpuQueues queues);
  ~StagedComm() override;
  StagedComm(const StagedComm&) = delete;
  StagedComm& operator=(const StagedComm&) = delete;
  [[nodiscard]] mep_result_t open();
  // A joiner's, in place of the three steps.
  [[nodiscard]] mep_result_t join(const GpuDescription& about, const Deadline& deadline);

  // --- The user's thread (GpuBackend) ---
  GpuReach reach() const override { return GpuReach::kQueues; }
  std::vector<bool> mapped_ranks() const override { return mapped_; }
  bool uses_adapter() const override { return nic_.uses_adapter(); }
  size_t view_participants() const override { return is_client_ ? 1 : 0; }
  mep_result_t connect(const Deadline& deadline) override;
  mep_result_t begin_proof() override;
  mep_result_t end_proof() override;
  BackendLimits limits() const override {
    return {StagedMessages::eager_bytes(comm_), device::kStageMessages, 0};
  }
  mep_result_t enqueue_messages(std::span<const StreamMessage> messages, void* stream) override;
  mep_result_t take_failure() override { return server_.take_failure(); }
  bool busy() const override { return server_.busy(); }
  void set_timeout_ms(uint32_t ms) override;
  void revoke() override;
  // A joiner waits for the addresses of queues to its place, which EP objects make when they meet the view without the rank
  // that was lost.
  mep_result_t prepare_for_joiners(const Deadline& deadline) override {
    return uses_adapter() ? meet_joiners_of_parts(deadline) : MEP_SUCCESS;
  }
  mep_result_t meet_joiners(const Deadline& deadline) override {
    return meet_joiners_of_parts(deadline);
  }
  mep_result_t make_pairs(std::unique_ptr<gpu_queue::NicPairs>* out) override {
    return nic_.make_pairs(out);
  }

  // --- The control thread (ViewParticipant): joiners learn of it; the comm that carries collectives meets views itself ---
  void describe(std::vector<membership::ChannelState>*) const override {}
  bool holds(uint64_t, uint64_t) const override { return true; }
  void freeze(std::vector<membership::ChannelState>*) override {}
  ObjectKind kind() const override { return ObjectKind::kGpu; }
  const std::string& name() const override { return name_; }
  void describe_object(std::vector<std::byte>* out) const override;
  void prepare() override {}
  void install(const std::shared_ptr<const CommChange>&, const membership::Proposal*) override {}

 private:
  mep_result_t open_memory();
  mep_result_t find_posters(PosterPlace* place) const;
  mep_result_t open_server(const Deadline& deadline);
  mep_result_t serve(const device::StageRequest& request, device::StageAnswer* answer);
  // Kernels of the channel run one after the other, on whatever streams; in a graph the order is the caller's.
  template <typename Enqueue>
  mep_result_t in_turn(void* stream, Enqueue&& enqueue);
  mep_result_t enqueue_collective(Collective kind, const CollectiveArgs& args, void* stream);
  mep_result_t enqueue_counted(Collective kind, const CollectiveArgs& args, void* stream);
  void start();
  mep_result_t carry_out(Collective kind, const CollectiveArgs& args, void* stream) override;
  mep_result_t enqueue_part(Collective kind, const CollectiveArgs& args, const StagePlan& plan,
                            size_t begin, size_t count, void* stream);

  const int32_t device_;
  const std::string name_;
  const std::vector<uint64_t> groups_;
  const std::vector<bool> mapped_;
  const GpuQueues queues_;
  std::unique_ptr<StagedMessages> messages_;  // what stream_comm_ has under way is in it
  std::unique_ptr<StagedCounted> counted_;
  std::unique_ptr<Comm> stream_comm_;
  StagedChannel channel_;
  std::unique_ptr<DeviceStream> stream_;
  DeviceEvent last_;  // behind the latest operation
  std::shared_ptr<PinnedMemory> staging_;
  StageServer server_;
  QueueNic nic_;
  bool is_client_ = false;
};

}  // namespace mep
