#include "core/coll/host_pipeline.hpp"

#include <algorithm>
#include <iterator>

#include "base/status.hpp"
#include "base/test_delay.hpp"

namespace mep {

void HostPipeline::open(uint32_t rank, uint64_t words, const uint64_t (&areas)[3],
                        const std::vector<Remote>* remotes) {
  rank_ = rank;
  words_ = words;
  std::copy(std::begin(areas), std::end(areas), areas_);
  remotes_ = remotes;
}

void HostPipeline::restart(uint64_t epoch, const HostGroups& groups) {
  epoch_ = epoch;
  groups_ = groups;
  index_of_.assign(remotes_->size(), 0);
  publisher_of_.assign(remotes_->size(), rank_);
  host_peers_.clear();
  entry_ranks_.clear();
  published_here_.clear();
  uint64_t live = 0;
  for (const HostGroup& group : groups_.all()) {
    for (uint32_t i = 0; i < group.ranks.size(); ++i) index_of_[group.ranks[i]] = i;
    live += group.ranks.size();
  }
  for (const HostGroup& group : groups_.all()) {
    const bool own = groups_.is_own(group);
    if (!own) entry_ranks_.push_back(entry_rank_of(group, rank_));
    for (const uint32_t each : group.ranks) {
      publisher_of_[each] = own ? each : entry_rank_of(groups_.own(), each);
      if (own && each != rank_) host_peers_.push_back(each);
      if (!own && publisher_of_[each] == rank_) published_here_.push_back(each);
    }
  }
  receivers_ = host_peers_;
  receivers_.insert(receivers_.end(), entry_ranks_.begin(), entry_ranks_.end());
  // An allgather gives each rank a line of a chunk at least.
  several_ = groups_.all().size() > 1 && live <= kChunkBytes / kLine;
  in_blocks_ = several_ && groups_in_blocks();
}

bool HostPipeline::groups_in_blocks() const {
  const std::vector<HostGroup>& groups = groups_.all();
  const size_t each = groups.front().ranks.size();
  for (size_t i = 1; i < groups.size(); ++i) {
    if (groups[i].ranks.size() != each || groups[i].leader() < groups[i - 1].ranks.back()) {
      return false;
    }
  }
  return each > 1;
}

const std::byte* HostPipeline::read(Area area, uint64_t chunk, size_t offset,
                                    uint32_t owner) const {
  MEP_TEST_DELAY_POINT("hosts read");
  const Remote& remote = (*remotes_)[owner];
  return (remote.mapped != nullptr ? remote.mapped : window_) + area_offset(area, chunk) + offset;
}

mep_result_t HostPipeline::put_to_host_peers(Area area, uint64_t chunk, size_t offset,
                                             size_t bytes) const {
  MEP_TEST_DELAY_POINT("hosts publish");
  for (const uint32_t peer : host_peers_) {
    if ((*remotes_)[peer].mapped != nullptr || bytes == 0) continue;
    MEP_TRY(put(area, chunk, offset, own(area, chunk, offset), bytes, peer));
  }
  return MEP_SUCCESS;
}

mep_result_t HostPipeline::put_to_entry_ranks(Area area, uint64_t chunk, size_t offset,
                                              size_t bytes) const {
  MEP_TEST_DELAY_POINT("hosts send");
  for (const uint32_t entry_rank : entry_ranks_) {
    if (bytes != 0) MEP_TRY(put(area, chunk, offset, own(area, chunk, offset), bytes, entry_rank));
  }
  return MEP_SUCCESS;
}

mep_result_t HostPipeline::signal_all(Word word, uint64_t chunk, uint32_t about,
                                      const std::vector<uint32_t>& targets) const {
  for (const uint32_t target : targets) MEP_TRY(signal(word, chunk, about, target));
  return MEP_SUCCESS;
}

bool HostPipeline::arrived_from(const std::vector<uint32_t>& ranks, Word word,
                                uint64_t chunk) const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](uint32_t each) { return arrived(word, chunk, each); });
}

void HostPipeline::zero_words() {
  for (uint64_t i = 0; i < kWordKinds * kRing * remotes_->size(); ++i) {
    zero_signal(window_, words_ + i * kLine);
  }
}

}  // namespace mep
