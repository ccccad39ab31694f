// The buffers of an EP object on host memory.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/comm/comm.hpp"
#include "core/ep/ep_buffers.hpp"
#include "core/ep/host/ep_buffer.hpp"
#include "protocol/ep_call.hpp"

namespace mep {

class HostBuffers final : public EpBuffers {
 public:
  HostBuffers(Comm& comm, const EpShape& shape);
  EpBuffer& at(uint32_t index) { return *buffers_[index]; }
  mep_result_t offer(const std::string& name, uint64_t window_seed) override;
  mep_result_t connect(const std::shared_ptr<const CommView>& view,
                       const Deadline& deadline) override;
  mep_result_t finish(RankValues* rows) override;
  // Mapping is mutual between a joiner and a member.
  void finish_joined() override;

  bool in_flight() override;
  mep_result_t make_handle(EpHandle*) override { return MEP_SUCCESS; }
  mep_result_t end_handle(EpHandle& handle) override;
  mep_result_t use_map(const std::shared_ptr<const ExpertMap>& map) override;
  void fill_view(uint32_t buffer, mep_ep_view_t* view) const override;
  std::shared_ptr<const void> take_memory() override;
  mep_result_t dispatch(EpHandle& handle, const DispatchInput* send, const DispatchOutput* receive,
                        void* stream) override;
  mep_result_t combine(EpHandle& handle, const CombineInput* send, const CombineOutput* receive,
                       void* stream) override;
  mep_result_t last_op(uint32_t buffer, mep_op_info_t* info) override;

  void describe(std::vector<membership::ChannelState>* channels) const override;
  bool holds(uint64_t channel, uint64_t seq) const override;
  void stop() override;
  bool is_still() const override;
  void freeze(std::vector<membership::ChannelState>* channels) override;
  bool quiesced() const override;
  void prepare() override;
  void terminate() override;
  void install(const std::shared_ptr<const CommChange>& change,
               const membership::Proposal* committed) override;

 private:
  // One rank of each host speaks.
  void warn_of_memory() const;
  std::shared_ptr<const ExpertMap> map() const;

  Comm& comm_;
  const EpShape shape_;
  const EpLayout layout_;
  std::string name_;
  std::vector<std::unique_ptr<EpBuffer>> buffers_;
  uint64_t installed_epoch_ = 0;  // the control thread's
  mutable std::mutex map_mutex_;
  std::shared_ptr<const ExpertMap> map_;
};

}  // namespace mep
