// How times are taken. A case is one operation of one size on one side (MEP or MPI). It runs in
// blocks of back-to-back iterations, the sides in turn. A block's time per iteration is the largest
// of all ranks' averages; p50, p99 and min are those of the blocks. On a GPU a block is a graph.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options.hpp"
#include "progress.hpp"
#include "team.hpp"

namespace mep::perf {

// A part of an iteration that is worth a line of its own.
struct Phase {
  std::string name;
  double seconds = 0;  // summed over the iterations run so far
};

class Case {
 public:
  virtual ~Case() = default;
  // Barrier of this case's side, before each block.
  virtual void sync() = 0;
  // Runs it so often and adds the time that counts to *seconds.
  virtual void run(uint64_t iterations, double* seconds) = 0;
  // Collective: one operation on new data; how many values are wrong on this rank.
  virtual uint64_t verify(uint32_t round) = 0;
  // Iterations of a block where the case cannot take any other number; 0: as many as are useful.
  virtual uint64_t block_iterations() const { return 0; }
  // Back to the data of round 0, which is what the timed blocks use.
  virtual void reset() = 0;
  virtual std::vector<Phase> phases() const { return {}; }
};

// Context switches of a rank in one operation: the mean of the ranks and of all timed blocks.
struct Switches {
  double voluntary = 0;  // it slept, or gave its core away
  double involuntary = 0;
};

struct Statistics {
  double p50_us = 0;
  double p99_us = 0;
  double min_us = 0;
  std::vector<Phase> phases;         // of an iteration: median over blocks of the mean over ranks
  std::optional<Switches> switches;  // with --switches
};

Statistics statistics_of(std::vector<double> block_us);

// Collective over the team; *statistics has one entry a case, the same on all ranks.
void measure(const Options& options, Team& team, const std::vector<Case*>& cases,
             Progress& progress, std::vector<Statistics>* statistics);

}  // namespace mep::perf
