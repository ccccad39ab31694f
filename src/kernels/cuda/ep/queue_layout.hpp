// Memory of an EP buffer of which some peers, or all, are reached through send queues (transport/gpu_queue). Plain C++.
//
// Each rank reaches each peer in one way, and the peer reaches it in the same: it stores to the peer's mapped inbox, or
// posts to a queue. EpMemory::peers has the inboxes of mapped peers, and null for the others and for this rank itself.
//
//   inbox    what queues of peers write, and what this rank tells itself: memory of this GPU where an adapter executes the
//            queues and reaches it, else pinned host memory, a window of the host's transports
//              counts ready   [2 parities][R] words: that source's counts are here
//              rows ready     [2][R], combine ready [2][R]: as in a mapped window
//              counts         [2][R][count words] uint32, as in a mapped window
//              records        [R * M], in low latency by source and token, in high throughput places as in a mapped window
//              terms          [M * k'] combine rows
//              weights        high throughput: [M * k'][K] floats that come with the terms; marks [R], 8 bytes each
//   mapped inbox  memory of this GPU, laid out like the inbox: what kernels of mapped peers store
//   outbox   what this rank's queues read, memory as that of the inbox, each by itself
//              counts         [2][count words] uint32; in high throughput [2][R][count words], since each rank gets others
//              records        low latency: [M], by token, for all ranks; high throughput: [M * k'], by rank, then token
//              terms          [R * M * min(K, E_local)] combine rows, by local expert, source, row; in high throughput
//                             [R * M], by source, row
//              weights        high throughput: [R * M][K] floats
//   scratch  device memory: the queues [R], what one kernel tells the next, and records as in the outbox of rows for this
//            rank itself: these, its counts and its terms go through no queue
//
// Record: 8 bytes, words [K], in high throughput weights [K], then on 16 bytes the row's scales without gaps, then on 16
// bytes the row. Low latency: the dispatch's signal tag, and the token index (ep/geometry.hpp). High throughput: entry and
// token (uint32 each), and experts.
//
// The outbox needs no flush between uses. Its records of one use were read before all peers have given the rows of that
// use back, which a rank waits for (low latency) or learns with the counts of the next use (high throughput); counts
// alternate, and terms were read before the next rows come.
// The first dispatch of an epoch flushes, so that nothing of the old one is under way when a peer may write new rows.
#pragma once

#include <cstdint>

#include "kernels/cuda/ep/geometry.hpp"
#include "transport/gpu_queue/send_queue.hpp"

namespace mep::device {

constexpr uint32_t kQueueEntries = 1024;

struct EpQueueLayout {
  uint64_t counts_ready, rows_ready, combine_ready, words_end;
  uint64_t counts, records, terms, weights, weights_marks, inbox_bytes;
  uint64_t sent_counts, sent_records, sent_terms, sent_weights, outbox_bytes;
  uint64_t most_terms;  // in the outbox
  uint64_t queues, ready, sent_first, kinds, own_records, scratch_bytes;
  uint32_t counts_bytes;                         // of a source, for one parity
  uint32_t sent_counts_step, sent_counts_bytes;  // from one rank's to the next's; of one parity
  uint32_t record_topk, record_scales, record_row, record_bytes;
};

inline EpQueueLayout make_ep_queue_layout(const EpGeometry& g) {
  const EpSizes& sizes = g.sizes;
  const uint64_t words = uint64_t{2} * sizes.ranks * 8;
  const uint64_t terms = uint64_t{sizes.max_tokens} * g.row_k;
  const uint32_t most_k = sizes.top_k < sizes.local_experts ? sizes.top_k : sizes.local_experts;
  EpQueueLayout l{};
  const bool high_throughput = sizes.high_throughput != 0;
  const uint32_t topk_row = sizes.top_k * 4;
  l.record_topk = 8;
  l.record_scales = (l.record_topk + (high_throughput ? 2 * topk_row : topk_row) + 15) / 16 * 16;
  l.record_row = l.record_scales + (g.groups * g.scale_bytes + 15) / 16 * 16;
  l.record_bytes = l.record_row + g.wire_row;
  EpPlaces inbox;
  l.counts_ready = inbox.take(words);
  l.rows_ready = inbox.take(words);
  l.combine_ready = inbox.take(words);
  l.words_end = inbox.end();
  l.counts_bytes = g.count_words * 4;
  l.counts = inbox.take(uint64_t{2} * sizes.ranks * l.counts_bytes);
  l.records = inbox.take(uint64_t{g.rows_per_expert} * l.record_bytes);
  l.terms = inbox.take(terms * g.combine_row);
  if (high_throughput) {
    l.weights = inbox.take(terms * topk_row);
    l.weights_marks = inbox.take(uint64_t{sizes.ranks} * 8);
  }
  l.inbox_bytes = inbox.end();
  EpPlaces outbox;
  l.sent_counts_step = high_throughput ? l.counts_bytes : 0;
  l.sent_counts_bytes = high_throughput ? sizes.ranks * l.counts_bytes : l.counts_bytes;
  l.sent_counts = outbox.take(uint64_t{2} * l.sent_counts_bytes);
  l.sent_records = outbox.take((high_throughput ? terms : sizes.max_tokens) * l.record_bytes);
  l.most_terms = uint64_t{g.rows_per_expert} * (high_throughput ? 1 : most_k);
  l.sent_terms = outbox.take(l.most_terms * g.combine_row);
  if (high_throughput) l.sent_weights = outbox.take(l.most_terms * topk_row);
  l.outbox_bytes = outbox.end();
  EpPlaces scratch;
  l.queues = scratch.take(sizes.ranks * sizeof(gpu_queue::Queue));
  l.ready = scratch.take(uint64_t{sizes.ranks} * kQueueEntries * 8);
  if (high_throughput) l.sent_first = scratch.take(uint64_t{sizes.ranks} * 4);
  l.kinds = scratch.take(sizes.ranks);
  l.own_records = scratch.take(uint64_t{sizes.max_tokens} * l.record_bytes);
  l.scratch_bytes = scratch.end();
  return l;
}

// Addresses for kernels. scratch null: all peers are mapped, and there are no queues.
struct EpQueues {
  std::byte* scratch;
  std::byte* inbox;
  std::byte* mapped_inbox;  // null: no peer is mapped
  std::byte* outbox;
};

}  // namespace mep::device
