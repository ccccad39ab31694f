// A comm's device side where ranks map each other's windows, on GPUs or in pinned memory: one channel of replicated
// operations that kernels carry out and complete. Where they do not: staged_comm.hpp.
//
// Three threads meet here. The user's makes it and launches kernels. The control thread of the world
// freezes it, looks at what the device says of itself in the pinned CollPost, and installs decisions there;
// it makes no CUDA call. The watcher (GpuBackend) makes none either; it turns what kernels
// report (an operation is late) and what has become of the world into evidence and decisions.
//
// The device acknowledges a freeze by ending or parking the operation that runs; one that has not begun
// will see the freeze when it does. It adopts a new view from the CollPost by itself, so
// a graph that was captured before runs on after it.
//
// A view that GpuChannel holds back is met by meet_joiners(): the user's thread maps the windows, and an operation of the
// library's own, which ends by the held decisions, takes the device into the view. So no operation of the user fails by
// an admission.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/comm/comm.hpp"
#include "core/cuda/cuda_backend.hpp"
#include "core/cuda/gpu_channel.hpp"
#include "core/cuda/gpu_messages.hpp"
#include "core/cuda/gpu_registered.hpp"
#include "core/cuda/gpu_windows.hpp"
#include "kernels/cuda/coll/kernels.hpp"
#include "transport/cuda/device_memory.hpp"

namespace mep {

class GpuComm : public CudaBackend, public ViewParticipant {
 public:
  GpuComm(Comm& comm, const GpuPlace& place, WindowPlace windows_at);
  ~GpuComm() override;
  GpuComm(const GpuComm&) = delete;
  GpuComm& operator=(const GpuComm&) = delete;
  [[nodiscard]] mep_result_t open();
  // A joiner's, in place of the three steps.
  [[nodiscard]] mep_result_t join(uint64_t members_window_bytes, const Deadline& deadline);

  // --- The user's thread (GpuBackend) ---
  GpuReach reach() const override {
    return windows_at_ == WindowPlace::kDevice ? GpuReach::kDeviceWindows : GpuReach::kHostWindows;
  }
  BackendLimits limits() const override {
    return {device::kMessageLanes * layout_.message_chunk_bytes, device::most_messages(),
            layout_.ctas};
  }
  size_t view_participants() const override { return is_client_ ? 1 : 0; }
  mep_result_t connect(const Deadline& deadline) override;
  mep_result_t begin_proof() override;
  mep_result_t end_proof() override;
  mep_result_t enqueue_messages(std::span<const StreamMessage> messages, void* stream) override;
  mep_result_t register_memory(const void* memory, size_t bytes, const Deadline& deadline,
                               mep_registration_t* registration) override;
  mep_result_t deregister_memory(mep_registration_t registration) override;
  mep_result_t take_failure() override;
  bool busy() const override { return channel_.busy() || messages_.busy(); }
  void set_timeout_ms(uint32_t ms) override;
  mep_result_t meet_joiners(const Deadline& deadline) override;

  // --- The control thread (ViewParticipant) ---
  void describe(std::vector<membership::ChannelState>* channels) const override;
  bool holds(uint64_t channel, uint64_t seq) const override;
  void stop() override { channel_.stop(); }
  bool is_still() const override { return channel_.is_still(); }
  void freeze(std::vector<membership::ChannelState>* channels) override {
    channel_.freeze(channels);
  }
  ObjectKind kind() const override { return ObjectKind::kGpu; }
  const std::string& name() const override { return name_; }
  void describe_object(std::vector<std::byte>* out) const override;
  void prepare() override {}
  void install(const std::shared_ptr<const CommChange>& change,
               const membership::Proposal* committed) override;

 private:
  mep_result_t carry_out(Collective kind, const CollectiveArgs& args, void* stream) override;
  mep_result_t launch_counted(const CollectiveArgs& args, device::CollCall* call, void* stream);
  void watch() override;
  mep_result_t launch_barrier(mep_op_status_t* status);
  mep_result_t begin_registering(const DeviceScope& scope);
  mep_result_t agree(std::span<int64_t> values);
  mep_result_t run_agreement(size_t count, StreamRecord* record);
  mep_result_t start();
  mep_result_t write_state(const device::CollDecision& begin, uint64_t timeout_ms,
                           uint64_t settle_ms, uint64_t installed);
  mep_result_t check_idle() const;
  mep_result_t meet_view();
  mep_result_t adopt_view(const Deadline& deadline);
  mep_result_t map_held(const Deadline& deadline);
  mep_result_t adopt_held();
  mep_result_t begin_adopted(const GpuChannel::Adoption& adoption);
  mep_result_t go_on_adopted(const GpuChannel::Adoption& adoption);

  const WindowPlace windows_at_;
  const std::string name_;
  GpuChannel channel_;
  GpuWindows windows_;
  GpuMessages messages_;
  GpuRegistered registered_;
  std::shared_ptr<PinnedMemory> agreed_;  // what this rank gives, and behind it what all agree on
  device::CollLayout layout_{};
  std::shared_ptr<DeviceMemory> state_memory_;
  StreamRecord* proof_ = nullptr;       // between begin_proof() and end_proof()
  device::CollState* state_ = nullptr;  // device address
  std::unique_ptr<DeviceStream> stream_;
  bool is_connected_ = false;
  bool is_client_ = false;
};

}  // namespace mep
