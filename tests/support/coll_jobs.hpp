// A short job: a few operations, on the world or on a comm split from it, then every rank leaves at its
// own time.
#pragma once

#include "support/coll_sequence.hpp"

namespace mep_test {

struct ShortJob {
  uint64_t seed;
  int size;
  uint32_t flags;
  size_t operations;
  bool on_child;

  explicit ShortJob(uint64_t of_job) : seed(of_job) {
    RandomStream random(seed);
    size = 1 + static_cast<int>(random.below(4));
    flags = random.one_in(3) ? kPutOnly : 0;
    operations = random.below(6);
    on_child = random.one_in(2);
  }

  void run_rank(int rank, mep_comm_t world, Report& report) const {
    mep_comm_t comm = world;
    if (on_child) COLL_OK(report, mep_comm_split(world, 0, 0, &comm));
    if (comm == nullptr) return;
    run_on(rank, comm, report);
    if (on_child) COLL_OK(report, mep_comm_destroy(comm));
  }

 private:
  void run_on(int rank, mep_comm_t comm, Report& report) const {
    RandomStream shared(seed + 1);
    RandomStream own(mix(seed, static_cast<uint64_t>(rank)));
    for (size_t i = 0; i < operations; ++i) {
      Case c = random_case(shared, size);
      c.count %= 5000;
      CaseRun run(c, rank, size);
      const mep_result_t result = run.run(comm);
      if (result == MEP_SUCCESS) {
        run.check(report);
      } else {
        report.add("%s on rank %d of %d: %s (%s)", describe(c).c_str(), rank, size,
                   mep_result_string(result), mep_last_error());
        return;
      }
      if (own.one_in(4)) pause_us(static_cast<unsigned>(own.below(300)));
    }
    // Before it leaves; who is slow meets members that have gone.
    if (own.one_in(3)) pause_us(static_cast<unsigned>(own.below(3000)));
  }
};

}  // namespace mep_test
