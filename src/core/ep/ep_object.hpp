// An EP object: its buffers and the expert map, made by all ranks of a comm together.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/comm/agreement.hpp"
#include "core/comm/comm.hpp"
#include "core/ep/ep_buffer.hpp"

namespace mep {

class EpObject : public ViewParticipant {
 public:
  EpObject(Comm& comm, const EpShape& shape);
  // Collective. After an error it is good for nothing; destroyed, it leaves nothing behind.
  [[nodiscard]] mep_result_t open(const char* name);
  // A joiner's part of an object that the members have, from what describe_object() gave.
  [[nodiscard]] static mep_result_t attach(Comm& comm, std::span<const std::byte> description,
                                           const Deadline& deadline,
                                           std::unique_ptr<EpObject>* out);
  ~EpObject() override;
  EpObject(const EpObject&) = delete;
  EpObject& operator=(const EpObject&) = delete;

  const EpShape& shape() const { return shape_; }
  EpBuffer& buffer(uint32_t index) { return *buffers_[index]; }
  bool busy();

  // Collective; null: physical ids.
  [[nodiscard]] mep_result_t set_expert_map(const int32_t* map);
  std::shared_ptr<const ExpertMap> expert_map() const;

  // Whether a joiner's config is that of the members; the text names the field.
  [[nodiscard]] mep_result_t check_shape(const EpShape& given) const;

  // --- The control thread (ViewParticipant) ---
  const std::string& name() const override { return name_; }
  void describe_object(std::vector<std::byte>* out) const override;
  void describe(std::vector<membership::ChannelState>* channels) const override;
  bool holds(uint64_t channel, uint64_t seq) const override;
  void freeze(std::vector<membership::ChannelState>* channels) override;
  bool quiesced() const override;
  void prepare() override;
  void terminate() override;
  void install(const std::shared_ptr<const CommChange>& change,
               const membership::Proposal* committed) override;

 private:
  mep_result_t offer_windows();
  mep_result_t connect_windows(const Deadline& deadline);
  mep_result_t exchange_pulls(RankValues* rows);
  // One rank of each host speaks.
  void warn_of_memory() const;

  Comm& comm_;
  const EpShape shape_;
  const EpLayout layout_;
  std::string name_;
  uint64_t window_seed_ = 0;  // ids of its windows follow from it
  std::vector<std::unique_ptr<EpBuffer>> buffers_;
  bool is_client_ = false;
  uint64_t installed_epoch_ = 0;  // the control thread's
  mutable std::mutex map_mutex_;
  std::shared_ptr<const ExpertMap> map_;
  std::vector<int32_t> map_entries_;  // as given; empty: physical ids
};

// Collective. `hashes` has room for one value of each rank.
[[nodiscard]] mep_result_t agree_on_expert_map(Comm& comm, const int32_t* map, size_t entries,
                                               RankValues* hashes);

// The memory that mep_ep_create would take.
void estimate_ep_size(const EpShape& shape, mep_ep_size_t* out);

// For tests that reach below the ABI.
EpObject& ep_object_of(mep_ep_t ep);

}  // namespace mep
