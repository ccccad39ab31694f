// Large messages are pipelined: chunks go through a ring of kRing areas in every rank's window.
//
//   words   posted, reduced, taken [kRing][size], finished [2][size]; one cache line each
//   in      [kRing][a section per live rank]: what others send to this rank
//   out     [kRing][a section per live rank]: results; read in place by mapped peers from their owner's section,
//           else put there by the owner
//
// and what host_pipeline.hpp adds for several hosts: words, an area `sums`, another use of in and out.
//
// Sections are in the order of the live ranks and have kChunkBytes / live ranks (+ padding), so an area
// is about one chunk. Chunks are counted over the life of an epoch; all ranks do the same operations, so they
// agree on the count. An area is used again two chunks later; the comment of each algorithm proves that
// everybody has finished with it by then. The last act of every operation is a round of `finished` words: when
// all have come, all ranks have all data. Where contributions go through host leaders (see eager_ring.hpp), a
// rank puts its word to its leader alone. A leader puts its own word to the other leaders when all of its host
// have finished, and to its host when those of the other leaders have come, so that all have finished.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/coll/host_groups.hpp"
#include "core/coll/host_pipeline.hpp"
#include "core/coll/operation.hpp"
#include "core/world/remote.hpp"
#include "protocol/signal_word.hpp"

namespace mep {

class Pipeline {
 public:
  static constexpr uint64_t kRing = 2;
  static constexpr size_t kChunkBytes = size_t{512} << 10;
  static constexpr size_t kLine = HostPipeline::kLine;

  using Word = HostPipeline::Word;

  static size_t window_bytes(uint32_t size);

  void open(uint32_t rank, uint64_t window_offset, const std::vector<Remote>* remotes);
  // Not before the first restart is done.
  void use_window(std::byte* window);
  // `through_leaders`: see EagerRing.
  void restart(uint64_t epoch, const std::vector<uint32_t>& live, const HostGroups& groups,
               bool through_leaders);

  // Bytes of a section for the present live ranks: what one rank moves per chunk.
  size_t section_bytes() const { return section_bytes_; }
  // In how many sections a block of that size goes, and how much of it is in one of them.
  uint64_t sections_of(size_t block_bytes) const {
    return (block_bytes + section_bytes_ - 1) / section_bytes_;
  }
  size_t bytes_in_section(size_t block_bytes, uint64_t section) const {
    return std::min(section_bytes_, block_bytes - section * section_bytes_);
  }
  // Chunks used so far; an operation's chunk i is first_chunk() + i, and at its end it is advanced.
  uint64_t first_chunk() const { return next_chunk_; }
  void advance(uint64_t chunks) { next_chunk_ += chunks; }

  const std::byte* in_section(uint64_t chunk, uint32_t source) const {
    return window_ + area_offset(0, chunk) + position_of_[source] * section_bytes_;
  }
  [[nodiscard]] mep_result_t put_in(uint64_t chunk, uint32_t target, const void* data,
                                    size_t bytes) const {
    return (*remotes_)[target].put(area_offset(0, chunk) + position_ * section_bytes_, data, bytes);
  }
  // The owner's place to make its result; then publish_out() brings it to peers that cannot read it.
  std::byte* own_out(uint64_t chunk) const {
    return window_ + area_offset(1, chunk) + position_ * section_bytes_;
  }
  [[nodiscard]] mep_result_t publish_out(uint64_t chunk, size_t bytes) const;
  // The same of data that lies elsewhere until the operation ends: copied only for peers that read it here.
  [[nodiscard]] mep_result_t publish_section(uint64_t chunk, const void* data, size_t bytes) const;
  // Where this rank reads the owner's result.
  const std::byte* out_section(uint64_t chunk, uint32_t owner) const;

  // A whole chunk of one rank, through all sections of its out area.
  [[nodiscard]] mep_result_t publish_whole(uint64_t chunk, const void* data, size_t bytes) const;
  const std::byte* whole(uint64_t chunk, uint32_t owner) const {
    const Remote& remote = (*remotes_)[owner];
    return (remote.mapped != nullptr ? remote.mapped : window_) + area_offset(1, chunk);
  }

  [[nodiscard]] mep_result_t signal_all(Word word, uint64_t chunk) const;
  [[nodiscard]] mep_result_t signal_one(Word word, uint64_t chunk, uint32_t target) const;
  bool arrived(Word word, uint64_t chunk, uint32_t source) const {
    return source == rank_ ||
           load_signal(window_, word_offset(word, chunk, source)) == counted_signal(epoch_, chunk);
  }
  // True once the word of `chunk` has come from all live ranks; *cursor remembers how far it looked.
  bool arrived_from_all(Word word, uint64_t chunk, uint32_t* cursor) const;

  [[nodiscard]] mep_result_t signal_finished(uint64_t seq) const;
  bool all_finished(uint64_t seq, uint32_t* cursor) const;
  // A leader signals to the other leaders, once, when all of its host have finished.
  [[nodiscard]] mep_result_t signal_finished_to_leaders(uint64_t seq);
  // It may not go on before: the last word of its host may come only after it has looked.
  bool leaders_signalled(uint64_t seq) const {
    return finish_leaders_.empty() || leaders_signalled_ == seq;
  }
  // When all have finished, it signals to its host.
  [[nodiscard]] mep_result_t signal_finished_to_host(uint64_t seq) const;

  HostPipeline& hosts() { return hosts_; }
  const HostPipeline& hosts() const { return hosts_; }

  const std::vector<uint32_t>& live() const { return live_; }
  // Position of this rank among the live ones.
  uint32_t position() const { return position_; }
  uint32_t position_of(uint32_t rank) const { return position_of_[rank]; }

  // The control thread, while the channel is frozen.
  // All ranks, this one too, have all data of seq.
  bool finished_by_all(uint64_t epoch, uint64_t seq) const;
  void zero_words();

 private:
  static constexpr uint64_t kWordKinds = HostPipeline::kWordKinds;

  [[nodiscard]] mep_result_t publish(uint64_t offset, const void* data, size_t bytes) const;
  void set_finish_order(const HostGroups& groups, bool through_leaders);
  bool finished_by(const std::vector<uint32_t>& ranks, uint64_t seq, uint32_t* cursor) const;

  uint64_t word_offset(Word word, uint64_t chunk, uint32_t source) const {
    return offset_ +
           ((static_cast<uint64_t>(word) * kRing + chunk % kRing) * size_ + source) * kLine;
  }
  uint64_t finished_offset(uint64_t seq, uint32_t source) const {
    return offset_ + ((kWordKinds * kRing + seq % 2) * size_ + source) * kLine;
  }
  uint64_t area_offset(uint64_t which, uint64_t chunk) const {
    return areas_ + (which * kRing + chunk % kRing) * area_bytes_;
  }

  uint32_t rank_ = 0;
  uint32_t size_ = 0;
  uint32_t position_ = 0;
  uint64_t offset_ = 0;      // of the words in the window
  uint64_t areas_ = 0;       // of the areas in the window
  uint64_t area_bytes_ = 0;  // of one area
  size_t section_bytes_ = 0;
  const std::vector<Remote>* remotes_ = nullptr;
  std::byte* window_ = nullptr;
  std::vector<uint32_t> live_;
  bool is_mapped_ = false;  // some other live rank reads this one's window
  // The ranks of "finished" words. The last three are a leader's.
  std::vector<uint32_t> finish_targets_;       // whom this rank signals to when it has finished
  std::vector<uint32_t> finish_sources_;       // whose it waits for in the end
  std::vector<uint32_t> finish_host_sources_;  // whose before it signals to the other leaders
  std::vector<uint32_t> finish_leaders_;       // these
  std::vector<uint32_t> finish_host_targets_;  // whom it signals to when all have finished
  uint64_t leaders_signalled_ = 0;             // seq
  std::vector<uint32_t> position_of_;          // rank -> position among the live ranks
  uint64_t epoch_ = 0;
  uint64_t next_chunk_ = 0;
  HostPipeline hosts_;
};

}  // namespace mep
