#include "core/ep/ep_object.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "base/status.hpp"
#include "core/ep/ep_description.hpp"

namespace mep {

namespace {

// What one rank lacks memory for, all learn of: it is a result like others.
template <typename Body>
mep_result_t or_no_memory(Body&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(MEP_ERR_NO_MEMORY, "out of memory");
  }
}

}  // namespace

EpObject::EpObject(Comm& comm, const EpShape& shape)
    : comm_(comm), shape_(shape), layout_(shape_) {}

EpObject::~EpObject() {
  if (is_client_) comm_.remove_client(this);
}

mep_result_t agree_on_ep_number(Comm& comm, uint32_t* number) {
  const uint64_t own = comm.next_ep_number();
  std::vector<uint64_t> all;
  MEP_TRY(gather_values(comm, &own, 1, &all));
  *number = static_cast<uint32_t>(*std::max_element(all.begin(), all.end()));
  comm.set_ep_number(*number + 1);
  return MEP_SUCCESS;
}

mep_result_t EpObject::create(Comm& comm, const EpShape& shape, const char* name,
                              std::unique_ptr<EpObject>* out) {
  uint32_t number = 0;
  MEP_TRY(agree_on_ep_number(comm, &number));
  const std::string full_name = name != nullptr ? name : "ep" + std::to_string(number);
  std::unique_ptr<EpObject> object(new EpObject(comm, shape));
  // Two objects of one name, one after the other, are two.
  const uint64_t seed = hash_bytes(comm.id(), &number, sizeof number);
  MEP_TRY(agree_on_ep_config(comm, shape, full_name));
  std::vector<uint64_t> values{0};
  object->name_ = full_name;
  object->window_seed_ = hash_bytes(seed, full_name.data(), full_name.size());
  const auto offered = or_no_memory([&] { return object->offer_windows(); });
  MEP_TRY(object->agree_on_status(offered, "could not make its part of an EP object", &values));
  // Who maps whom: a rank's row has a bit for each rank whose windows it reads in place.
  const size_t words = (size_t{shape.ranks} + 63) / 64;
  const mep_result_t connected =
      or_no_memory([&] { return object->connect_windows(Deadline::after_ms(comm.timeout_ms())); });
  values.assign(1 + words, 0);
  for (uint32_t rank = 0; connected == MEP_SUCCESS && rank < shape.ranks; ++rank) {
    if (object->buffers_[0]->maps(rank)) values[1 + rank / 64] |= uint64_t{1} << (rank % 64);
  }
  MEP_TRY(
      object->agree_on_status(connected, "could not connect its part of an EP object", &values));
  std::vector<uint8_t> pulls(shape.ranks, 0);
  for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
    const uint64_t word = values[rank * (1 + words) + 1 + shape.rank / 64];
    pulls[rank] = (word >> (shape.rank % 64)) & 1;
  }
  for (const auto& buffer : object->buffers_) buffer->set_pulls(pulls);
  *out = std::move(object);
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
  std::unique_ptr<EpObject> object(new EpObject(comm, given.shape));
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
                {"num_experts", given.experts, shape_.experts},
                {"experts_per_rank", given.local_experts, shape_.local_experts},
                {"num_buffers", given.buffers, shape_.buffers},
                {"max_replicas", given.max_replicas, shape_.max_replicas},
                {"input_type", given.input_type, shape_.input_type},
                {"wire_type", given.wire_type, shape_.wire_type},
                {"combine_type", given.combine_type, shape_.combine_type},
                {"scale_type", given.scale_type, shape_.scale_type},
                {"receive_layout", given.slotted ? 1u : 0u, shape_.slotted ? 1u : 0u}};
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
    MEP_TRY(buffer->receive(deadline));
    buffer->start(view);
  }
  comm_.add_client(this);
  is_client_ = true;
  if (comm_.latest_view() == view) return MEP_SUCCESS;
  return fail(MEP_ERR_PEER_FAILED, "the view changed while an EP object was made; make it again");
}

// All ranks learn whether all succeeded. values[0] is the status; behind it what else is exchanged,
// afterwards the same of every rank.
mep_result_t EpObject::agree_on_status(mep_result_t own, const char* what,
                                       std::vector<uint64_t>* values) {
  const std::string own_text = own == MEP_SUCCESS ? "" : last_error_text();
  (*values)[0] = static_cast<uint64_t>(-static_cast<int64_t>(own));
  std::vector<uint64_t> all;
  MEP_TRY(gather_values(comm_, values->data(), values->size(), &all));
  if (own != MEP_SUCCESS) return fail(own, "%s", own_text.c_str());
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    const uint64_t status = all[rank * values->size()];
    if (status == 0) continue;
    const auto result = static_cast<mep_result_t>(-static_cast<int64_t>(status & 0xff));
    return fail(result, "rank %u %s: %s", rank, what, mep_result_string(result));
  }
  *values = std::move(all);
  return MEP_SUCCESS;
}

bool EpObject::busy() {
  return std::any_of(buffers_.begin(), buffers_.end(),
                     [](const auto& buffer) { return buffer->in_flight(); });
}

// --- The expert map -------------------------------------------------------------------------------

mep_result_t EpObject::set_expert_map(const int32_t* map) {
  std::shared_ptr<const ExpertMap> made;
  uint64_t hash = 0;
  if (map != nullptr) {
    MEP_TRY(make_expert_map(shape_, map, &made));
    hash = hash_bytes(1, map, size_t{shape_.experts} * shape_.max_replicas * sizeof(int32_t));
  }
  std::vector<uint64_t> all;
  MEP_TRY(gather_values(comm_, &hash, 1, &all));
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    if (all[rank] == all[0]) continue;
    return fail(MEP_ERR_MISMATCH, "ranks 0 and %u gave different expert maps; the old one stays",
                rank);
  }
  const std::lock_guard lock(map_mutex_);
  map_ = std::move(made);
  map_entries_.clear();
  if (map != nullptr) {
    map_entries_.assign(map, map + size_t{shape_.experts} * shape_.max_replicas);
  }
  return MEP_SUCCESS;
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
                       const membership::Proposal* decision) {
  for (const auto& buffer : buffers_) buffer->install(change, decision);
  if (change != nullptr) installed_epoch_ = change->view->epoch;
}

// --- Sizes ----------------------------------------------------------------------------------------

// Uniform routing gives each rank as many rows as it sends: M * K.
void estimate_ep_size(const EpShape& shape, mep_ep_size_t* out) {
  const EpLayout layout(shape);
  const uint64_t entries = uint64_t{shape.max_tokens} * shape.top_k;
  const uint64_t row = shape.wire_row_bytes() + shape.scale_row_bytes() + sizeof(uint32_t);
  out->flags = 0;
  out->window_bytes = layout.bytes() * shape.buffers;
  out->resident_bytes = shape.buffers * entries * (row + 2 * shape.combine_row_bytes());
  const uint64_t kept = shape.rows() * 2 * sizeof(uint32_t);
  const uint64_t routing = entries * (sizeof(RouteEntry) + sizeof(float) + sizeof(uint32_t)) +
                           shape.places() * uint64_t{4} * sizeof(uint32_t) +
                           shape.experts * sizeof(uint64_t);
  out->private_bytes = shape.buffers * (kept + 2 * routing);
}

}  // namespace mep
