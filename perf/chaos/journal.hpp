// A rank's record of its run: each call when it begins and when it has returned. It lies in
// memory that outlives the process, so a killed rank's journal is there up to its last word. One writer,
// its rank; read when the process has ended, but for `position` and `waits_for`.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string>

#include "mep.h"
#include "resources.hpp"

namespace mep::programs {

enum class Entry : uint32_t {
  kNone,
  kBegin,    // a call begins
  kEnd,      // it has returned
  kWrong,    // a check by the rank itself failed
  kMembers,  // contributors: the slots of a comm that was made
  kView,   // contributors: the slots of the comm that its view has; before a recovery, and after it
  kCount,  // resources
  kDone    // the rank has come to the end of the program
};

// The subject of a kBegin and its kEnd.
enum class What : uint32_t {
  kInit,
  kJoin,
  kCall,
  kAgree,
  kSplit,
  kFree,
  kRevoke,
  kEvict,
  kAbort,
  kRecover,
  kGrow,
  kSync,  // the allreduce by which all find the place to go on at
  kAttach,
  kEpCreate,
  kEpAttach,
  kDispatch,
  kCombine,
  kEpFree,
  kDestroy,
  kMessage
};

struct Record {
  Entry entry = Entry::kNone;
  What what = What::kInit;
  uint32_t step = 0;
  uint32_t part = 0;  // of the step
  uint32_t comm = 0;
  mep_result_t result = 0;
  mep_result_t info_result = 0;  // what mep_comm_last_op said
  bool has_info = false;         // epoch to failed are known
  uint64_t at_ns = 0;
  uint32_t limit_ms = 0;  // of a recovery that begins
  uint64_t epoch = 0;
  uint64_t seq = 0;
  uint64_t contributors = 0;  // slots
  uint64_t failed = 0;        // slots
  uint64_t digest = 0;        // of the bytes that came out
  Resources resources;
  char text[120] = {};
};

constexpr uint32_t kMaxRecords = 4096;

// Atomics: release by the rank, acquire by the reader.
struct Journal {
  std::atomic<uint32_t> count{0};
  // For a watcher of a rank that does not end, and for the start of joiners.
  std::atomic<uint32_t> step{0};
  Record records[kMaxRecords];
};

const char* name_of(What what);

// The end of one rank's part of the world; the others see the rank as gone.
inline bool is_own_end(mep_result_t result) {
  return result == MEP_ERR_EVICTED || result == MEP_ERR_ABORTED || result == MEP_ERR_NO_QUORUM;
}

}  // namespace mep::programs
