#include "core/ep/ep_object.hpp"

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "base/status.hpp"
#include "core/ep/ep_description.hpp"
#include "core/topo/usable_memory.hpp"

namespace mep {

EpObject::EpObject(Comm& comm, const EpShape& shape)
    : comm_(comm), shape_(shape), layout_(shape_) {}

EpObject::~EpObject() {
  if (is_client_) comm_.remove_client(this);
}

mep_result_t EpObject::open(const char* name) {
  EpAgreement agreed;
  MEP_TRY(agreed.reach(comm_, shape_, name));
  name_.swap(agreed.name);
  window_seed_ = agreed.window_seed;
  MEP_TRY(step_together(comm_, "make its part of an EP object", [&] { return offer_windows(); }));
  MEP_TRY(step_together(comm_, "connect its part of an EP object", [&]() -> mep_result_t {
    MEP_TRY(connect_windows(Deadline::after_ms(comm_.timeout_ms())));
    warn_of_memory();
    return MEP_SUCCESS;
  }));
  return exchange_pulls(&agreed.values);
}

// Windows take memory as they are written: what is too much ends in an out-of-memory kill, later.
void EpObject::warn_of_memory() const {
  // Ranks that map each other share the machine's memory.
  uint64_t ranks = 0;
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    const bool maps = ((buffers_[0]->mapped_bits()[rank / 64] >> (rank % 64)) & 1) != 0;
    const bool is_here = rank == shape_.rank || maps;
    if (is_here && ranks == 0 && rank != shape_.rank) return;
    ranks += is_here ? 1 : 0;
  }
  const uint64_t own = (layout_.bytes() + EpExpansion::row_memory(shape_)) * shape_.buffers;
  const uint64_t there = usable_memory();
  if (there == 0 || own <= there / ranks) return;
  log(LogLevel::kWarn,
      "EP object %s: its rows can take %llu bytes for each of %llu ranks of this host, which "
      "has %llu bytes of memory (machine or control group): lower max_tokens_per_rank, hidden, "
      "experts_per_rank or num_buffers",
      name_.c_str(), static_cast<unsigned long long>(own), static_cast<unsigned long long>(ranks),
      static_cast<unsigned long long>(there));
}

// Tells all ranks who maps whom: a rank's row has a bit for each rank whose windows it reads in place.
mep_result_t EpObject::exchange_pulls(RankValues* rows) {
  const std::span<const uint64_t> own = buffers_[0]->mapped_bits();
  MEP_TRY(rows->gather(comm_, own));
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    const bool pulls = ((rows->of(rank, shape_.rank / 64) >> (shape_.rank % 64)) & 1) != 0;
    for (const auto& buffer : buffers_) buffer->set_pulls(rank, pulls);
  }
  return MEP_SUCCESS;
}

void EpObject::describe_object(std::vector<std::byte>* out) const {
  EpDescription description{name_, window_seed_, shape_, {}};
  {
    const std::lock_guard lock(map_mutex_);
    description.map = map_entries_;
  }
  *out = encode_ep_description(description);
}

mep_result_t EpObject::attach(Comm& comm, std::span<const std::byte> description,
                              const Deadline& deadline, std::unique_ptr<EpObject>* out) {
  EpDescription given;
  MEP_TRY(decode_ep_description(description, comm.rank(), comm.size(), &given));
  auto object = std::make_unique<EpObject>(comm, given.shape);
  object->name_ = std::move(given.name);
  object->window_seed_ = given.window_seed;
  if (!given.map.empty()) {
    MEP_TRY(make_expert_map(given.shape, given.map.data(), &object->map_));
    object->map_entries_ = std::move(given.map);
  }
  MEP_TRY(object->offer_windows());
  MEP_TRY(object->connect_windows(deadline));
  for (const auto& buffer : object->buffers_) buffer->pull_where_mapped();
  *out = std::move(object);
  return MEP_SUCCESS;
}

mep_result_t EpObject::check_shape(const EpShape& given) const {
  const struct {
    const char* field;
    uint64_t mine;
    uint64_t theirs;
  } fields[] = {{"max_tokens_per_rank", given.max_tokens, shape_.max_tokens},
                {"hidden", given.hidden, shape_.hidden},
                {"top_k", given.top_k, shape_.top_k},
                {"mode", given.mode, shape_.mode},
                {"expert_alignment", given.expert_alignment, shape_.expert_alignment},
                {"num_experts", given.experts, shape_.experts},
                {"experts_per_rank", given.local_experts, shape_.local_experts},
                {"num_buffers", given.buffers, shape_.buffers},
                {"max_replicas", given.max_replicas, shape_.max_replicas},
                {"input_type", given.input_type, shape_.input_type},
                {"wire_type", given.wire_type, shape_.wire_type},
                {"combine_type", given.combine_type, shape_.combine_type},
                {"scale_type", given.scale_type, shape_.scale_type},
                {"receive_layout", given.receive_layout, shape_.receive_layout}};
  for (const auto& each : fields) {
    if (each.mine == each.theirs) continue;
    return fail(MEP_ERR_MISMATCH, "%s is %llu here, but %llu in the members' EP object %s",
                each.field, static_cast<unsigned long long>(each.mine),
                static_cast<unsigned long long>(each.theirs), name_.c_str());
  }
  return MEP_SUCCESS;
}

mep_result_t EpObject::offer_windows() {
  if (layout_.bytes() == 0) {
    return fail(MEP_ERR_NO_MEMORY, "an EP buffer of this config is larger than 2^64 bytes");
  }
  for (uint32_t i = 0; i < shape_.buffers; ++i) {
    const uint64_t id = hash_bytes(window_seed_, &i, sizeof i);
    buffers_.push_back(std::make_unique<EpBuffer>(comm_, shape_, layout_, id));
    MEP_TRY(buffers_.back()->offer());
  }
  return MEP_SUCCESS;
}

mep_result_t EpObject::connect_windows(const Deadline& deadline) {
  const std::shared_ptr<const CommView> view = comm_.latest_view();
  for (const auto& buffer : buffers_) {
    MEP_TRY(buffer->receive(*view, deadline));
    buffer->start(view);
  }
  comm_.add_client(this);
  is_client_ = true;
  if (comm_.latest_view() == view) return MEP_SUCCESS;
  return fail(MEP_ERR_PEER_FAILED, "the view changed while an EP object was made; make it again");
}

bool EpObject::busy() {
  return std::any_of(buffers_.begin(), buffers_.end(),
                     [](const auto& buffer) { return buffer->in_flight(); });
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
  MEP_TRY(agree_on_expert_map(comm_, map, entries, &hashes));
  const std::lock_guard lock(map_mutex_);
  map_.swap(made);
  map_entries_.swap(kept);
  return MEP_SUCCESS;
}

mep_result_t agree_on_expert_map(Comm& comm, const int32_t* map, size_t entries,
                                 RankValues* hashes) {
  const uint64_t own = map != nullptr ? hash_bytes(1, map, entries * sizeof(int32_t)) : 0;
  MEP_TRY(hashes->gather(comm, {&own, 1}));
  const uint32_t other = hashes->first_other(comm.size());
  if (other == comm.size()) return MEP_SUCCESS;
  return fail(MEP_ERR_MISMATCH, "ranks 0 and %u gave different expert maps; the old one stays",
              other);
}

std::shared_ptr<const ExpertMap> EpObject::expert_map() const {
  const std::lock_guard lock(map_mutex_);
  return map_;
}

// --- View changes ---------------------------------------------------------------------------------

void EpObject::describe(std::vector<membership::ChannelState>* channels) const {
  for (const auto& buffer : buffers_) channels->push_back(buffer->state());
}

bool EpObject::holds(uint64_t channel, uint64_t seq) const {
  return std::all_of(buffers_.begin(), buffers_.end(), [&](const auto& buffer) {
    const membership::ChannelState state = buffer->state();
    return state.channel != channel || state.done >= seq;
  });
}

void EpObject::freeze(std::vector<membership::ChannelState>* channels) {
  for (const auto& buffer : buffers_) channels->push_back(buffer->freeze());
  for (const auto& buffer : buffers_) buffer->await_posters();
}

void EpObject::terminate() {
  std::vector<membership::ChannelState> unused;
  freeze(&unused);
}

bool EpObject::quiesced() const {
  return std::all_of(buffers_.begin(), buffers_.end(),
                     [this](const auto& buffer) { return buffer->quiesced(installed_epoch_); });
}

void EpObject::prepare() {
  for (const auto& buffer : buffers_) buffer->prepare();
}

void EpObject::install(const std::shared_ptr<const CommChange>& change,
                       const membership::Proposal* committed) {
  for (const auto& buffer : buffers_) buffer->install(change, committed);
  if (change != nullptr) installed_epoch_ = change->view->epoch;
}

// --- Sizes ----------------------------------------------------------------------------------------

// Uniform routing gives each rank as many rows as it sends: M * K.
void estimate_ep_size(const EpShape& shape, mep_ep_size_t* out) {
  const EpLayout layout(shape);
  const uint64_t entries = uint64_t{shape.max_tokens} * shape.row_k;
  // In high throughput a row has K experts and weights, kept in the window and beside it.
  const uint64_t topk = shape.high_throughput() ? uint64_t{shape.top_k} * sizeof(uint32_t) : 0;
  const uint64_t row =
      shape.wire_row_bytes() + shape.scale_row_bytes() + sizeof(uint32_t) + 2 * topk;
  out->flags = 0;
  out->window_bytes = layout.bytes() * shape.buffers;
  out->resident_bytes = shape.buffers * entries * (row + 2 * shape.combine_row_bytes());
  const uint64_t kept = shape.rows() * (2 * sizeof(uint32_t) + topk);
  const uint64_t routing = entries * (sizeof(RouteEntry) + sizeof(float) + sizeof(uint32_t)) +
                           shape.columns() * uint64_t{4} * sizeof(uint32_t) +
                           shape.experts * sizeof(uint64_t) + 3 * entries * topk;
  // Each received row has the places of its expanded rows, and the values that go back; an expanded row says what is zeros.
  const uint64_t expanded = shape.expanded()
                                ? EpExpansion::row_memory(shape) + shape.rows() * 2 * topk +
                                      shape.expanded_rows() * (shape.has_scales() ? 2 : 1)
                                : 0;
  out->private_bytes = shape.buffers * (kept + 2 * routing + expanded);
}

}  // namespace mep
