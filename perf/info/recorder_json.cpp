// The records of jobs for programs: all of them.
#include "../records.hpp"
#include "../types.hpp"
#include "mep.h"
#include "recorder_report.hpp"
#include "recorder_waits.hpp"
#include "recorder_words.hpp"

namespace mep {
namespace {

using flight::Record;
using perf::json_text;

// An object or, without names, an array.
class Json {
 public:
  explicit Json(char open) : text_(1, open) {}
  Json& add(const std::string& json) {
    text_ += (text_.size() == 1 ? "" : ", ") + json;
    return *this;
  }
  Json& add(const char* name, const std::string& json) {
    return add(json_text(name) + ": " + json);
  }
  Json& number(const char* name, uint64_t value) { return add(name, std::to_string(value)); }
  Json& flag(const char* name, bool value) { return add(name, value ? "true" : "false"); }
  Json& string(const char* name, const std::string& value) { return add(name, json_text(value)); }
  std::string text() const { return text_ + (text_[0] == '[' ? "]" : "}"); }

 private:
  std::string text_;
};

std::string ranks_json(uint64_t mask) {
  Json ranks('[');
  for (uint32_t rank = 0; rank < 64; ++rank) {
    if (((mask >> rank) & 1) != 0) ranks.add(std::to_string(rank));
  }
  return ranks.text();
}

void add_call(const RecorderFile& file, const Record& record, Json* json) {
  json->string("call", call_text(record))
      .string("operation", kind_text(record.kind))
      .string("comm", record.label.name)
      .number("comm_id", record.label.comm)
      .number("channel", record.channel)
      .number("epoch", record.epoch)
      .number("number", record.number)
      .number("bytes", record.bytes)
      .number("begun_unix_ns", unix_ns(file, record.begun_ns));
  if (mep_dtype_size(static_cast<mep_dtype_t>(record.dtype)) != 0) {
    json->string("dtype", perf::dtype_name(static_cast<mep_dtype_t>(record.dtype)));
  }
  if (record.peer >= 0) json->number("peer", static_cast<uint64_t>(record.peer));
}

std::string record_json(const RecorderFile& file, const Record& record) {
  Json json('{');
  add_call(file, record, &json);
  const bool has_ended = has(record, flight::kEnded);
  json.flag("ended", has_ended);
  if (has_ended) {
    json.string("result", mep_result_string(record.result));
    if (record.ended_ns != 0) json.number("ended_unix_ns", unix_ns(file, record.ended_ns));
  }
  json.flag("late", has(record, flight::kLate))
      .flag("enqueued", has(record, flight::kEnqueued))
      .flag("own", has(record, flight::kOwn))
      .add("without", ranks_json(record.missing));
  return json.text();
}

std::string rank_json(const RecorderFile& file) {
  Json records('[');
  for (const Record& record : file.records) records.add(record_json(file, record));
  const std::string command = command_for(file);
  return Json('{')
      .number("rank", file.header.rank)
      .string("host", file.header.host)
      .number("pid", file.pid)
      .flag("runs", file.is_running)
      .string("state", state_text(file))
      .add("command", command.empty() ? "null" : json_text(command))
      .string("file", file.path)
      .number("torn", file.torn)
      .add("records", records.text())
      .text();
}

std::string job_json(const JobWaits& job) {
  Json operations('[');
  for (const Wait& wait : job.waits()) {
    Json json('{');
    add_call(*wait.file, *wait.record, &json);
    json.add("wait", ranks_json(wait.ranks))
        .add("have_not_begun", ranks_json(wait.late))
        .add("no_records", ranks_json(wait.unknown));
    operations.add(json.text());
  }
  Json ranks('[');
  for (const RecorderFile& file : job.files()) ranks.add(rank_json(file));
  return Json('{')
      .string("job", job.files().front().header.job)
      .add("look_at", ranks_json(job.suspects()))
      .add("operations", operations.text())
      .add("ranks", ranks.text())
      .text();
}

}  // namespace

std::string recorder_json(std::vector<RecorderFile>* files,
                          std::span<const Unreadable> unreadable) {
  Json jobs('[');
  for (const auto& job : by_job(files)) jobs.add(job_json(JobWaits(job)));
  Json others('[');
  for (const Unreadable& each : unreadable) {
    others.add(Json('{')
                   .number("pid", static_cast<uint64_t>(each.pid))
                   .string("name", each.name)
                   .string("problem", each.problem)
                   .text());
  }
  return Json('{').add("jobs", jobs.text()).add("unreadable", others.text()).text() + "\n";
}

}  // namespace mep
