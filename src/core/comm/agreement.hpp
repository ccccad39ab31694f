// How the ranks of a comm make something together, in steps each of which may fail on one rank alone.
//
// Each step is the rank's own and acquires all that it needs, memory too; then all agree on how it went, by an
// operation that needs none. So a rank that has run out of something says so, and all that live return the same
// error. Code between two agreed operations must be such a step, or must need nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/guarded.hpp"
#include "core/comm/comm.hpp"
#include "mep.h"

namespace mep {

// All of these are operations of the comm that count as calls of the user's (mep.h): mep_comm_last_op tells of
// them.

// Collective; needs no memory. The largest of what the ranks give.
[[nodiscard]] mep_result_t find_largest(Comm& comm, uint64_t own, uint64_t* largest);

// Collective; needs no memory. How this rank's step went, and what a rank that failed could not do.
[[nodiscard]] mep_result_t agree_on_step(Comm& comm, mep_result_t own, const char* what);

// Collective: takes this rank's step and agrees on it.
template <typename Body>
[[nodiscard]] mep_result_t step_together(Comm& comm, const char* what, Body&& body) {
  return agree_on_step(comm, guarded(std::forward<Body>(body)), what);
}

// Reports of changes that a call goes over. The next call of the comm gives them: deferred at the end, so that the
// call's own operations do not fail for them again.
class PassedReports {
 public:
  enum Over { kLosses, kLossesAndRevokes };
  explicit PassedReports(Comm& comm, Over over = kLosses) : comm_(comm), over_(over) {}
  PassedReports(const PassedReports&) = delete;
  PassedReports& operator=(const PassedReports&) = delete;
  ~PassedReports();

  // Repeats `operation`, which all survivors call alike, while it ends by a change that members have gone, or by a
  // revoke if those are gone over too.
  [[nodiscard]] mep_result_t run(FunctionRef<mep_result_t()> operation);
  const std::vector<Reports::Report>& met() const { return met_; }

 private:
  Comm& comm_;
  const Over over_;
  std::vector<Reports::Report> met_;
};

// Collective; the first operation of a comm that was made larger. All its ranks, those that have just come too, report
// first the changes that members went over while they made it (`passed`; null: this rank has just come).
[[nodiscard]] mep_result_t share_reports(Comm& grown, const PassedReports* passed);

// Some numbers of every rank.
class RankValues {
 public:
  // Throws std::bad_alloc. In a step, before gather().
  void reserve(const Comm& comm, size_t most) { all_.reserve(comm.size() * most); }
  // Collective; as many of every rank, at most those that there is room for. Those of absent ranks are this
  // rank's.
  [[nodiscard]] mep_result_t gather(Comm& comm, std::span<const uint64_t> mine);
  uint64_t of(uint32_t rank, size_t index = 0) const { return all_[rank * count_ + index]; }
  // The first rank whose value is not that of rank 0; `ranks`: there is none.
  uint32_t first_other(uint32_t ranks, size_t index = 0) const;

 private:
  size_t count_ = 0;  // of each rank
  std::vector<uint64_t> all_;
};

}  // namespace mep
