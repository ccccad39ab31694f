// The ranks of one run as the tool itself needs them: agreeing on a few numbers between
// measurements. By MPI when MPI started the ranks, else by the library's own collectives.
#pragma once

#include <cstddef>
#include <memory>

#include "mep.h"

namespace mep::perf {

class Team {
 public:
  virtual ~Team() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void barrier() = 0;
  // A barrier that sleeps while it waits, so that it disturbs no measurement of another rank.
  virtual void wait_quietly() = 0;
  // Element by element over all ranks; every rank gets the result.
  virtual void maximum(double* values, size_t count) = 0;
  virtual void sum(double* values, size_t count) = 0;
};

std::unique_ptr<Team> make_mep_team(mep_comm_t comm);

}  // namespace mep::perf
