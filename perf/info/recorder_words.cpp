#include "recorder_words.hpp"

#include <bit>
#include <cstdio>
#include <ctime>

#include "../types.hpp"
#include "mep.h"
#include "protocol/operations.hpp"

namespace mep {

using flight::Kind;
using flight::Record;

namespace {

template <typename... Arguments>
std::string format(const char* text, Arguments... arguments) {
  char line[512];
  (void)std::snprintf(line, sizeof line, text, arguments...);
  return line;
}

}  // namespace

bool has(const Record& record, uint8_t flag) {
  return (record.flags & flag) != 0;
}

bool is_message(const Record& record) {
  return record.kind == Kind::kSend || record.kind == Kind::kReceive ||
         record.kind == Kind::kMessages;
}

uint64_t unix_ns(const RecorderFile& file, uint64_t mono_ns) {
  return file.header.wall_ns + mono_ns - file.header.mono_ns;
}

std::string time_text(const RecorderFile& file, uint64_t mono_ns) {
  const uint64_t wall_ns = unix_ns(file, mono_ns);
  const auto seconds = static_cast<time_t>(wall_ns / 1'000'000'000);
  tm day{};
  if (gmtime_r(&seconds, &day) == nullptr) return "?";
  return format("%02d:%02d:%02d.%06u", day.tm_hour, day.tm_min, day.tm_sec,
                static_cast<unsigned>(wall_ns % 1'000'000'000 / 1000));
}

std::string duration_text(const Record& record) {
  if (!has(record, flight::kEnded)) return "has not ended";
  if (record.ended_ns == 0) return "";
  const auto ns = static_cast<double>(static_cast<int64_t>(record.ended_ns - record.begun_ns));
  if (ns < 1e3) return format("%.0f ns", ns);
  if (ns < 1e6) return format("%.1f us", ns / 1e3);
  if (ns < 1e9) return format("%.1f ms", ns / 1e6);
  return format("%.1f s", ns / 1e9);
}

std::string ranks_text(uint64_t mask) {
  std::string text = std::popcount(mask) == 1 ? "rank " : "ranks ";
  const char* before = "";
  for (int rank = 0; rank < 64; ++rank) {
    if (((mask >> rank) & 1) == 0) continue;
    const int last = rank + std::countr_one(mask >> rank) - 1;
    text += before + std::to_string(rank);
    if (last > rank + 1) {
      text += " to " + std::to_string(last);
      rank = last;
    }
    before = ", ";
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

}  // namespace mep
