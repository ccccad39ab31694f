// Sizes of an EP buffer and where everything lies in its memory. Plain C++; the same on every rank but
// for `rank`. Four blocks of device memory:
//
//   window   written by peers, at the offsets below. Words first, so that one memset clears them.
//              counts         [2 parities][R sources][R * E_local] signal words, payload: rows of that
//                             source for that expert. Slotted: only the owner's E_local columns.
//                             High throughput: [R + E_local], rows for each rank, then for each of the
//                             owner's experts.
//              rows ready     [2][R]  all rows of that source for this use lie here
//              combine ready  [2][R]  as on the host: its terms are ready and it gives its rows back
//              entries, src_info [G][R * M] token * k' + k and token, on the source, of each row
//              scales         row-major    [G][R * M][groups]
//                             column-major [G][groups][R * M rounded up to 16 bytes]
//              recv_x, combine_in [M * k']: rows, as in host memory
//              topk_idx, topk_weights [R * M][K], high throughput: as in host memory
//              weights_in     [M * k'][K] float32, high throughput: values that come back with rows
//              weights_marks  [R] uint32: the dispatch that a rank's values in weights_in belong to
//              combine_out    rows, as in host memory
//            By token (low latency, but where GPUs map each other) a row comes once for all experts of a rank. Its token
//            index [K] says where its copies go: physical expert * M + which of the source's rows for that expert it is, or
//            kRowNotSent. With windows on the host the window has counts to combine ready, then by source and token
//              token_index    [R * M][K] uint32
//              token_scales   [R * M][groups]
//              token_rows     [R * M] rows
//            and combine_in; what follows is of `own` alone (EpMemory). Queues bring records (ep/queue_layout.hpp).
//   local    of one rank alone: EpState, what kernels of one operation tell each other, and the outputs
//            of the last dispatch that the library keeps
//   handle   the routing of one dispatch: places and rows [M * k'], a place being a physical expert or, in high
//            throughput, a rank; there also the physical experts [M * K], and what this rank sends: rows for
//            each rank, where they begin there, and rows for each physical expert
//   peers    [R] the windows as this rank addresses them
//
// G row groups, up to k' rows of a token: E_local and K; in high throughput 1 and min(K, R).
//
// Chunk: 32 tokens of a rank. Which of them go to an expert is one 32-bit mask, so that a token's place
// among its chunk is a count of bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/control.hpp"
#include "kernels/cuda/ep/expanded_layout.hpp"
#include "mep.h"
#include "protocol/row_formats.hpp"

namespace mep::device {

constexpr uint32_t kChunkTokens = 32;
constexpr uint64_t kNowhere = uint64_t{1} << 62;

struct EpSizes {
  uint32_t rank, ranks, max_tokens, hidden, top_k, experts, local_experts;
  uint32_t input_type, wire_type, combine_type;  // mep_dtype_t
  uint32_t scale_type;                           // MEP_SCALE_*
  uint32_t row_bytes, side_bytes;                // opaque rows; 0: rows have types
  uint32_t slotted, column_major;
  uint32_t high_throughput, expert_alignment;
  uint32_t by_token, queued;
  uint64_t expanded_rows;  // X; 0: received rows are not expanded
  uint32_t keeps_rows;     // expanded: in memory of the library
  uint32_t takes_terms;    // y is the caller's: there is no combine_out
};

struct EpGeometry {
  EpSizes sizes;
  uint32_t places;                                               // R * E_local
  uint32_t row_groups;                                           // G
  uint32_t columns;                                              // R * G
  uint32_t row_k;                                                // k'
  uint32_t count_words;                                          // of a source, for one parity
  uint32_t rows_per_expert;                                      // R * M
  uint32_t input_row, wire_row, combine_row;                     // bytes
  uint32_t groups;                                               // scales of a row; 0: none
  uint32_t scale_bytes;                                          // of one
  uint64_t scale_row_step, scale_group_step, scale_expert_step;  // bytes
  uint32_t chunks;                                               // of max_tokens
  // Window.
  uint64_t counts, rows_ready, combine_ready, words_end;
  uint64_t entries, src_info, scales, recv_x, combine_in, combine_out, window_bytes;
  uint64_t topk_idx, topk_weights, weights_in, weights_marks;
  uint64_t token_rows, token_scales, token_index;
  uint64_t pushed_bytes;  // what peers write, if combines are pushed
  // Local. expert_rows: recv_count before it is rounded up. expert_sums [places]: zeros between kernels.
  uint64_t masks, chunk_first, own_counts, recv_count, expert_rows, layout_range, local_bytes;
  uint64_t expert_sums;
  uint64_t relayed_rows, relayed_kinds;
  uint64_t tokens_of;  // [R] uint32, by token: the tokens that the last dispatch of each source had
  // Handle.
  uint64_t handle_places, handle_rows, handle_weights, handle_bytes;
  uint64_t handle_experts, handle_counts, handle_first, handle_expert_counts;
  EpExpandedLayout expanded;
};

// The rows that the last dispatch brought.
struct Arrived {
  unsigned long long total;
  unsigned long long rows_needed;  // up to the last row that came
};

// Advances by one operation after the other; begins with zeros. In a view change the host sets use, carries
// and credited, in the order of the stream.
struct EpState {
  DeviceChannel channel;
  uint32_t carries;      // the epoch has a use 0: what was dispatched before it
  uint32_t credited;     // the combine word of this use was sent
  uint32_t bad_entries;  // of the dispatch that is being counted
  uint32_t op_bad_entries;
  uint32_t missing;       // of the running combine: bit 0 an absent rank's term, bit 1 a member's
  uint32_t rows_refused;  // the last receive has no rows for the caller's memory
  uint64_t complete[kMaskWords];  // sources of the last dispatch whose rows are here
  uint64_t dispatch_epoch;        // of the last dispatch
  Arrived arrived;
  uint64_t counted;  // signal word: what this rank counted lies in the local block
  uint64_t
      freed;  // signal word: of the last combine that saw that all ranks gave the rows of its use back
  uint64_t relayed
      [2];  // signal words: what CTA 0 waited for, in a dispatch and in a combine (ep/relay.cuh)
  uint64_t trace[16];  // written in builds with MEP_EP_TRACE
};

struct EpHandleHead {
  uint32_t tokens;
  uint32_t has_weights;
  uint32_t mark;  // names the dispatch in combine words, as on the host
  uint32_t reserved;
  uint64_t epoch;  // in which its places are right
};

constexpr uint32_t kRowNotSent = UINT32_MAX;

// Places in one block of memory, one behind the other.
class EpPlaces {
 public:
  explicit EpPlaces(uint64_t end = 0) : end_(end) {}
  uint64_t take(uint64_t bytes) {
    const uint64_t begin = (end_ + 255) / 256 * 256;
    end_ = begin + bytes;
    return begin;
  }
  uint64_t end() const { return end_; }

 private:
  uint64_t end_;
};

inline void set_ep_rows(EpGeometry* g) {
  const EpSizes& sizes = g->sizes;
  const auto bytes = [&sizes](uint32_t type) {
    return static_cast<uint32_t>(row_format(type, sizes.scale_type).row_bytes(sizes.hidden));
  };
  const bool high_throughput = sizes.high_throughput != 0;
  g->places = sizes.ranks * sizes.local_experts;
  g->row_groups = high_throughput ? 1 : sizes.local_experts;
  g->columns = sizes.ranks * g->row_groups;
  g->row_k = high_throughput && sizes.ranks < sizes.top_k ? sizes.ranks : sizes.top_k;
  g->count_words = high_throughput ? sizes.ranks + sizes.local_experts : g->places;
  g->rows_per_expert = sizes.ranks * sizes.max_tokens;
  const bool opaque = sizes.row_bytes != 0;
  g->input_row = opaque ? sizes.row_bytes : bytes(sizes.input_type);
  g->wire_row = opaque ? sizes.row_bytes : bytes(sizes.wire_type);
  g->combine_row = bytes(sizes.combine_type);
  g->chunks = (sizes.max_tokens + kChunkTokens - 1) / kChunkTokens;
}

// Returns the bytes of all scales.
inline uint64_t set_ep_scales(EpGeometry* g) {
  const EpSizes& sizes = g->sizes;
  const bool opaque = sizes.row_bytes != 0;
  const RowFormat& wire = row_format(sizes.wire_type, sizes.scale_type);
  g->scale_bytes = opaque ? 4 : wire.scale_bytes;
  g->groups = opaque ? sizes.side_bytes / 4 : static_cast<uint32_t>(wire.scales(sizes.hidden));
  if (g->groups == 0) return 0;
  const uint64_t unit = 16 / g->scale_bytes;
  const uint64_t pitch = (g->rows_per_expert + unit - 1) / unit * unit;
  const bool column_major = sizes.column_major != 0;
  g->scale_row_step = (column_major ? 1 : g->groups) * uint64_t{g->scale_bytes};
  g->scale_group_step = (column_major ? pitch : 1) * g->scale_bytes;
  g->scale_expert_step = (column_major ? pitch : g->rows_per_expert) * g->groups * g->scale_bytes;
  return g->scale_expert_step * g->row_groups;
}

inline void place_ep_window(EpGeometry* g, uint64_t scales) {
  const EpSizes& sizes = g->sizes;
  const uint64_t rows = uint64_t{g->row_groups} * g->rows_per_expert;
  const uint64_t terms = uint64_t{sizes.max_tokens} * g->row_k;
  const bool by_token = sizes.by_token != 0 && sizes.queued == 0;
  EpPlaces window;
  g->counts = window.take(uint64_t{2} * sizes.ranks * g->count_words * 8);
  g->rows_ready = window.take(uint64_t{2} * sizes.ranks * 8);
  g->combine_ready = window.take(uint64_t{2} * sizes.ranks * 8);
  g->words_end = window.end();
  if (by_token) {
    const uint64_t tokens = uint64_t{sizes.ranks} * sizes.max_tokens;
    g->token_index = window.take(tokens * sizes.top_k * 4);
    g->token_scales = window.take(tokens * g->groups * g->scale_bytes);
    g->token_rows = window.take(tokens * g->wire_row);
    g->combine_in = window.take(terms * g->combine_row);
    g->pushed_bytes = window.end();
  }
  g->entries = window.take(rows * 4);
  g->src_info = window.take(rows * 4);
  g->scales = window.take(scales);
  g->recv_x = window.take(rows * g->wire_row);
  if (!by_token) g->combine_in = window.take(terms * g->combine_row);
  if (sizes.high_throughput != 0) {
    const uint64_t topk_row = uint64_t{sizes.top_k} * 4;
    g->topk_idx = window.take(rows * topk_row);
    g->topk_weights = window.take(rows * topk_row);
    g->weights_in = window.take(terms * topk_row);
    g->weights_marks = window.take(uint64_t{sizes.ranks} * 8);
  }
  if (!by_token) g->pushed_bytes = window.end();
  // Without one no address is in it.
  g->combine_out = sizes.takes_terms != 0 ? kNowhere : window.take(rows * g->combine_row);
  g->window_bytes = window.end();
}

inline void place_ep_local(EpGeometry* g) {
  const EpSizes& sizes = g->sizes;
  const bool high_throughput = sizes.high_throughput != 0;
  EpPlaces local(sizeof(EpState));
  g->masks = local.take(uint64_t{g->chunks} * g->columns * 4);
  g->chunk_first = local.take(uint64_t{g->chunks} * g->columns * 4);
  g->own_counts = local.take(uint64_t{g->columns} * 4);
  g->recv_count = local.take(uint64_t{sizes.local_experts} * 4);
  g->expert_rows = high_throughput ? local.take(uint64_t{sizes.local_experts} * 4) : g->recv_count;
  g->layout_range = local.take(uint64_t{g->columns} * 8);
  g->relayed_rows = local.take(uint64_t{g->places} * 4);
  g->relayed_kinds = local.take(sizes.ranks);
  if (sizes.by_token != 0) g->tokens_of = local.take(uint64_t{sizes.ranks} * 4);
  if (high_throughput) g->expert_sums = local.take(uint64_t{g->places} * 4);
  g->local_bytes = local.end();
}

// Behind what is local already.
inline void place_ep_expanded(EpGeometry* g) {
  const EpSizes& sizes = g->sizes;
  EpExpandedLayout& layout = g->expanded;
  layout.rows = sizes.expanded_rows;
  if (layout.rows == 0) return;
  const uint64_t received = g->rows_per_expert;
  const uint64_t entries = received * sizes.top_k;
  layout.chunks = static_cast<uint32_t>((received + kChunkTokens - 1) / kChunkTokens);
  const uint64_t marks = uint64_t{layout.chunks} * sizes.local_experts;
  EpPlaces local(g->local_bytes);
  layout.row_slots = local.take(entries * 4);
  layout.masks = local.take(marks * 4);
  layout.before = local.take(marks * 4);
  layout.group_first = local.take((uint64_t{sizes.local_experts} + 1) * 4);
  layout.values = local.take(entries * 4);
  g->local_bytes = local.end();
  const uint64_t row_scales = uint64_t{g->groups} * g->scale_bytes;
  const uint64_t kept = sizes.keeps_rows != 0 ? layout.rows : 0;
  uint64_t scales = kept * row_scales;
  layout.scale_row_step = row_scales;
  layout.scale_group_step = g->scale_bytes;
  if (sizes.column_major != 0 && row_scales != 0) {
    layout.scale_row_step = g->scale_bytes;
    layout.scale_group_step = (layout.rows * g->scale_bytes + 15) / 16 * 16;
    scales = kept != 0 ? layout.scale_group_step * g->groups : 0;
  }
  EpPlaces block;
  layout.x = block.take(kept * g->wire_row);
  layout.scales = block.take(scales);
  layout.weights = block.take(layout.rows * 4);
  layout.tokens = block.take(layout.rows * 4);
  layout.y = block.take(kept * g->combine_row);
  layout.ranges = block.take(uint64_t{sizes.local_experts} * sizes.ranks * 8);
  layout.bytes = block.end();
}

inline void place_ep_handle(EpGeometry* g) {
  const EpSizes& sizes = g->sizes;
  const uint64_t terms = uint64_t{sizes.max_tokens} * g->row_k;
  const uint64_t topk_row = uint64_t{sizes.top_k} * 4;
  EpPlaces handle(sizeof(EpHandleHead));
  g->handle_places = handle.take(terms * 4);
  g->handle_rows = handle.take(terms * 4);
  g->handle_weights = handle.take(uint64_t{sizes.max_tokens} * topk_row);
  if (sizes.high_throughput != 0) {
    g->handle_experts = handle.take(uint64_t{sizes.max_tokens} * topk_row);
    g->handle_counts = handle.take(uint64_t{sizes.ranks} * 4);
    g->handle_first = handle.take(uint64_t{sizes.ranks} * 4);
    g->handle_expert_counts = handle.take(uint64_t{g->places} * 4);
  }
  g->handle_bytes = handle.end();
}

inline EpGeometry make_ep_geometry(const EpSizes& sizes) {
  EpGeometry g{};
  g.sizes = sizes;
  set_ep_rows(&g);
  place_ep_window(&g, set_ep_scales(&g));
  place_ep_local(&g);
  place_ep_expanded(&g);
  place_ep_handle(&g);
  return g;
}

}  // namespace mep::device
