#include "core/ep/ep_object.hpp"

#include <utility>

#include "base/hash.hpp"
#include "base/status.hpp"
#include "core/comm/gpu_backend.hpp"
#include "core/ep/ep_description.hpp"

namespace mep {
namespace {

EpDeviceOptions device_options(const mep_ep_config_t& config) {
  return {config.scale_layout == MEP_SCALE_COLUMN_MAJOR, config.num_sms};
}

mep_result_t make_buffers(Comm& comm, Backend& backend, const EpShape& shape,
                          const EpDeviceOptions& options, std::unique_ptr<EpBuffers>* out) {
  if (GpuBackend* gpu = backend.gpu_backend()) return gpu->make_ep_buffers(shape, options, out);
  *out = make_host_buffers(comm, shape);
  return MEP_SUCCESS;
}

}  // namespace

EpObject::EpObject(Comm& comm, const EpShape& shape, const EpDeviceOptions& options,
                   std::unique_ptr<EpBuffers> buffers)
    : comm_(comm), shape_(shape), options_(options), buffers_(std::move(buffers)) {}

EpObject::~EpObject() {
  buffers_->leave();
  if (is_client_) comm_.remove_client(this);
}

mep_result_t EpObject::open(const char* name) {
  EpAgreement agreed;
  MEP_TRY(agreed.reach(comm_, shape_, name));
  name_.swap(agreed.name);
  window_seed_ = agreed.window_seed;
  MEP_TRY(buffers_->meet(&agreed.values));
  MEP_TRY(step_together(comm_, "make its part of an EP object",
                        [&] { return buffers_->offer(name_, window_seed_); }));
  MEP_TRY(step_together(comm_, "connect its part of an EP object",
                        [&] { return connect(Deadline::after_ms(comm_.timeout_ms())); }));
  return buffers_->finish(&agreed.values);
}

mep_result_t EpObject::connect(const Deadline& deadline) {
  const std::shared_ptr<const CommView> view = comm_.latest_view();
  MEP_TRY(buffers_->connect(view, deadline));
  comm_.add_client(this);
  is_client_ = true;
  if (comm_.latest_view() == view) return MEP_SUCCESS;
  return fail(MEP_ERR_PEER_FAILED, "the view changed while an EP object was made; make it again");
}

// --- Joiners --------------------------------------------------------------------------------------

void EpObject::describe_object(std::vector<std::byte>* out) const {
  EpDescription description{name_, window_seed_, shape_, {}, options_};
  {
    const std::lock_guard lock(map_mutex_);
    description.map = map_;
  }
  *out = encode_ep_description(description);
}

mep_result_t EpObject::attach(Comm& comm, Backend& backend, std::span<const std::byte> description,
                              const Deadline& deadline, std::unique_ptr<EpObject>* out) {
  EpDescription given;
  MEP_TRY(decode_ep_description(description, comm.rank(), comm.size(), &given));
  std::unique_ptr<EpBuffers> made;
  MEP_TRY(make_buffers(comm, backend, given.shape, given.options, &made));
  EpBuffers& buffers = *made;
  auto object = std::make_unique<EpObject>(comm, given.shape, given.options, std::move(made));
  object->name_ = std::move(given.name);
  object->window_seed_ = given.window_seed;
  MEP_TRY(buffers.offer(object->name_, given.window_seed));
  if (!given.map.empty()) {
    std::shared_ptr<const ExpertMap> map;
    MEP_TRY(make_expert_map(given.shape, given.map.data(), &map));
    MEP_TRY(buffers.use_map(map));
    object->map_ = std::move(given.map);
  }
  MEP_TRY(object->connect(deadline));
  buffers.finish_joined();
  *out = std::move(object);
  return MEP_SUCCESS;
}

mep_result_t EpObject::check_config(const EpShape& given, const EpDeviceOptions& options) const {
  const struct {
    const char* field;
    uint64_t mine;
    uint64_t theirs;
  } fields[] = {{"max_tokens_per_rank", given.max_tokens, shape_.max_tokens},
                {"hidden", given.hidden, shape_.hidden},
                {"top_k", given.top_k, shape_.top_k},
                {"layout", given.layout, shape_.layout},
                {"expert_alignment", given.expert_alignment, shape_.expert_alignment},
                {"num_experts", given.experts, shape_.experts},
                {"experts_per_rank", given.local_experts, shape_.local_experts},
                {"num_buffers", given.buffers, shape_.buffers},
                {"max_replicas", given.max_replicas, shape_.max_replicas},
                {"input_type", given.input_type, shape_.input_type},
                {"wire_type", given.wire_type, shape_.wire_type},
                {"combine_type", given.combine_type, shape_.combine_type},
                {"scale_type", given.scale_type, shape_.scale_type},
                {"row_bytes", given.row_bytes, shape_.row_bytes},
                {"side_bytes", given.side_bytes, shape_.side_bytes},
                {"on_loss", given.on_loss, shape_.on_loss},
                {"scale_layout", options.column_major, options_.column_major}};
  for (const auto& each : fields) {
    if (each.mine == each.theirs) continue;
    return fail(MEP_ERR_MISMATCH, "%s is %llu here, but %llu in the members' EP object %s",
                each.field, static_cast<unsigned long long>(each.mine),
                static_cast<unsigned long long>(each.theirs), name_.c_str());
  }
  return MEP_SUCCESS;
}

// --- The expert map -------------------------------------------------------------------------------

mep_result_t EpObject::set_expert_map(const int32_t* map) {
  const size_t entries = size_t{shape_.experts} * shape_.max_replicas;
  std::shared_ptr<const ExpertMap> made;
  std::vector<int32_t> kept;
  RankValues hashes;
  MEP_TRY(step_together(comm_, "read an expert map", [&]() -> mep_result_t {
    hashes.reserve(comm_, 1);
    if (map == nullptr) return MEP_SUCCESS;
    MEP_TRY(make_expert_map(shape_, map, &made));
    kept.assign(map, map + entries);
    return MEP_SUCCESS;
  }));
  const uint64_t own = map != nullptr ? hash_bytes(1, map, entries * sizeof(int32_t)) : 0;
  MEP_TRY(hashes.gather(comm_, {&own, 1}));
  const uint32_t other = hashes.first_other(comm_.size());
  if (other != comm_.size()) {
    return fail(MEP_ERR_MISMATCH, "ranks 0 and %u gave different expert maps; the old one stays",
                other);
  }
  MEP_TRY(buffers_->use_map(made));
  const std::lock_guard lock(map_mutex_);
  map_.swap(kept);
  return MEP_SUCCESS;
}

// --- On which backend -----------------------------------------------------------------------------

mep_result_t make_ep_object(Comm& comm, Backend& backend, const EpShape& shape,
                            const mep_ep_config_t& config, std::unique_ptr<EpObject>* out) {
  const EpDeviceOptions options = device_options(config);
  std::unique_ptr<EpBuffers> buffers;
  MEP_TRY(make_buffers(comm, backend, shape, options, &buffers));
  *out = std::make_unique<EpObject>(comm, shape, options, std::move(buffers));
  return MEP_SUCCESS;
}

mep_result_t attach_ep_object(Comm& comm, const EpShape& shape, const mep_ep_config_t& config,
                              std::unique_ptr<EpObject>* out) {
  const std::string name = config.name != nullptr ? config.name : "ep0";
  const ViewParticipant* unattached = comm.clients().find_unattached(name);
  if (unattached == nullptr) {
    return fail(MEP_ERR_NOT_FOUND, "this rank joined no EP object named \"%s\"", name.c_str());
  }
  // Only EP objects are kept so.
  MEP_TRY(static_cast<const EpObject*>(unattached)->check_config(shape, device_options(config)));
  out->reset(static_cast<EpObject*>(comm.clients().take_unattached(name).release()));
  return MEP_SUCCESS;
}

mep_result_t estimate_ep_object(Backend& backend, const EpShape& shape,
                                const mep_ep_config_t& config, mep_ep_size_t* out) {
  if (const GpuBackend* gpu = backend.gpu_backend()) {
    return gpu->estimate_ep_buffers(shape, device_options(config), out);
  }
  estimate_host_buffers(shape, out);
  return MEP_SUCCESS;
}

}  // namespace mep
