#include "core/ep/ep_config.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/hash.hpp"
#include "base/status.hpp"
#include "kernels/host/kernels.hpp"

namespace mep {
namespace {

constexpr size_t kRowUnitBytes = 16;
constexpr uint32_t kSideUnitBytes = 4;
constexpr uint32_t kMaxSideBytes = 1u << 16;
// Counts of rows and of (token, k) entries are 31-bit numbers.
constexpr uint64_t kMaxCount = std::numeric_limits<int32_t>::max();

mep_result_t refuse_unbuilt(const mep_ep_config_t& config, bool on_device) {
  if (config.scale_layout == MEP_SCALE_COLUMN_MAJOR && !on_device) {
    return fail(MEP_ERR_UNSUPPORTED,
                "scale_layout: column-major scales are not built for host "
                "memory");
  }
  if (config.expert_alignment > 1 && config.layout < MEP_EP_HIGH_THROUGHPUT) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "expert_alignment belongs to MEP_EP_HIGH_THROUGHPUT and MEP_EP_EXPANDED");
  }
  if (config.on_loss == MEP_EP_LOSS_UNIFORM && on_device) {
    return fail(MEP_ERR_UNSUPPORTED,
                "on_loss: with MEP_EP_LOSS_UNIFORM dispatch and combine would agree on their "
                "results, which is not built for a GPU");
  }
  if (config.num_sms != 0 && !on_device) {
    return fail(MEP_ERR_UNSUPPORTED, "num_sms is for CUDA communicators; this is a host one");
  }
  return MEP_SUCCESS;
}

mep_result_t check_enumerators(const mep_ep_config_t& config) {
  constexpr uint32_t kFlags = MEP_EP_NO_ROW_MEMORY | MEP_EP_NO_COMBINE_MEMORY;
  if ((config.flags & ~kFlags) != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "flags is %#x; known are MEP_EP_NO_ROW_MEMORY and MEP_EP_NO_COMBINE_MEMORY",
                config.flags);
  }
  if (config.reserved != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "reserved is %u, it must be 0", config.reserved);
  }
  if (config.on_loss > MEP_EP_LOSS_IN_STEP) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "on_loss %u does not exist", config.on_loss);
  }
  if ((config.flags & MEP_EP_NO_ROW_MEMORY) != 0 && config.layout != MEP_EP_EXPANDED) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "flags: MEP_EP_NO_ROW_MEMORY belongs to MEP_EP_EXPANDED");
  }
  if ((config.flags & MEP_EP_NO_COMBINE_MEMORY) != 0 && config.layout != MEP_EP_HIGH_THROUGHPUT) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "flags: MEP_EP_NO_COMBINE_MEMORY belongs to MEP_EP_HIGH_THROUGHPUT");
  }
  if (config.layout > MEP_EP_EXPANDED) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "layout %u does not exist", config.layout);
  }
  if (!scale_type_exists(config.scale_type)) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "scale_type %u does not exist", config.scale_type);
  }
  if (config.scale_layout > MEP_SCALE_COLUMN_MAJOR) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "scale_layout %u does not exist", config.scale_layout);
  }
  return MEP_SUCCESS;
}

// places: for experts, on all ranks.
mep_result_t resolve_replicas(const mep_ep_config_t& config, uint64_t places, EpShape* shape) {
  shape->buffers = config.num_buffers != 0 ? config.num_buffers : 2;
  if (shape->buffers > MEP_MAX_EP_BUFFERS) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "num_buffers is %u; 1 to %d work", shape->buffers,
                MEP_MAX_EP_BUFFERS);
  }
  shape->max_replicas = config.max_replicas != 0 ? config.max_replicas : 1;
  if (shape->max_replicas > places) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "max_replicas is %u; there are %llu places for experts",
                shape->max_replicas, static_cast<unsigned long long>(places));
  }
  if (uint64_t{shape->experts} * shape->max_replicas > kMaxMapEntries) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "num_experts %u with max_replicas %u gives an expert map of more than 2^27 entries",
                shape->experts, shape->max_replicas);
  }
  return MEP_SUCCESS;
}

mep_result_t resolve_counts(const mep_ep_config_t& config, EpShape* shape) {
  const struct {
    const char* name;
    uint32_t value;
  } required[] = {{"max_tokens_per_rank", config.max_tokens_per_rank},
                  {"hidden", config.hidden},
                  {"top_k", config.top_k},
                  {"num_experts", config.num_experts}};
  for (const auto& field : required) {
    if (field.value == 0) {
      return fail(MEP_ERR_INVALID_ARGUMENT, "%s is 0; it must be given", field.name);
    }
  }
  if (config.top_k > MEP_MAX_TOP_K) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "top_k is %u; at most %d work", config.top_k,
                MEP_MAX_TOP_K);
  }
  shape->max_tokens = config.max_tokens_per_rank;
  shape->hidden = config.hidden;
  if (config.top_k > config.num_experts) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "top_k is %u, but there are %u experts, and a token names each at most once",
                config.top_k, config.num_experts);
  }
  shape->top_k = config.top_k;
  shape->experts = config.num_experts;
  shape->local_experts = config.experts_per_rank;
  if (shape->local_experts == 0) {
    shape->local_experts = (shape->experts - 1) / shape->ranks + 1;  // the last ranks may have less
  }
  shape->layout = config.layout;
  shape->expert_alignment = config.expert_alignment != 0 ? config.expert_alignment : 1;
  shape->row_groups = shape->high_throughput() ? 1 : shape->local_experts;
  shape->row_k = shape->high_throughput() ? std::min(shape->top_k, shape->ranks) : shape->top_k;
  const uint64_t places = uint64_t{shape->ranks} * shape->local_experts;
  const uint64_t rows_per_expert = uint64_t{shape->ranks} * shape->max_tokens;
  if (places > kMaxCount || rows_per_expert > kMaxCount ||
      shape->local_experts > kMaxCount / rows_per_expert ||
      shape->max_tokens > kMaxCount / shape->top_k || shape->expert_alignment > kMaxCount ||
      shape->hidden > kMaxCount / 4) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "max_tokens_per_rank %u, hidden %u, top_k %u and experts_per_rank %u on %u ranks "
                "give more than 2^31 - 1 rows or entries",
                shape->max_tokens, shape->hidden, shape->top_k, shape->local_experts, shape->ranks);
  }
  if (shape->expanded() && shape->expanded_rows() > kMaxCount) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "max_tokens_per_rank %u, top_k %u, experts_per_rank %u and expert_alignment %u on "
                "%u ranks give more than 2^31 - 1 expanded rows",
                shape->max_tokens, shape->top_k, shape->local_experts, shape->expert_alignment,
                shape->ranks);
  }
  if (shape->experts > places) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "%u experts do not fit: %u ranks with experts_per_rank %u have %llu places",
                shape->experts, shape->ranks, shape->local_experts,
                static_cast<unsigned long long>(places));
  }
  return resolve_replicas(config, places, shape);
}

// Rows of bytes: no type but that of y and out.
mep_result_t resolve_opaque(const mep_ep_config_t& config, EpShape* shape) {
  if (config.input_type != 0 || config.wire_type != 0 || config.scale_type != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "row_bytes is %u, so input_type, wire_type and scale_type must be 0: rows have no "
                "types",
                config.row_bytes);
  }
  if (config.row_bytes % kRowUnitBytes != 0 || config.row_bytes > kMaxCount) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "row_bytes is %u; it must be a multiple of %zu below 2^31", config.row_bytes,
                kRowUnitBytes);
  }
  if (config.side_bytes % kSideUnitBytes != 0 || config.side_bytes > kMaxSideBytes) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "side_bytes is %u; it must be a multiple of %u of at most %u", config.side_bytes,
                kSideUnitBytes, kMaxSideBytes);
  }
  shape->row_bytes = config.row_bytes;
  shape->side_bytes = config.side_bytes;
  shape->input_type = MEP_UINT8;
  shape->wire_type = MEP_UINT8;
  shape->combine_type = config.combine_type != 0 ? config.combine_type : mep_dtype_t{MEP_BFLOAT16};
  return MEP_SUCCESS;
}

mep_result_t resolve_typed(const mep_ep_config_t& config, EpShape* shape) {
  if (config.side_bytes != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "side_bytes is %u without row_bytes", config.side_bytes);
  }
  shape->input_type = config.input_type != 0 ? config.input_type : mep_dtype_t{MEP_BFLOAT16};
  shape->wire_type = config.wire_type != 0 ? config.wire_type : shape->input_type;
  shape->scale_type = config.scale_type;
  shape->combine_type = config.combine_type;
  if (shape->combine_type == 0) {
    shape->combine_type =
        shape->input().has_scales() ? mep_dtype_t{MEP_BFLOAT16} : shape->input_type;
  }
  if (shape->input().kind == RowFormatKind::kNone) {
    return fail(MEP_ERR_UNSUPPORTED, "input_type %u with scale_type %u: formats of rows are%s",
                shape->input_type, shape->scale_type, kRowFormatNames);
  }
  if (shape->quantizes() && (shape->input().has_scales() || !shape->wire().has_scales())) {
    return fail(MEP_ERR_UNSUPPORTED,
                "wire_type %u with scale_type %u: it is the input type, or input without scales "
                "becomes one of%s",
                shape->wire_type, shape->scale_type, kScaledFormatNames);
  }
  if (!shape->wire().holds(shape->hidden)) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "hidden is %u; with scale_type %u it must be a multiple of %u", shape->hidden,
                shape->scale_type, shape->wire().group);
  }
  return MEP_SUCCESS;
}

mep_result_t resolve_types(const mep_ep_config_t& config, EpShape* shape) {
  MEP_TRY(config.row_bytes != 0 ? resolve_opaque(config, shape) : resolve_typed(config, shape));
  if (!is_float16_or_32(shape->combine_type)) {
    return fail(MEP_ERR_UNSUPPORTED, "combine_type %u: bf16, f16 and f32 are built",
                shape->combine_type);
  }
  for (const size_t bytes :
       {shape->input_row_bytes(), shape->wire_row_bytes(), shape->combine_row_bytes()}) {
    if (bytes % kRowUnitBytes != 0) {
      return fail(MEP_ERR_INVALID_ARGUMENT,
                  "hidden %u gives rows of %zu bytes; they must be multiples of %zu", shape->hidden,
                  bytes, kRowUnitBytes);
    }
  }
  return MEP_SUCCESS;
}

// A field that all ranks must give alike, in the order in which they are compared.
struct AgreedField {
  const char* name;
  uint64_t value;
};

constexpr size_t kAgreedFields = EpAgreement::kMostValues;

std::array<AgreedField, kAgreedFields> agreed_fields(const EpShape& shape,
                                                     const std::string& name) {
  return std::to_array<AgreedField>(
      {{"name", hash_bytes(0, name.data(), name.size())},
       {"max_tokens_per_rank", shape.max_tokens},
       {"hidden", shape.hidden},
       {"top_k", shape.top_k},
       {"num_experts", shape.experts},
       {"experts_per_rank", shape.local_experts},
       {"num_buffers", shape.buffers},
       {"input_type", shape.input_type},
       {"wire_type", shape.wire_type},
       {"combine_type", shape.combine_type},
       {"scale_type", shape.has_scales() ? shape.scale_type : 0},
       {"layout", shape.layout},
       {"expert_alignment", shape.expert_alignment},
       {"max_replicas", shape.max_replicas},
       {"row_bytes", shape.row_bytes},
       {"side_bytes", shape.side_bytes},
       {"on_loss", shape.on_loss},
       {"MEP_EP_NO_COMBINE_MEMORY in flags", shape.has_combine_memory() ? 0u : 1u}});
}

// Every rank learns whether all gave the same, and which field and rank differ.
mep_result_t compare_configs(Comm& comm, const EpShape& shape, const std::string& name,
                             RankValues* values) {
  const std::array<AgreedField, kAgreedFields> fields = agreed_fields(shape, name);
  std::array<uint64_t, kAgreedFields> mine{};
  for (size_t i = 0; i < kAgreedFields; ++i) mine[i] = fields[i].value;
  MEP_TRY(values->gather(comm, mine));
  for (uint32_t rank = 0; rank < comm.size(); ++rank) {
    for (size_t i = 0; i < kAgreedFields; ++i) {
      const uint64_t first = values->of(0, i);
      const uint64_t value = values->of(rank, i);
      if (first == value) continue;
      if (i == 0) {
        return fail(MEP_ERR_MISMATCH,
                    "ranks 0 and %u gave EP objects of different names; this rank's is \"%s\"",
                    rank, name.c_str());
      }
      return fail(MEP_ERR_MISMATCH, "%s is %llu on rank 0 and %llu on rank %u", fields[i].name,
                  static_cast<unsigned long long>(first), static_cast<unsigned long long>(value),
                  rank);
    }
  }
  return MEP_SUCCESS;
}

}  // namespace

mep_result_t resolve_ep_config(uint32_t rank, uint32_t ranks, const mep_ep_config_t& config,
                               EpShape* out, bool on_device) {
  EpShape shape;
  shape.rank = rank;
  shape.ranks = ranks;
  shape.timeout_ms = config.timeout_ms;
  shape.flags = config.flags;
  shape.on_loss = config.on_loss;
  MEP_TRY(check_enumerators(config));
  MEP_TRY(refuse_unbuilt(config, on_device));
  MEP_TRY(resolve_counts(config, &shape));
  MEP_TRY(resolve_types(config, &shape));
  *out = shape;
  return MEP_SUCCESS;
}

mep_result_t EpAgreement::reach(Comm& comm, const EpShape& shape, const char* given) {
  // How many objects were made before, on whoever knows of most: a joiner has not seen those that were made
  // while it came.
  uint64_t most = 0;
  MEP_TRY(find_largest(comm, comm.next_ep_number(), &most));
  const auto number = static_cast<uint32_t>(most);
  comm.set_ep_number(number + 1);
  MEP_TRY(step_together(comm, "begin to make an EP object", [&]() -> mep_result_t {
    name = given != nullptr ? given : "ep" + std::to_string(number);
    // Two objects of one name, one after the other, are two.
    window_seed =
        hash_bytes(hash_bytes(comm.id(), &number, sizeof number), name.data(), name.size());
    values.reserve(comm, std::max(kAgreedFields, rank_words(comm.size())));
    return MEP_SUCCESS;
  }));
  return compare_configs(comm, shape, name, &values);
}

}  // namespace mep
