// Judges what the ranks of a program wrote down. It knows mep.h and the program, and nothing of how the
// library works.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "journal.hpp"
#include "program.hpp"

namespace mep::programs {

// A time for which a process was stopped.
struct Stop {
  uint64_t from_ns = 0;
  uint64_t to_ns = UINT64_MAX;  // SIGCONT was sent
};

// The fate of one process of a program, or of a rank that is a thread.
struct Life {
  uint32_t slot = 0;
  uint32_t generation = 0;
  const Journal* journal = nullptr;
  bool ended = false;  // else it was still there when the time was over
  bool signalled = false;
  int status = 0;         // exit status or signal
  uint64_t ended_ns = 0;  // when that was seen; 0: never
  std::vector<Stop> stops = {};

  bool was_killed() const;  // as the program says
  // It came to the end of the program, or left as the program says.
  bool is_done() const;
  std::string name() const;
};

enum class Class : uint32_t { kCrash, kData, kVerdict, kHang, kInternal, kOther };

struct Finding {
  Class kind = Class::kOther;
  uint32_t step = 0;
  std::string text;
};

const char* name_of(Class kind);

// Findings by step. Empty: all is as it must be.
std::vector<Finding> judge(const Program& program, const std::vector<Life>& lives);

// Calls of mep_recover_ranks that ended by their limit although a joiner could have been admitted.
std::vector<Finding> judge_waits(const Program& program, const std::vector<Life>& lives);

// All journals, by time, for people.
std::string story(const Program& program, const std::vector<Life>& lives);

}  // namespace mep::programs
