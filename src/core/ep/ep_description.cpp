#include "core/ep/ep_description.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/status.hpp"
#include "core/bootstrap/byte_codec.hpp"

namespace mep {
namespace {

// Its bytes travel: padding would be what was in memory before.
static_assert(std::is_trivially_copyable_v<EpShape> &&
              std::has_unique_object_representations_v<EpShape>);

mep_result_t malformed() {
  return fail(MEP_ERR_DENIED, "a member sent a malformed description of an EP object");
}

// A member's numbers become sizes and places: they must be such as a caller here could have given.
mep_result_t check_shape(std::span<const std::byte> bytes, uint32_t rank, uint32_t ranks,
                         EpShape* out) {
  if (bytes.size() != sizeof(EpShape)) return malformed();
  std::memcpy(out, bytes.data(), sizeof *out);
  out->rank = rank;
  mep_ep_config_t config{};
  config.struct_size = sizeof config;
  config.layout = out->layout;
  config.expert_alignment = out->expert_alignment;
  config.max_tokens_per_rank = out->max_tokens;
  config.hidden = out->hidden;
  config.top_k = out->top_k;
  config.num_experts = out->experts;
  config.experts_per_rank = out->local_experts;
  config.num_buffers = out->buffers;
  config.max_replicas = out->max_replicas;
  if (!out->is_opaque()) {
    config.input_type = out->input_type;
    config.wire_type = out->wire_type;
    config.scale_type = out->scale_type;
  }
  config.combine_type = out->combine_type;
  config.row_bytes = out->row_bytes;
  config.side_bytes = out->side_bytes;
  config.flags = out->flags;
  config.on_loss = out->on_loss;
  EpShape checked;
  MEP_TRY(resolve_ep_config(rank, ranks, config, &checked));
  const bool same = checked.ranks == out->ranks && checked.local_experts == out->local_experts &&
                    checked.row_groups == out->row_groups && checked.row_k == out->row_k &&
                    checked.expert_alignment == out->expert_alignment &&
                    checked.buffers == out->buffers && checked.max_replicas == out->max_replicas &&
                    checked.input_type == out->input_type && checked.wire_type == out->wire_type &&
                    checked.combine_type == out->combine_type &&
                    checked.side_bytes == out->side_bytes;
  return same ? MEP_SUCCESS : malformed();
}

}  // namespace

std::vector<std::byte> encode_ep_description(const EpDescription& description) {
  ByteWriter writer;
  writer.text(description.name);
  writer.number(description.window_seed);
  std::vector<std::byte> shape(sizeof(EpShape));
  std::memcpy(shape.data(), &description.shape, shape.size());
  writer.block(shape);
  writer.number(static_cast<uint32_t>(description.map.size()));
  for (const int32_t entry : description.map) writer.number(entry);
  writer.number(static_cast<uint8_t>(description.options.column_major));
  writer.number(description.options.num_sms);
  return writer.take();
}

mep_result_t decode_ep_description(std::span<const std::byte> bytes, uint32_t rank, uint32_t ranks,
                                   EpDescription* out) {
  ByteReader reader(bytes);
  out->name = reader.text(bytes.size());
  out->window_seed = reader.number<uint64_t>();
  const std::vector<std::byte> shape_bytes = reader.block(sizeof(EpShape));
  // No more entries than there are bytes: a number that is too large ends as malformed.
  out->map.resize(std::min<size_t>(reader.number<uint32_t>(), bytes.size()));
  for (int32_t& entry : out->map) entry = reader.number<int32_t>();
  const auto column_major = reader.number<uint8_t>();
  out->options = {column_major == 1, reader.number<uint32_t>()};
  if (!reader.complete() || column_major > 1) return malformed();
  MEP_TRY(check_shape(shape_bytes, rank, ranks, &out->shape));
  const EpShape& shape = out->shape;
  if (!out->map.empty() && out->map.size() != size_t{shape.experts} * shape.max_replicas) {
    return fail(MEP_ERR_DENIED, "a member sent a malformed expert map");
  }
  return MEP_SUCCESS;
}

}  // namespace mep
