#include "core/ep/host/host_buffers.hpp"

#include <algorithm>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "core/comm/backend.hpp"
#include "core/topo/usable.hpp"

namespace mep {

HostBuffers::HostBuffers(Comm& comm, const EpShape& shape)
    : comm_(comm), shape_(shape), layout_(shape_) {}

// --- Creation -------------------------------------------------------------------------------------

mep_result_t HostBuffers::offer(const std::string& name, uint64_t window_seed) {
  name_ = name;
  if (layout_.bytes() == 0) {
    return fail(MEP_ERR_NO_MEMORY, "an EP buffer of this config is larger than 2^64 bytes");
  }
  for (uint32_t i = 0; i < shape_.buffers; ++i) {
    const uint64_t id = hash_bytes(window_seed, &i, sizeof i);
    buffers_.push_back(std::make_unique<EpBuffer>(comm_, shape_, layout_, id));
    MEP_TRY(buffers_.back()->offer());
  }
  return MEP_SUCCESS;
}

mep_result_t HostBuffers::connect(const std::shared_ptr<const CommView>& view,
                                  const Deadline& deadline) {
  for (const auto& buffer : buffers_) {
    MEP_TRY(buffer->receive(*view, deadline));
    buffer->start(view);
  }
  warn_of_memory();
  return MEP_SUCCESS;
}

// Windows take memory as they are written: what is too much ends in an out-of-memory kill, later.
void HostBuffers::warn_of_memory() const {
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
mep_result_t HostBuffers::finish(RankValues* rows) {
  MEP_TRY(rows->gather(comm_, buffers_[0]->mapped_bits()));
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    const bool pulls = ((rows->of(rank, shape_.rank / 64) >> (shape_.rank % 64)) & 1) != 0;
    for (const auto& buffer : buffers_) buffer->set_pulls(rank, pulls);
  }
  return MEP_SUCCESS;
}

void HostBuffers::finish_joined() {
  for (const auto& buffer : buffers_) buffer->pull_where_mapped();
}

// --- The user's thread ----------------------------------------------------------------------------

bool HostBuffers::in_flight() {
  return std::any_of(buffers_.begin(), buffers_.end(),
                     [](const auto& buffer) { return buffer->in_flight(); });
}

mep_result_t HostBuffers::end_handle(EpHandle& handle) {
  EpBuffer& buffer = at(handle.buffer);
  if (buffer.uses(handle) && buffer.in_flight()) {
    return fail(MEP_ERR_BUSY,
                "an operation of the handle was sent and has not been received: receive "
                "it first");
  }
  buffer.forget(handle);
  return MEP_SUCCESS;
}

mep_result_t HostBuffers::use_map(const std::shared_ptr<const ExpertMap>& map) {
  const std::lock_guard lock(map_mutex_);
  map_ = map;
  return MEP_SUCCESS;
}

std::shared_ptr<const ExpertMap> HostBuffers::map() const {
  const std::lock_guard lock(map_mutex_);
  return map_;
}

void HostBuffers::fill_view(uint32_t buffer, mep_ep_view_t* view) const {
  buffers_[buffer]->fill_view(view);
}

std::shared_ptr<const void> HostBuffers::take_memory() {
  auto memory = std::make_shared<std::vector<std::shared_ptr<const void>>>();
  for (const auto& buffer : buffers_) memory->push_back(buffer->take_memory());
  return memory;
}

mep_result_t HostBuffers::dispatch(EpHandle& handle, const DispatchInput* send,
                                   const DispatchOutput* receive, void* stream) {
  MEP_TRY(check_no_stream(stream));
  return at(handle.buffer).dispatch(handle, send, receive, map().get());
}

mep_result_t HostBuffers::combine(EpHandle& handle, const CombineInput* send,
                                  const CombineOutput* receive, void* stream) {
  MEP_TRY(check_no_stream(stream));
  return at(handle.buffer).combine(handle, send, receive);
}

mep_result_t HostBuffers::last_op(uint32_t buffer, mep_op_info_t* info) {
  return at(buffer).last_op(info);
}

// --- View changes ---------------------------------------------------------------------------------

void HostBuffers::describe(std::vector<membership::ChannelState>* channels) const {
  for (const auto& buffer : buffers_) channels->push_back(buffer->state());
}

bool HostBuffers::holds(uint64_t channel, uint64_t seq) const {
  return std::all_of(buffers_.begin(), buffers_.end(), [&](const auto& buffer) {
    const membership::ChannelState state = buffer->state();
    return state.channel != channel || state.done >= seq;
  });
}

void HostBuffers::stop() {
  for (const auto& buffer : buffers_) buffer->stop();
}

bool HostBuffers::is_still() const {
  return std::all_of(buffers_.begin(), buffers_.end(),
                     [](const auto& buffer) { return buffer->is_still(); });
}

void HostBuffers::freeze(std::vector<membership::ChannelState>* channels) {
  for (const auto& buffer : buffers_) channels->push_back(buffer->freeze());
}

void HostBuffers::terminate() {
  for (const auto& buffer : buffers_) buffer->close();
}

bool HostBuffers::quiesced() const {
  return std::all_of(buffers_.begin(), buffers_.end(),
                     [this](const auto& buffer) { return buffer->quiesced(installed_epoch_); });
}

void HostBuffers::prepare() {
  for (const auto& buffer : buffers_) buffer->prepare();
}

void HostBuffers::install(const std::shared_ptr<const CommChange>& change,
                          const membership::Proposal* committed) {
  for (const auto& buffer : buffers_) buffer->install(change, committed);
  if (change != nullptr) installed_epoch_ = change->view->epoch;
}

std::unique_ptr<EpBuffers> make_host_buffers(Comm& comm, const EpShape& shape) {
  return std::make_unique<HostBuffers>(comm, shape);
}

// --- Sizes ----------------------------------------------------------------------------------------

// Uniform routing gives each rank as many rows as it sends: M * K.
void estimate_host_buffers(const EpShape& shape, mep_ep_size_t* out) {
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
  const uint64_t staged =
      shape.quantizes() ? shape.max_tokens * (shape.wire_row_bytes() + shape.scale_row_bytes()) : 0;
  out->private_bytes = shape.buffers * (kept + 2 * routing + expanded + staged);
}

}  // namespace mep
