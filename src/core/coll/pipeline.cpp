#include "core/coll/pipeline.hpp"

#include <algorithm>
#include <iterator>

#include "base/status.hpp"
#include "base/test_delay.hpp"

namespace mep {
namespace {

constexpr size_t round_up(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

size_t words_bytes(uint32_t size, uint64_t word_rings) {
  return round_up(word_rings * size * Pipeline::kLine, 4096);
}

size_t area_bytes_for(uint32_t size) {
  return round_up(Pipeline::kChunkBytes + size * Pipeline::kLine, 4096);
}

}  // namespace

size_t Pipeline::window_bytes(uint32_t size) {
  // Fewer than four ranks are never several to a host on several hosts alike, so they add no sums.
  constexpr uint32_t kFewestWithSums = 4;
  return words_bytes(size, kWordKinds * kRing + 2) + 2 * kRing * area_bytes_for(size) +
         round_up(HostPipeline::words_bytes(size), 4096) +
         (size < kFewestWithSums ? 0 : HostPipeline::area_bytes());
}

void Pipeline::open(uint32_t rank, uint64_t window_offset, const std::vector<Remote>* remotes) {
  rank_ = rank;
  size_ = static_cast<uint32_t>(remotes->size());
  offset_ = window_offset;
  areas_ = window_offset + words_bytes(size_, kWordKinds * kRing + 2);
  area_bytes_ = area_bytes_for(size_);
  remotes_ = remotes;
  static_assert(HostPipeline::area_bytes() <= kRing * kChunkBytes);
  const uint64_t out = areas_ + kRing * area_bytes_;
  const uint64_t words = out + kRing * area_bytes_;
  hosts_.open(rank, words, {areas_, out, words + round_up(HostPipeline::words_bytes(size_), 4096)},
              remotes);
}

void Pipeline::use_window(std::byte* window) {
  window_ = window;
  hosts_.use_window(window);
}

void Pipeline::restart(uint64_t epoch, const std::vector<uint32_t>& live, const HostGroups& groups,
                       bool through_leaders) {
  epoch_ = epoch;
  live_ = live;
  next_chunk_ = 0;
  position_of_.assign(size_, 0);
  for (uint32_t i = 0; i < live_.size(); ++i) {
    position_of_[live_[i]] = i;
    if (live_[i] == rank_) position_ = i;
  }
  is_mapped_ = std::any_of(live_.begin(), live_.end(), [this](uint32_t peer) {
    return peer != rank_ && (*remotes_)[peer].mapped != nullptr;
  });
  section_bytes_ = round_up(kChunkBytes / live_.size(), kLine);
  set_finish_order(groups, through_leaders);
  hosts_.restart(epoch, groups);
}

void Pipeline::set_finish_order(const HostGroups& groups, bool through_leaders) {
  const auto others = [this](const std::vector<uint32_t>& ranks) {
    std::vector<uint32_t> result;
    std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(result),
                 [this](uint32_t peer) { return peer != rank_; });
    return result;
  };
  finish_targets_ = finish_sources_ = others(live_);
  finish_host_sources_.clear();
  finish_leaders_.clear();
  finish_host_targets_.clear();
  leaders_signalled_ = 0;
  const HostGroup& own = groups.own();
  if (through_leaders && own.leader() != rank_) {
    finish_targets_ = finish_sources_ = {own.leader()};
  } else if (through_leaders) {
    finish_targets_.clear();
    finish_host_targets_ = finish_sources_ = others(own.ranks);
    finish_host_sources_ = own.ranks;
    for (const HostGroup& group : groups.all()) {
      if (!groups.is_own(group)) finish_leaders_.push_back(group.leader());
    }
    finish_sources_.insert(finish_sources_.end(), finish_leaders_.begin(), finish_leaders_.end());
  }
  finish_sources_.push_back(rank_);
}

mep_result_t Pipeline::publish_out(uint64_t chunk, size_t bytes) const {
  return publish(area_offset(1, chunk) + position_ * section_bytes_, own_out(chunk), bytes);
}

mep_result_t Pipeline::publish_section(uint64_t chunk, const void* data, size_t bytes) const {
  const uint64_t offset = area_offset(1, chunk) + position_ * section_bytes_;
  if (is_mapped_) std::memcpy(window_ + offset, data, bytes);
  return publish(offset, data, bytes);
}

mep_result_t Pipeline::publish_whole(uint64_t chunk, const void* data, size_t bytes) const {
  const uint64_t offset = area_offset(1, chunk);
  if (is_mapped_) std::memcpy(window_ + offset, data, bytes);
  return publish(offset, data, bytes);
}

// Brings what mapped peers read at `offset` to the others.
mep_result_t Pipeline::publish(uint64_t offset, const void* data, size_t bytes) const {
  MEP_TEST_DELAY_POINT("large publish");
  for (const uint32_t peer : live_) {
    const Remote& remote = (*remotes_)[peer];
    if (peer == rank_ || remote.mapped != nullptr || bytes == 0) continue;
    MEP_TRY(remote.put(offset, data, bytes));
  }
  return MEP_SUCCESS;
}

const std::byte* Pipeline::out_section(uint64_t chunk, uint32_t owner) const {
  MEP_TEST_DELAY_POINT("large copy");
  const Remote& remote = (*remotes_)[owner];
  const std::byte* base = remote.mapped != nullptr ? remote.mapped : window_;
  return base + area_offset(1, chunk) + position_of_[owner] * section_bytes_;
}

mep_result_t Pipeline::signal_one(Word word, uint64_t chunk, uint32_t target) const {
  return (*remotes_)[target].signal(word_offset(word, chunk, rank_), counted_signal(epoch_, chunk));
}

mep_result_t Pipeline::signal_all(Word word, uint64_t chunk) const {
  for (const uint32_t peer : live_) {
    if (peer != rank_) MEP_TRY(signal_one(word, chunk, peer));
  }
  return MEP_SUCCESS;
}

bool Pipeline::arrived_from_all(Word word, uint64_t chunk, uint32_t* cursor) const {
  for (; *cursor < live_.size(); ++*cursor) {
    if (!arrived(word, chunk, live_[*cursor])) return false;
  }
  *cursor = 0;
  return true;
}

mep_result_t Pipeline::signal_finished(uint64_t seq) const {
  const uint64_t word = counted_signal(epoch_, seq);
  // Release: the control thread that finds it here counts this rank's data as complete.
  reinterpret_cast<std::atomic<uint64_t>*>(window_ + finished_offset(seq, rank_))
      ->store(word, std::memory_order_release);
  for (const uint32_t peer : finish_targets_) {
    MEP_TRY((*remotes_)[peer].signal(finished_offset(seq, rank_), word));
  }
  return MEP_SUCCESS;
}

mep_result_t Pipeline::signal_finished_to_leaders(uint64_t seq) {
  uint32_t cursor = 0;
  if (leaders_signalled(seq) || !finished_by(finish_host_sources_, seq, &cursor))
    return MEP_SUCCESS;
  MEP_TEST_DELAY_POINT("finish relay");
  for (const uint32_t leader : finish_leaders_) {
    MEP_TRY((*remotes_)[leader].signal(finished_offset(seq, rank_), counted_signal(epoch_, seq)));
  }
  leaders_signalled_ = seq;
  return MEP_SUCCESS;
}

mep_result_t Pipeline::signal_finished_to_host(uint64_t seq) const {
  for (const uint32_t peer : finish_host_targets_) {
    MEP_TRY((*remotes_)[peer].signal(finished_offset(seq, rank_), counted_signal(epoch_, seq)));
  }
  return MEP_SUCCESS;
}

bool Pipeline::finished_by(const std::vector<uint32_t>& ranks, uint64_t seq,
                           uint32_t* cursor) const {
  for (; *cursor < ranks.size(); ++*cursor) {
    const uint64_t word = load_signal(window_, finished_offset(seq, ranks[*cursor]));
    if (word != counted_signal(epoch_, seq)) return false;
  }
  *cursor = 0;
  return true;
}

bool Pipeline::all_finished(uint64_t seq, uint32_t* cursor) const {
  return finished_by(finish_sources_, seq, cursor);
}

bool Pipeline::finished_by_all(uint64_t epoch, uint64_t seq) const {
  if (window_ == nullptr) return false;  // the comm is being made
  uint32_t cursor = 0;
  return epoch == epoch_ && live_.size() > 1 && all_finished(seq, &cursor);
}

void Pipeline::zero_words() {
  if (window_ == nullptr) return;
  for (uint64_t i = 0; i < (kWordKinds * kRing + 2) * size_; ++i)
    zero_signal(window_, offset_ + i * kLine);
  hosts_.zero_words();
}

}  // namespace mep
