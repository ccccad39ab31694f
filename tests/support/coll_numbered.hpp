// Rows of large calls in which one rank ends: every word of a result names the call and the ranks that
// took part, so that nothing stale passes for a result.
#pragma once

#include "protocol/operation_calls.hpp"
#include "support/coll_ranks.hpp"

namespace mep_test {

struct Ending {
  int successes = 0;  // before the failure
  int failures = 0;
};

// One call of a row: the number of the call and the ranks that take part are in every word.
class NumberedCall {
 public:
  NumberedCall(int number, int rank, int size, int ending, bool ended)
      : number_(number), rank_(rank), size_(size), ending_(ending), ended_(ended) {
    kind_ = kKinds[static_cast<size_t>(number) % std::size(kKinds)];
    const auto ranks = static_cast<size_t>(size);
    const bool many = facts().gives_each_a_block() || facts().gets_a_block_of_each();
    count_ = 6'000 + static_cast<size_t>(number) * 7919 % 40'000 * (many ? 1 : 4);
    // A root that has ended fails its calls; here one of the others is.
    root_ = number / static_cast<int>(std::size(kKinds)) % size;
    if (ended && root_ == ending) root_ = (root_ + 1) % size;
    for (int block = 0; block < static_cast<int>(facts().send_blocks(ranks)); ++block) {
      given_.push_back(count_of(rank, facts().gives_each_a_block() ? block : rank));
      inputs_.insert(inputs_.end(), given_.back(), word_of(rank, block));
    }
    const bool gets = facts().gets(static_cast<uint32_t>(rank), static_cast<uint32_t>(root_));
    for (int block = 0; gets && block < static_cast<int>(facts().receive_blocks(ranks)); ++block) {
      gotten_.push_back(count_of(facts().gets_a_block_of_each() ? block : rank, rank));
      outputs_.resize(outputs_.size() + gotten_.back());
    }
  }
  mep_result_t start(mep_comm_t comm, mep_request_t* request) {
    mep::OperationCall call{inputs_.data(), outputs_.data(), count_, MEP_UINT64, MEP_OR, root_};
    if (facts().has_counts) {
      call.count = count_of(rank_, rank_);
      call.counts = facts().gives_each_a_block() ? given_.data() : gotten_.data();
      call.recv_counts = gotten_.data();
    }
    return mep::start_collective(kind_, call, comm, nullptr, request);
  }
  void check(Report& found) const {
    size_t block = 0;
    size_t end = gotten_.empty() ? 0 : gotten_[0];
    for (size_t i = 0; i < outputs_.size(); ++i) {
      while (i == end) end += gotten_[++block];
      const uint64_t expected = expected_in(static_cast<int>(block));
      if (outputs_[i] == expected) continue;
      found.add("call %d on rank %d of %d, word %zu of %zu: 0x%llx, not 0x%llx", number_, rank_,
                size_, i, outputs_.size(), static_cast<unsigned long long>(outputs_[i]),
                static_cast<unsigned long long>(expected));
      return;
    }
  }

 private:
  using Kind = mep::Collective;
  static constexpr Kind kKinds[] = {Kind::k_allreduce,      Kind::k_allgather, Kind::k_broadcast,
                                    Kind::k_reduce_scatter, Kind::k_alltoall,  Kind::k_gather,
                                    Kind::k_scatter,        Kind::k_reduce,    Kind::k_alltoallv,
                                    Kind::k_allgatherv,     Kind::k_gatherv,   Kind::k_scatterv,
                                    Kind::k_reduce_scatterv};
  const mep::OperationFacts& facts() const { return mep::facts_of(kind_); }
  // Words that `source` gives `target`: with counts all, a part or nothing.
  size_t count_of(int source, int target) const {
    if (!facts().has_counts) return count_;
    const int key = (facts().gets_a_block_of_each() ? source : 0) +
                    (facts().gives_each_a_block() ? 2 * target : 0);
    return count_ * static_cast<size_t>((key + number_) % 4) / 3;
  }
  // In block number `block` of what a rank gives.
  uint64_t word_of(int rank, int block) const {
    return uint64_t{1} << rank | static_cast<uint64_t>(block) << 16 |
           static_cast<uint64_t>(number_) << 32;
  }
  // In block number `from` of what this rank gets.
  uint64_t expected_in(int from) const {
    const Content content =
        content_of(kind_, static_cast<size_t>(root_), static_cast<size_t>(rank_),
                   static_cast<size_t>(size_), static_cast<size_t>(from));
    const auto block = static_cast<int>(content.block);
    const auto source = static_cast<int>(content.source);
    if (content.how == Content::kCopy) {
      return ended_ && source == ending_ ? 0 : word_of(source, block);
    }
    uint64_t everybody = 0;
    for (int rank = 0; rank < size_; ++rank) {
      if (!ended_ || rank != ending_) everybody |= word_of(rank, block);
    }
    return everybody;
  }

  int number_, rank_, size_, ending_;
  bool ended_;
  Kind kind_{};
  int root_ = 0;
  size_t count_ = 0;
  std::vector<uint64_t> given_;  // words of each block
  std::vector<uint64_t> gotten_;
  std::vector<uint64_t> inputs_;
  std::vector<uint64_t> outputs_;
};

// One rank's program: calls in a row until one fails, and some more.
struct CallRow {
  int rank;
  int size;
  int ending;  // the rank that ends
  Ending* mine;

  void run(mep_comm_t comm, Report& found) const {
    constexpr int kAfterwards = 7;
    constexpr int kMost = 400;
    int left = kAfterwards;
    for (int i = 0; left > 0 && !found.bad(); ++i) {
      if (i == kMost) found.add("nobody has ended on rank %d in %d calls", rank, i);
      if (call(i, comm, found) == MEP_ERR_PEER_FAILED) {
        ++mine->failures;
      } else if (mine->failures == 0) {
        ++mine->successes;
        continue;
      }
      --left;
    }
  }
  // A call of the rank that will end.
  void call_before(int number, mep_comm_t comm, Report& found) const {
    COLL_OK(found, call(number, comm, found));
  }

 private:
  mep_result_t call(int number, mep_comm_t comm, Report& found) const {
    NumberedCall one(number, rank, size, ending, mine->failures != 0);
    mep_request_t request = nullptr;
    mep_result_t result = one.start(comm, &request);
    if (result == MEP_SUCCESS)
      result = mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, nullptr, nullptr);
    if (result == MEP_SUCCESS) {
      one.check(found);
    } else if (result != MEP_ERR_PEER_FAILED) {
      found.add("call %d on rank %d of %d: %s (%s)", number, rank, size, mep_result_string(result),
                mep_last_error());
    }
    return result;
  }
};

// All others have seen it once, at one and the same call.
inline void require_same_endings(const Ending* endings, int size, int ending) {
  const Ending& first = endings[ending == 0 ? 1 : 0];
  for (int rank = 0; rank < size; ++rank) {
    if (rank == ending) continue;
    assert_int_equal(endings[rank].failures, 1);
    assert_int_equal(endings[rank].successes, first.successes);
  }
}

}  // namespace mep_test
