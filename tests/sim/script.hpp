// The programs of the simulated processes: what the user's thread of each calls, and when.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "sim/channels.hpp"

namespace mep::sim {

constexpr uint64_t kWorldComm = 1;
constexpr uint64_t kSubComm = 2;
constexpr uint64_t kOtherComm = 3;
constexpr uint64_t kFirstChild = 1000;  // id of a comm that a split made: this + seq of the split

// How one process goes about one channel.
struct Pace {
  uint32_t window = 1;    // calls under way at once
  uint32_t slowness = 1;  // times the common pause between calls
};

// A comm that a split gave, still to be made here.
struct Birth {
  uint64_t comm = 0;
  Contributors members;
};

// A comm that this process is closing.
struct Closing {
  uint64_t epoch = 0;  // of the comm, when the others were asked
  uint64_t since = 0;
  uint64_t asked_again = 0;
  std::set<std::pair<uint32_t, uint64_t>> awaited;  // (slot, incarnation)
};

// Another asks whether this process holds all of a comm up to `done`.
struct Question {
  uint32_t from = 0;  // node
  uint64_t comm = 0;
  uint64_t done = 0;
};

}  // namespace mep::sim
