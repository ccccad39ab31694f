// The files of a job's ranks in words: who is late, and what each rank did last.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>
#include <tuple>

#include "../types.hpp"
#include "mep.h"
#include "protocol/operations.hpp"
#include "recorder_file.hpp"

namespace mep {
namespace {

using flight::Kind;
using flight::Record;

// Ranks make the operations of one channel in one order.
using Channel = std::pair<uint64_t, uint64_t>;
using Place = std::pair<uint64_t, uint64_t>;  // epoch, number
using Key = std::pair<Channel, Place>;

Key key_of(const Record& record) {
  return {{record.label.comm, record.channel}, {record.epoch, record.number}};
}

bool has(const Record& record, uint8_t flag) {
  return (record.flags & flag) != 0;
}

bool is_message(const Record& record) {
  return record.kind == Kind::kSend || record.kind == Kind::kReceive ||
         record.kind == Kind::kMessages;
}

template <typename... Arguments>
std::string format(const char* text, Arguments... arguments) {
  char line[512];
  (void)std::snprintf(line, sizeof line, text, arguments...);
  return line;
}

std::string time_text(const RecorderFile& file, uint64_t mono_ns) {
  const uint64_t wall_ns = file.header.wall_ns + mono_ns - file.header.mono_ns;
  const auto seconds = static_cast<time_t>(wall_ns / 1'000'000'000);
  tm day{};
  if (gmtime_r(&seconds, &day) == nullptr) return "?";
  return format("%02d:%02d:%02d.%06u", day.tm_hour, day.tm_min, day.tm_sec,
                static_cast<unsigned>(wall_ns % 1'000'000'000 / 1000));
}

std::string duration_text(const Record& record) {
  if (!has(record, flight::kEnded)) return "has not ended";
  const auto ns = static_cast<double>(static_cast<int64_t>(record.ended_ns - record.begun_ns));
  if (ns < 1e3) return format("%.0f ns", ns);
  if (ns < 1e6) return format("%.1f us", ns / 1e3);
  if (ns < 1e9) return format("%.1f ms", ns / 1e6);
  return format("%.1f s", ns / 1e9);
}

std::string ranks_text(uint64_t mask) {
  std::string text = std::popcount(mask) == 1 ? "rank" : "ranks";
  for (int rank = 0; rank < 64; ++rank) {
    if (((mask >> rank) & 1) != 0)
      text += (text.back() == 's' || text.back() == 'k' ? " " : ", ") + std::to_string(rank);
  }
  return text;
}

const char* kind_text(Kind kind) {
  switch (kind) {
    case Kind::kSend:
      return "send";
    case Kind::kReceive:
      return "recv";
    case Kind::kDispatch:
      return "dispatch";
    case Kind::kCombine:
      return "combine";
    case Kind::kMessages:
      return "messages";
    case Kind::kOnStream:
      return "GPU operation";
    default:
      return name_of(static_cast<Collective>(static_cast<uint32_t>(kind) -
                                             static_cast<uint32_t>(Kind::kCollectives)));
  }
}

std::string call_text(const Record& record) {
  std::string text = kind_text(record.kind);
  if (record.number != 0) text += format(" %llu", static_cast<unsigned long long>(record.number));
  text += format(" of %s, epoch %llu", record.label.name,
                 static_cast<unsigned long long>(record.epoch));
  const auto dtype = static_cast<mep_dtype_t>(record.dtype);
  if (record.bytes != 0 && mep_dtype_size(dtype) != 0) {
    text += format(", %llu bytes of %s", static_cast<unsigned long long>(record.bytes),
                   perf::dtype_name(dtype));
  }
  if (record.peer >= 0) {
    const char* const role = record.kind == Kind::kReceive ? "from rank"
                             : is_message(record)          ? "to rank"
                                                           : "root";
    text += format(", %s %d", role, record.peer);
  } else if (record.kind == Kind::kReceive) {
    text += ", from any rank";
  }
  if (has(record, flight::kOwn)) text += ", of the library's own";
  if (has(record, flight::kEnqueued)) text += ", enqueued";
  return text;
}

std::string end_text(const Record& record) {
  std::string text;
  if (has(record, flight::kEnded) && record.result != MEP_SUCCESS) {
    text += std::string(": ") + mep_result_string(record.result);
  }
  if (has(record, flight::kLate)) text += ", over its time";
  if (record.missing != 0) text += ", without " + ranks_text(record.missing);
  return text;
}

const char* state_text(const RecorderFile& file) {
  if (file.is_running) return "runs";
  return file.header.closed == 1 ? "has ended its world" : "is gone without an end of its world";
}

class Report {
 public:
  explicit Report(std::span<const RecorderFile> files) : files_(files) {
    for (const RecorderFile& file : files) {
      auto& latest = latest_[file.header.rank];
      for (const Record& record : file.records) {
        const auto [channel, place] = key_of(record);
        const Record*& known = latest.try_emplace(channel, &record).first->second;
        if (place >= key_of(*known).second) known = &record;
      }
    }
  }

  std::string text() const {
    std::string text = "Files\n";
    for (const RecorderFile& file : files_) {
      text += format("  rank %u of job %s: process %u %s; %zu records", file.header.rank,
                     file.header.job, file.header.pid, state_text(file), file.records.size());
      if (file.torn != 0) text += format(", %zu torn", file.torn);
      text += " in " + file.path + "\n";
    }
    text += "\nOperations that have not ended\n" + waits();
    for (const RecorderFile& file : files_) text += records_of(file);
    return text;
  }

 private:
  struct Wait {
    const Record* record = nullptr;
    const RecorderFile* file = nullptr;
    uint64_t ranks = 0;
  };

  std::string waits() const {
    std::string text;
    std::map<Key, Wait> shared;
    for (const RecorderFile& file : files_) {
      for (const Record& record : file.records) {
        if (has(record, flight::kEnded)) continue;
        if (record.number == 0 || is_message(record)) {
          text += wait_text({&record, &file, bit(file.header.rank)});
          continue;
        }
        Wait& wait = shared[key_of(record)];
        if (wait.record == nullptr) wait = {&record, &file, 0};
        wait.ranks |= bit(file.header.rank);
      }
    }
    for (const auto& [key, wait] : shared) text += wait_text(wait) + late_text(wait);
    return text.empty() ? "  none\n" : text;
  }

  static uint64_t bit(uint32_t rank) { return rank < 64 ? uint64_t{1} << rank : 0; }

  static std::string wait_text(const Wait& wait) {
    return "  " + call_text(*wait.record) + ": " + ranks_text(wait.ranks) + " since " +
           time_text(*wait.file, wait.record->begun_ns) + end_text(*wait.record) + "\n";
  }

  // Whether each other member has begun it.
  std::string late_text(const Wait& wait) const {
    const auto [channel, place] = key_of(*wait.record);
    std::string text;
    uint64_t unknown = wait.record->label.members & ~wait.ranks;
    for (const RecorderFile& file : files_) {
      const uint64_t own = bit(file.header.rank);
      if ((unknown & own) == 0) continue;
      unknown &= ~own;
      const auto& latest = latest_.at(file.header.rank);
      const auto found = latest.find(channel);
      const Record* const last = found == latest.end() ? nullptr : found->second;
      if (last != nullptr && key_of(*last).second >= place) continue;
      text += format("    rank %u has not begun it: its process %s, ", file.header.rank,
                     state_text(file));
      text += last == nullptr ? "and has no record of such operations\n"
                              : "its last was " + call_text(*last) + " at " +
                                    time_text(file, last->begun_ns) + "\n";
    }
    if (unknown != 0) text += "    no file of " + ranks_text(unknown) + " is given\n";
    return text;
  }

  // All of a single file; of several the last.
  std::string records_of(const RecorderFile& file) const {
    constexpr size_t kShown = 20;
    const size_t count = file.records.size();
    const size_t shown = files_.size() == 1 ? count : std::min(count, kShown);
    std::string text = format("\nRank %u, the newest of %zu last (UTC)\n", file.header.rank, count);
    for (const Record& record : std::span(file.records).last(shown)) {
      text += format("  %s %13s  ", time_text(file, record.begun_ns).c_str(),
                     duration_text(record).c_str());
      text += call_text(record) + end_text(record) + "\n";
    }
    return text;
  }

  std::span<const RecorderFile> files_;
  // By rank: the furthest record of each channel.
  std::map<uint32_t, std::map<Channel, const Record*>> latest_;
};

}  // namespace

std::string recorder_text(std::span<const RecorderFile> files) {
  return Report(files).text();
}

}  // namespace mep
