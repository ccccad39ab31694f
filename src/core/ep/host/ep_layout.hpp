// Where everything lies in the window of one EP buffer; the same on every rank.
//
//   words        [3 kinds][2 parities][R]   one cache line each: a signal word (protocol/signal_word.hpp).
//                The writer is the rank of the index, the parity that of the use (dispatch) it is
//                about.
//                  counts ready    the counts of this parity lie here
//                  rows ready      all rows of that source for this use lie here
//                  combine ready   the source has begun to combine this use: it gives back the rows
//                                  that it received, and its terms are ready, see ep_words.hpp
//   y_of         a line: of which dispatch combine_out may hold terms, its mark; written by the owner alone, read by
//                mapped peers. No view change zeroes it.
//   counts       [2 parities][R sources][R * G] uint32: rows of each source for each group.
//                Slotted, and of a replay: only the G columns of the window's owner are written.
//   entries      [G][R * M] uint32: token * k' + k, on its source rank, of each row
//   scales       [G][R * M] scale rows
//   recv_x       [G][R * M] wire rows
//   topk_idx     [R * M][K] int32, high throughput: local experts of each row, -1 for those of other ranks
//   topk_weights [R * M][K] float32, likewise
//   weights_in   [R] of each source, high throughput: the mark of a dispatch, on a line of its own, and [M][K]
//                float32 that come back with its rows, in the order of this rank's rows there
//   combine_in   [M * k'] combine rows: what groups that are not read in place send back
//   combine_out  [G][R * M] combine rows: the library's memory for y; written by the owner only,
//                read by mapped peers
//
// A group has the rows of one local expert, and a token up to k' = K rows. High throughput has one group a rank,
// and a token up to k' = min(K, R) rows: one for each rank that has experts of it.
// Packed, the rows of a group lie in the order of (source rank, token) from 0 on. Slotted, those of
// source s from s * M on. Rows take memory when they are first touched.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ep/ep_config.hpp"
#include "protocol/ep_words.hpp"

namespace mep {

enum class EpWord : uint8_t { kCountsReady = 0, kRowsReady = 1, kCombineReady = 2 };

class EpLayout {
 public:
  static constexpr uint64_t kLine = 64;
  static constexpr uint64_t kPage = 4096;
  static constexpr uint32_t kWordKinds = 3;

  explicit EpLayout(const EpShape& shape)
      : ranks_(shape.ranks),
        columns_(shape.columns()),
        rows_per_group_(shape.rows_per_expert()),
        wire_row_(shape.wire_row_bytes()),
        scale_row_(shape.scale_row_bytes()),
        combine_row_(shape.combine_row_bytes()) {
    uint64_t end = y_of() + kLine;
    counts_ = take(&end, uint64_t{2} * ranks_ * columns_, sizeof(uint32_t));
    entries_ = take(&end, shape.rows(), sizeof(uint32_t));
    scales_ = take(&end, shape.rows(), scale_row_);
    recv_x_ = take(&end, shape.rows(), wire_row_);
    if (shape.high_throughput()) {
      topk_row_ = uint64_t{shape.top_k} * sizeof(uint32_t);
      topk_idx_ = take(&end, shape.rows(), topk_row_);
      topk_weights_ = take(&end, shape.rows(), topk_row_);
      weights_in_row_ = kLine + uint64_t{shape.max_tokens} * topk_row_;
      weights_in_ = take(&end, ranks_, weights_in_row_);
    }
    combine_in_ = take(&end, uint64_t{shape.max_tokens} * shape.row_k, combine_row_);
    combine_out_ = take(&end, shape.rows(), combine_row_);
    bytes_ = overflow_ ? 0 : end;
  }

  // 0: more than 64-bit numbers can say.
  uint64_t bytes() const { return bytes_; }

  uint64_t word(EpWord kind, uint64_t use, uint32_t source) const {
    return ((static_cast<uint64_t>(kind) * 2 + use % 2) * ranks_ + source) * kLine;
  }
  // By index in [0, words()).
  uint64_t word_at(uint32_t index) const { return uint64_t{index} * kLine; }
  uint32_t words() const { return static_cast<uint32_t>(uint64_t{kWordKinds} * 2 * ranks_); }
  uint32_t word_index(EpWord kind, uint64_t use, uint32_t source) const {
    return static_cast<uint32_t>(word(kind, use, source) / kLine);
  }

  uint64_t y_of() const { return uint64_t{words()} * kLine; }
  uint64_t counts(uint64_t use, uint32_t source, uint32_t column) const {
    return counts_ + ((use % 2 * ranks_ + source) * columns_ + column) * sizeof(uint32_t);
  }
  uint64_t row(uint32_t group, uint64_t index) const { return group * rows_per_group_ + index; }
  // By row().
  uint64_t entry(uint64_t row) const { return entries_ + row * sizeof(uint32_t); }
  uint64_t scales(uint64_t row) const { return scales_ + row * scale_row_; }
  uint64_t recv_x(uint64_t row) const { return recv_x_ + row * wire_row_; }
  // K values of 32 bits, in high throughput alone.
  uint64_t topk_idx(uint64_t row) const { return topk_idx_ + row * topk_row_; }
  uint64_t topk_weights(uint64_t row) const { return topk_weights_ + row * topk_row_; }
  // The mark of the dispatch whose values lie behind it, in rows of K float32 from weights_in() on.
  uint64_t weights_in_mark(uint32_t source) const { return weights_in_ + source * weights_in_row_; }
  uint64_t weights_in(uint32_t source) const { return weights_in_mark(source) + kLine; }
  uint64_t combine_out(uint64_t row) const { return combine_out_ + row * combine_row_; }
  // By token * row_k + k.
  uint64_t combine_in(uint64_t entry) const { return combine_in_ + entry * combine_row_; }

 private:
  uint64_t take(uint64_t* end, uint64_t count, uint64_t unit) {
    uint64_t bytes = 0;
    overflow_ = overflow_ || __builtin_mul_overflow(count, unit, &bytes) ||
                __builtin_add_overflow(bytes, *end + 2 * kPage, &bytes);
    const uint64_t begin = (*end + kPage - 1) / kPage * kPage;
    if (!overflow_) *end = begin + count * unit;
    return begin;
  }

  uint64_t ranks_, columns_, rows_per_group_;
  uint64_t wire_row_, scale_row_, combine_row_, topk_row_ = 0, weights_in_row_ = 0;
  uint64_t counts_ = 0, entries_ = 0, scales_ = 0, recv_x_ = 0, combine_in_ = 0, combine_out_ = 0;
  uint64_t topk_idx_ = 0, topk_weights_ = 0, weights_in_ = 0;
  uint64_t bytes_ = 0;
  bool overflow_ = false;
};

}  // namespace mep
