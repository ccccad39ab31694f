// Large messages over several hosts: what a rank does for its host, beside the flat form in pipeline.hpp.
//
//   words           posted, reduced, taken [kRing][size], a line each. A word is about the data of one
//                   rank, which is not always the rank that writes it
//   in, out, sums   [kRing][kChunkBytes]; in and out lie where Pipeline has its areas, which are all free
//                   between two operations
//
// The data of a rank comes to each other host once, to its entry rank there, which publishes it: the rank with
// the same index in its host, or this index modulo the ranks of that host. On a host everybody reads in place
// from the window of the publisher; to ranks that do not map it the publisher puts what lies there, to the same
// place of their own windows. Chunks are counted as in pipeline.hpp; an area is used again kRing chunks later,
// and the comment of each algorithm proves that everybody has finished with it by then.
//
// The words of a rank's data have another writer in another view, so all of this is done inside a
// PostingScope.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/coll/host_groups.hpp"
#include "core/world/remote.hpp"
#include "protocol/signal_word.hpp"

namespace mep {

class HostPipeline {
 public:
  static constexpr uint64_t kRing = 4;
  static constexpr size_t kChunkBytes = size_t{256} << 10;
  static constexpr size_t kLine = 64;

  enum class Word : uint8_t { kPosted = 0, kReduced = 1, kTaken = 2 };
  static constexpr uint64_t kWordKinds = 3;
  enum class Area : uint8_t { kIn = 0, kOut = 1, kSums = 2 };

  static constexpr uint64_t words_bytes(uint32_t size) { return kWordKinds * kRing * size * kLine; }
  static constexpr uint64_t area_bytes() { return kRing * kChunkBytes; }

  // Offsets in the window: of the words, and of the three areas.
  void open(uint32_t rank, uint64_t words, const uint64_t (&areas)[3],
            const std::vector<Remote>* remotes);
  void use_window(std::byte* window) { window_ = window; }
  void restart(uint64_t epoch, const HostGroups& groups);

  // Broadcast and allgather have a form for any several hosts.
  bool several() const { return several_; }
  // Allreduce has one if each host has as many ranks as any other, two or more, and rank order goes
  // from host to host.
  bool in_blocks() const { return in_blocks_; }

  const HostGroups& groups() const { return groups_; }
  // This host's, the present rank included, and the place of this rank among them.
  const std::vector<uint32_t>& host_ranks() const { return groups_.own().ranks; }
  uint32_t index() const { return index_of_[rank_]; }
  // The other ranks of this host.
  const std::vector<uint32_t>& host_peers() const { return host_peers_; }
  // This rank's entry ranks: those that publish its data on the other hosts.
  const std::vector<uint32_t>& entry_ranks() const { return entry_ranks_; }
  // Whom this rank's data goes to: host peers and entry ranks.
  const std::vector<uint32_t>& receivers() const { return receivers_; }
  // The ranks of other hosts whose data this rank publishes on its own.
  const std::vector<uint32_t>& published_here() const { return published_here_; }
  // The rank that publishes the data of `source` on this host: a rank of this host publishes its own.
  uint32_t publisher(uint32_t source) const { return publisher_of_[source]; }
  // This rank's like on the host before or after its own; only while in_blocks().
  uint32_t like_before() const { return groups_.all()[groups_.own_index() - 1].ranks[index()]; }
  uint32_t like_after() const { return groups_.all()[groups_.own_index() + 1].ranks[index()]; }
  bool on_first_host() const { return groups_.own_index() == 0; }
  bool on_last_host() const { return groups_.own_index() + 1 == groups_.all().size(); }

  std::byte* own(Area area, uint64_t chunk, size_t offset) const {
    return window_ + area_offset(area, chunk) + offset;
  }
  // Where this rank reads what `owner`, a rank of its host, has in its window.
  const std::byte* read(Area area, uint64_t chunk, size_t offset, uint32_t owner) const;
  [[nodiscard]] mep_result_t put(Area area, uint64_t chunk, size_t offset, const void* data,
                                 size_t bytes, uint32_t target) const {
    return (*remotes_)[target].put(area_offset(area, chunk) + offset, data, bytes);
  }
  // Puts what lies in this rank's window to host peers that do not map it.
  [[nodiscard]] mep_result_t put_to_host_peers(Area area, uint64_t chunk, size_t offset,
                                               size_t bytes) const;
  // The same to this rank's entry ranks.
  [[nodiscard]] mep_result_t put_to_entry_ranks(Area area, uint64_t chunk, size_t offset,
                                                size_t bytes) const;

  // `about`: whose data the word is about.
  [[nodiscard]] mep_result_t signal(Word word, uint64_t chunk, uint32_t about,
                                    uint32_t target) const {
    return (*remotes_)[target].signal(word_offset(word, chunk, about),
                                      counted_signal(epoch_, chunk));
  }
  [[nodiscard]] mep_result_t signal_all(Word word, uint64_t chunk, uint32_t about,
                                        const std::vector<uint32_t>& targets) const;
  bool arrived(Word word, uint64_t chunk, uint32_t about) const {
    return load_signal(window_, word_offset(word, chunk, about)) == counted_signal(epoch_, chunk);
  }
  bool arrived_from(const std::vector<uint32_t>& ranks, Word word, uint64_t chunk) const;

  // The control thread, while the channel is frozen.
  void zero_words();

 private:
  uint64_t word_offset(Word word, uint64_t chunk, uint32_t about) const {
    return words_ +
           ((static_cast<uint64_t>(word) * kRing + chunk % kRing) * remotes_->size() + about) *
               kLine;
  }
  uint64_t area_offset(Area area, uint64_t chunk) const {
    return areas_[static_cast<size_t>(area)] + (chunk % kRing) * kChunkBytes;
  }
  uint32_t entry_rank_of(const HostGroup& group, uint32_t source) const {
    return group.ranks[index_of_[source] % group.ranks.size()];
  }
  bool groups_in_blocks() const;

  uint32_t rank_ = 0;
  uint64_t words_ = 0;
  uint64_t areas_[3] = {};
  const std::vector<Remote>* remotes_ = nullptr;
  std::byte* window_ = nullptr;
  uint64_t epoch_ = 0;
  HostGroups groups_;
  bool several_ = false;
  bool in_blocks_ = false;
  std::vector<uint32_t> index_of_;      // rank -> index in its host
  std::vector<uint32_t> publisher_of_;  // rank -> rank of this host
  std::vector<uint32_t> host_peers_;
  std::vector<uint32_t> entry_ranks_;
  std::vector<uint32_t> receivers_;
  std::vector<uint32_t> published_here_;
};

}  // namespace mep
