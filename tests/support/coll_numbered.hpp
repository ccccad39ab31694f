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
    inputs_.resize(count_ * facts().send_blocks(ranks));
    for (size_t i = 0; i < inputs_.size(); ++i) {
      inputs_[i] = word_of(rank, static_cast<int>(i / count_));
    }
    const bool gets = facts().gets(static_cast<uint32_t>(rank), static_cast<uint32_t>(root_));
    outputs_.assign(gets ? count_ * facts().receive_blocks(ranks) : 0, 0);
  }
  mep_result_t start(mep_comm_t comm, mep_request_t* request) {
    return mep::start_collective(
        kind_, {inputs_.data(), outputs_.data(), count_, MEP_UINT64, MEP_OR, root_}, comm, request);
  }
  void check(Report& found) const {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const uint64_t expected = expected_at(i);
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
                                    Kind::k_scatter,        Kind::k_reduce};
  const mep::OperationFacts& facts() const { return mep::facts_of(kind_); }
  // In block number `block` of what a rank gives.
  uint64_t word_of(int rank, int block) const {
    return uint64_t{1} << rank | static_cast<uint64_t>(block) << 16 |
           static_cast<uint64_t>(number_) << 32;
  }
  uint64_t expected_at(size_t i) const {
    const int block =
        kind_ == Kind::k_reduce_scatter || kind_ == Kind::k_alltoall || kind_ == Kind::k_scatter
            ? rank_
            : 0;
    if (kind_ == Kind::k_broadcast || kind_ == Kind::k_scatter) return word_of(root_, block);
    if (facts().takes_op) {
      uint64_t everybody = 0;
      for (int rank = 0; rank < size_; ++rank) {
        if (!ended_ || rank != ending_) everybody |= word_of(rank, block);
      }
      return everybody;
    }
    const int rank = static_cast<int>(i / count_);
    return ended_ && rank == ending_ ? 0 : word_of(rank, block);
  }

  int number_, rank_, size_, ending_;
  bool ended_;
  Kind kind_{};
  int root_ = 0;
  size_t count_ = 0;
  std::vector<uint64_t> inputs_;
  std::vector<uint64_t> outputs_;
};

// What one rank does: calls in a row until one fails, and some more.
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
  // Of the rank that will end.
  void call_before(int number, mep_comm_t comm, Report& found) const {
    COLL_OK(found, call(number, comm, found));
  }

 private:
  mep_result_t call(int number, mep_comm_t comm, Report& found) const {
    NumberedCall one(number, rank, size, ending, mine->failures != 0);
    mep_request_t request = nullptr;
    mep_result_t result = one.start(comm, &request);
    if (result == MEP_SUCCESS) result = mep_request_wait(&request, 0xffffffff, nullptr);
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
