// An EP object on a GPU whose peers cannot be mapped: an EP object of the host, and per buffer a staging, a
// thread that serves it, and device memory for what the library keeps: recv_x, recv_scales, src_info, counts
// and y, laid out as in a mapped window.
//
// Each buffer has a thread of its own: ranks may enqueue operations of two buffers on two streams in
// different order.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/cuda/ep_call.hpp"
#include "core/cuda/staged_comm.hpp"
#include "core/ep/ep_object.hpp"
#include "core/staged/staged_ep_calls.hpp"

namespace mep {

class StagedEp : public EpSide, public ViewParticipant, public GpuPart {
 public:
  StagedEp(Comm& comm, StagedComm& side, const EpShape& shape, const EpDeviceOptions& options);
  ~StagedEp() override;
  StagedEp(const StagedEp&) = delete;
  StagedEp& operator=(const StagedEp&) = delete;
  mep_result_t open(const char* name) override;

  // --- The user's thread ---
  const EpShape& shape() const override { return shape_; }
  bool in_flight() override;
  mep_result_t make_handle(EpSideHandle* handle) override;
  mep_result_t end_handle(EpSideHandle& handle) override;
  mep_result_t set_expert_map(const int32_t* map) override;
  void fill_view(uint32_t buffer, mep_ep_view_t* view) const override;
  mep_result_t dispatch(EpSideHandle& handle, const mep_dispatch_send_t* send,
                        const mep_dispatch_receive_t* receive, void* stream) override;
  mep_result_t combine(EpSideHandle& handle, const mep_combine_send_t* send,
                       const mep_combine_receive_t* receive, void* stream) override;
  mep_result_t last_op(uint32_t buffer, mep_op_info_t* info) override;
  mep_result_t take_failure() override;
  void set_timeout_ms(uint32_t ms) override;

  // --- The control thread (ViewParticipant): the object of the host takes part, this one only looks ---
  void describe(std::vector<membership::ChannelState>*) const override {}
  bool holds(uint64_t, uint64_t) const override { return true; }
  void freeze(std::vector<membership::ChannelState>*) override {}
  const std::string& name() const override { return object_->name(); }
  void describe_object(std::vector<std::byte>*) const override {}
  void prepare() override {}
  void install(const std::shared_ptr<const CommChange>& change,
               const membership::Proposal* committed) override;

 private:
  struct Buffer {
    StagedChannel channel;
    std::shared_ptr<DeviceMemory> memory;  // as a window, then what is as in a local block
    std::shared_ptr<PinnedMemory> staging;
    std::unique_ptr<StagedEpCalls> served;
    StageServer server;
    uint64_t epoch = 0;  // whose change was reported
    EpCallState calls;
  };
  // Left by the control thread for the user's thread.
  struct LatestView {
    uint64_t epoch = 0;
    mep_result_t result = MEP_ERR_PEER_FAILED;  // why it changed
    std::string text;
  };

  mep_result_t agree_on_scales(RankValues* scales);
  mep_result_t take_part();
  mep_result_t open_buffers();
  LatestView latest() const;
  bool is_over(const Buffer& buffer) const;
  mep_result_t check_call(const void* stream) const;
  mep_result_t catch_up(Buffer& buffer, void* stream);
  void move_to_view(Buffer& buffer, uint64_t epoch);
  device::StageEpBuffer kernels(const Buffer& buffer) const;

  Comm& comm_;
  StagedComm& side_;
  const EpShape shape_;
  const EpDeviceOptions options_;
  const device::EpGeometry geometry_;
  const StagedEpLayout layout_;
  std::unique_ptr<EpObject> object_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  bool is_client_ = false;

  std::mutex handles_mutex_;
  std::vector<std::unique_ptr<EpHandle>>
      handles_;  // all that ever were: graphs have their addresses
  std::vector<EpHandle*> free_handles_;

  mutable std::mutex view_mutex_;
  LatestView latest_;
};

}  // namespace mep
