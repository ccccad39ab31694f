// Rows of large calls in which one rank ends: every word of a result names the call and the ranks that
// took part, so that nothing stale passes for a result.
#pragma once

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
    kind_ = number % 3;
    count_ = 6'000 + static_cast<size_t>(number) * 7919 % 40'000 * (kind_ == 1 ? 1 : 4);
    // A root that has ended fails its calls; here one of the others is.
    root_ = number / 3 % size;
    if (ended && root_ == ending) root_ = (root_ + 1) % size;
    inputs_.assign(count_, word_of(rank));
    outputs_.assign(count_ * (kind_ == 1 ? static_cast<size_t>(size) : 1), 0);
  }
  mep_result_t start(mep_comm_t comm, mep_request_t* request) {
    if (kind_ == 0) {
      return mep_iallreduce(inputs_.data(), outputs_.data(), count_, MEP_UINT64, MEP_OR, comm,
                            request);
    }
    if (kind_ == 1) {
      return mep_iallgather(inputs_.data(), outputs_.data(), count_, MEP_UINT64, comm, request);
    }
    return mep_ibroadcast(inputs_.data(), outputs_.data(), count_, MEP_UINT64, root_, comm,
                          request);
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
  uint64_t word_of(int rank) const {
    return uint64_t{1} << rank | static_cast<uint64_t>(number_) << 32;
  }
  uint64_t expected_at(size_t i) const {
    if (kind_ == 2) return word_of(root_);
    if (kind_ == 0) {
      uint64_t everybody = (uint64_t{1} << size_) - 1;
      if (ended_) everybody &= ~(uint64_t{1} << ending_);
      return everybody | static_cast<uint64_t>(number_) << 32;
    }
    const int rank = static_cast<int>(i / count_);
    return ended_ && rank == ending_ ? 0 : word_of(rank);
  }

  int number_, rank_, size_, ending_;
  bool ended_;
  int kind_ = 0;
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
