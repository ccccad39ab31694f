// The shape of an EP object: the caller's config with every default filled in and checked, and the
// sizes that follow from it. The same on all ranks but for `rank` and `timeout_ms`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/comm/agreement.hpp"
#include "core/comm/comm.hpp"
#include "mep.h"
#include "protocol/row_formats.hpp"

namespace mep {

// A joiner is told of an object in one message, which must hold the map and the name.
constexpr uint64_t kMaxMapEntries = uint64_t{1} << 27;
// From so many bytes a rank writes to others past the caches: they would not fit into those that the
// cores share, and a line that is written whole need not be read first.
constexpr size_t kNonTemporalBytes = size_t{4} << 20;

// A mep_range_t as sizes.
struct Rows {
  explicit Rows(const mep_range_t& range)
      : begin(static_cast<uint64_t>(range.begin)), count(static_cast<uint64_t>(range.count)) {}
  uint64_t begin;
  uint64_t count;
};

struct EpShape {
  uint32_t rank = 0;
  uint32_t ranks = 0;          // R
  uint32_t max_tokens = 0;     // M
  uint32_t hidden = 0;         // H
  uint32_t top_k = 0;          // K
  uint32_t experts = 0;        // E
  uint32_t local_experts = 0;  // E_local
  mep_ep_layout_t layout = MEP_EP_LOW_LATENCY;
  uint32_t expert_alignment = 1;  // of counts
  uint32_t row_groups = 0;        // of a rank: its local experts; high throughput: 1
  uint32_t row_k = 0;             // rows that a token becomes at most
  uint32_t buffers = 0;
  uint32_t max_replicas = 1;
  uint32_t timeout_ms = 0;  // 0: the comm's
  mep_dtype_t input_type = MEP_BFLOAT16;
  mep_dtype_t wire_type = MEP_BFLOAT16;
  mep_dtype_t combine_type = MEP_BFLOAT16;
  uint32_t scale_type = MEP_SCALE_FLOAT32;
  uint32_t flags = 0;       // MEP_EP_*
  uint32_t row_bytes = 0;   // opaque rows; 0: rows have types
  uint32_t side_bytes = 0;  // of an opaque row
  mep_ep_loss_t on_loss = MEP_EP_LOSS_FAILS;

  bool is_opaque() const { return row_bytes != 0; }
  // kNone for opaque rows.
  const RowFormat& input() const { return row_format(input_type, scale_type); }
  const RowFormat& wire() const { return row_format(wire_type, scale_type); }
  // If x has the wire's type, the caller gives the scales, as the side words of opaque rows.
  bool has_scales() const { return scale_row_bytes() != 0; }
  bool takes_scales() const { return has_scales() && !quantizes(); }
  bool quantizes() const { return wire_type != input_type; }
  bool slotted() const { return layout == MEP_EP_SLOTTED; }
  bool expanded() const { return layout == MEP_EP_EXPANDED; }
  bool has_row_memory() const { return (flags & MEP_EP_NO_ROW_MEMORY) == 0; }
  bool has_combine_memory() const { return (flags & MEP_EP_NO_COMBINE_MEMORY) == 0; }
  bool in_step() const { return on_loss == MEP_EP_LOSS_IN_STEP; }
  bool uniform() const { return on_loss == MEP_EP_LOSS_UNIFORM; }
  // Rows and terms of ranks that have gone are left out without an error.
  bool allows_partial() const { return on_loss == MEP_EP_LOSS_PARTIAL || in_step(); }
  bool high_throughput() const { return layout >= MEP_EP_HIGH_THROUGHPUT; }
  uint32_t places() const { return ranks * local_experts; }  // physical experts
  uint32_t columns() const { return ranks * row_groups; }    // groups of all ranks
  size_t rows_per_expert() const { return size_t{ranks} * max_tokens; }
  size_t rows() const { return row_groups * rows_per_expert(); }
  // Expanded: the most rows that can come, with their padding.
  uint64_t expanded_rows() const {
    const uint64_t most = uint64_t{rows_per_expert()} * std::min(top_k, local_experts) +
                          uint64_t{local_experts} * (expert_alignment - 1);
    return (most + expert_alignment - 1) / expert_alignment * expert_alignment;
  }
  // Rows of recv_x and combine_input in mep_ep_view_t.
  uint64_t view_rows() const { return expanded() ? expanded_rows() : rows(); }
  size_t input_row_bytes() const { return is_opaque() ? row_bytes : input().row_bytes(hidden); }
  size_t wire_row_bytes() const { return is_opaque() ? row_bytes : wire().row_bytes(hidden); }
  size_t combine_row_bytes() const { return hidden * mep_dtype_size(combine_type); }
  // 0 without scales.
  size_t scale_row_bytes() const {
    return is_opaque() ? side_bytes : wire().scales(hidden) * wire().scale_bytes;
  }
};

// Fields of the config that are for GPUs alone.
struct EpDeviceOptions {
  bool column_major = false;  // scales
  uint32_t num_sms = 0;       // blocks of a kernel at most; 0: chosen
};

// Refuses what makes no sense or is not built, by name.
[[nodiscard]] mep_result_t resolve_ep_config(uint32_t rank, uint32_t ranks,
                                             const mep_ep_config_t& config, EpShape* out,
                                             bool on_device = false);

// The agreement of all ranks with which an EP object begins: its number on the comm, its name, and that all gave the
// same config.
struct EpAgreement {
  // Values of each rank that are exchanged by `values`; or a bit for each rank, if that is more.
  static constexpr size_t kMostValues = 18;

  std::string name;
  uint64_t window_seed = 0;  // ids of its windows follow from it
  RankValues values;

  // Collective. `given` null: the name follows from the number.
  [[nodiscard]] mep_result_t reach(Comm& comm, const EpShape& shape, const char* given);
};

}  // namespace mep
