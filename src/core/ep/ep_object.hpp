// An EP object, made by all ranks of a comm together: what does not depend on where its buffers are. It alone meets the
// view changes of the comm, for them too.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/comm/comm.hpp"
#include "core/comm/view_participant.hpp"
#include "core/ep/ep_buffers.hpp"
#include "core/ep/ep_config.hpp"

namespace mep {

class Backend;

class EpObject : public ViewParticipant {
 public:
  EpObject(Comm& comm, const EpShape& shape, const EpDeviceOptions& options,
           std::unique_ptr<EpBuffers> buffers);
  // Collective. After an error it is good for nothing; destroyed, it leaves nothing behind but device memory that
  // the comm keeps.
  [[nodiscard]] mep_result_t open(const char* name);
  // A joiner's part of an object that the members have, from what describe_object() gave.
  [[nodiscard]] static mep_result_t attach(Comm& comm, Backend& backend,
                                           std::span<const std::byte> description,
                                           const Deadline& deadline,
                                           std::unique_ptr<EpObject>* out);
  ~EpObject() override;
  EpObject(const EpObject&) = delete;
  EpObject& operator=(const EpObject&) = delete;

  const EpShape& shape() const { return shape_; }
  EpBuffers& buffers() { return *buffers_; }
  // Where all ranks must return the same, a dispatch or combine ends by an operation of the comm.
  bool runs_operations() const { return shape_.uniform(); }
  // Collective; null: physical ids. On GPUs: streams are idle.
  [[nodiscard]] mep_result_t set_expert_map(const int32_t* map);
  // Whether a joiner's config is that of the members; the text names the field.
  [[nodiscard]] mep_result_t check_config(const EpShape& given,
                                          const EpDeviceOptions& options) const;

  // --- The control thread (ViewParticipant) ---
  ObjectKind kind() const override { return ObjectKind::kEp; }
  const std::string& name() const override { return name_; }
  void describe_object(std::vector<std::byte>* out) const override;
  void describe(std::vector<membership::ChannelState>* channels) const override {
    buffers_->describe(channels);
  }
  bool holds(uint64_t channel, uint64_t seq) const override {
    return buffers_->holds(channel, seq);
  }
  void stop() override { buffers_->stop(); }
  bool is_still() const override { return buffers_->is_still(); }
  void freeze(std::vector<membership::ChannelState>* channels) override {
    buffers_->freeze(channels);
  }
  bool quiesced() const override { return buffers_->quiesced(); }
  void prepare() override { buffers_->prepare(); }
  void terminate() override { buffers_->terminate(); }
  void install(const std::shared_ptr<const CommChange>& change,
               const membership::Proposal* committed) override {
    buffers_->install(change, committed);
  }

 private:
  mep_result_t connect(const Deadline& deadline);

  Comm& comm_;
  const EpShape shape_;
  const EpDeviceOptions options_;
  const std::unique_ptr<EpBuffers> buffers_;
  std::string name_;
  uint64_t window_seed_ = 0;  // ids of its windows follow from it
  bool is_client_ = false;
  mutable std::mutex map_mutex_;
  std::vector<int32_t> map_;  // as given; empty: physical ids
};

// Where `backend` works; not open yet.
[[nodiscard]] mep_result_t make_ep_object(Comm& comm, Backend& backend, const EpShape& shape,
                                          const mep_ep_config_t& config,
                                          std::unique_ptr<EpObject>* out);
// A joiner's part of an object, made when it joined.
[[nodiscard]] mep_result_t attach_ep_object(Comm& comm, const EpShape& shape,
                                            const mep_ep_config_t& config,
                                            std::unique_ptr<EpObject>* out);
// The memory that make_ep_object() would take.
[[nodiscard]] mep_result_t estimate_ep_object(Backend& backend, const EpShape& shape,
                                              const mep_ep_config_t& config, mep_ep_size_t* out);

// For tests that reach below the ABI.
EpObject& ep_object_of(mep_ep_t ep);

}  // namespace mep
