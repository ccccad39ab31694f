// Memory that a worker process shares with the director: one memory file per process. It outlives the process,
// so a killed worker's records are still there. One writer per field; the record ring has the
// worker as its writer and the director as its reader.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/world/view_change_times.hpp"

namespace mep::chaos {

constexpr uint32_t kMaxRanks = 64;
constexpr uint64_t kRingRecords = uint64_t{1} << 15;

enum class WorkerState : uint32_t { kStarting, kJoining, kRunning, kEnded };

enum class Kind : uint32_t {
  kSync,  // the operation that follows every failure and every admission: who is in, where we are
  kCommand,
  kAllreduceSmall,
  kAllreduceLarge,
  kAllgather,
  kBroadcastSmall,
  kBroadcastLarge,
  kBarrier,
  kMoe,
  kRecover,
  kGrow,
  kCount
};

enum class RecordType : uint32_t {
  kResult,  // of one operation
  kReport,  // an error that belongs to no operation
  kWrong,   // a check inside the worker failed; `kind` and `detail` say which
  kView,    // a view change was installed here; `times`
  kSample,  // resources of the process
  kEnd      // the worker leaves; `result` says why
};

// Resources of a process; mappings are those of files and memory files, pages the anonymous ones.
struct Sample {
  uint64_t fds;  // but for listeners
  uint64_t listeners;
  uint64_t threads;
  uint64_t mappings;
  uint64_t pages;
};

struct Record {
  RecordType type = RecordType::kResult;
  Kind kind = Kind::kSync;
  int32_t result = 0;
  uint32_t detail = 0;
  uint64_t at_ns = 0;
  uint64_t iteration = 0;
  uint64_t epoch = 0;
  uint64_t seq = 0;
  uint64_t contributors = 0;
  uint64_t digest = 0;  // of the result's bytes
  union {
    ViewChangeTimes times;
    Sample sample;
    char text[120];
  };
  Record() : text{} {}
};

// The director's orders to a worker; the highest serial that any worker has seen is carried out by all.
// serial << 40 | verb << 32 | ranks (bit r: rank r; growth: how many)
enum class Verb : uint64_t { kNone = 0, kStop = 1, kRecover = 2, kGrow = 3, kSample = 4 };
constexpr const char* kKindNames[] = {"sync",
                                      "command",
                                      "small allreduce",
                                      "large allreduce",
                                      "allgather",
                                      "small broadcast",
                                      "large broadcast",
                                      "barrier",
                                      "moe",
                                      "recover",
                                      "grow"};
inline const char* name_of(Kind kind) {
  const auto index = static_cast<uint32_t>(kind);
  return index < static_cast<uint32_t>(Kind::kCount) ? kKindNames[index] : "?";
}

constexpr uint64_t make_command(uint64_t serial, Verb verb, uint64_t ranks) {
  return serial << 40 | static_cast<uint64_t>(verb) << 32 | (ranks & 0xffffffffu);
}
constexpr uint64_t command_serial(uint64_t command) {
  return command >> 40;
}
constexpr Verb command_verb(uint64_t command) {
  return static_cast<Verb>(command >> 32 & 0xff);
}
constexpr uint64_t command_ranks(uint64_t command) {
  return command & 0xffffffffu;
}

// All atomics: release by the writer, acquire by the reader, unless a comment says otherwise.
struct Page {
  // The worker's.
  std::atomic<WorkerState> state{WorkerState::kStarting};
  std::atomic<uint64_t> iteration{0};
  std::atomic<uint64_t> epoch{0};
  std::atomic<uint64_t> members{0};      // contributors of the last operation of all
  std::atomic<uint64_t> done_serial{0};  // of the last command that was carried out
  std::atomic<uint64_t> acted_ns{0};     // when a failpoint or the worker struck
  std::atomic<uint64_t> join_called_ns{0};
  std::atomic<uint64_t> written{0};
  // The director's.
  std::atomic<uint64_t> read{0};
  std::atomic<uint64_t> command{0};
  std::atomic<uint64_t> kill_at_iteration{0};  // 0: never
  std::atomic<uint64_t> arm_serial{0};         // a new value: `failpoint` is to be armed
  char failpoint[128] = {};
  Record records[kRingRecords];
};

}  // namespace mep::chaos
