// The records of jobs for people: who is late, and what each rank did last.
#include <bit>

#include "recorder_report.hpp"
#include "recorder_waits.hpp"
#include "recorder_words.hpp"

namespace mep {
namespace {

using flight::Record;

constexpr size_t kShownRecords = 20;
constexpr size_t kShownMessages = 2;  // of a rank

std::string files_text(std::span<const RecorderFile> files) {
  std::string text = "Files\n";
  for (const RecorderFile& file : files) {
    text += "  rank " + std::to_string(file.header.rank) + " of job " + file.header.job +
            ": process " + std::to_string(file.pid) + " " + state_text(file) + "; " +
            std::to_string(file.records.size()) + " records";
    if (file.torn != 0) text += ", " + std::to_string(file.torn) + " torn";
    text += " in " + file.path + "\n";
  }
  return text;
}

// All of a single file; of several the last.
std::string records_text(const RecorderFile& file, bool is_only_one) {
  const size_t count = file.records.size();
  const size_t shown = is_only_one ? count : std::min(count, kShownRecords);
  std::string text = "\nRank " + std::to_string(file.header.rank) + ", the newest of " +
                     std::to_string(count) + " last (UTC)\n";
  for (const Record& record : std::span(file.records).last(shown)) {
    std::string duration = duration_text(record);
    duration.insert(0, 13 - std::min<size_t>(13, duration.size()), ' ');
    text += "  " + time_text(file, record.begun_ns) + " " + duration + "  " + call_text(record) +
            end_text(record) + "\n";
  }
  return text;
}

std::string wait_text(const Wait& wait) {
  std::string text = "  " + call_text(*wait.record) + ", since " +
                     time_text(*wait.file, wait.record->begun_ns) + "\n    " +
                     ranks_text(wait.ranks) +
                     (std::popcount(wait.ranks) == 1 ? " waits" : " wait") + end_text(*wait.record);
  if (wait.late != 0) {
    text += "; " + ranks_text(wait.late) + (std::popcount(wait.late) == 1 ? " has" : " have") +
            " not begun it";
  }
  if (wait.unknown != 0) text += "; no records of " + ranks_text(wait.unknown);
  return text + "\n";
}

// Where to look at a rank, and its last operation.
std::string rank_text(const RecorderFile& file) {
  std::string text =
      "  rank " + std::to_string(file.header.rank) + " on " + file.header.host + ": ";
  const std::string command = command_for(file);
  text +=
      command.empty() ? "process " + std::to_string(file.pid) + " " + state_text(file) : command;
  if (file.records.empty()) return text + "  (no operation yet)\n";
  const Record& last = file.records.back();
  return text + (has(last, flight::kEnded) ? "  (last: " : "  (waits in ") + call_text(last) +
         ")\n";
}

std::string verdict_text(const JobWaits& job, bool shows_all) {
  std::string text = std::string("Job ") + job.files().front().header.job + ": ";
  if (job.waits().empty()) return text + "all operations have ended\n";
  text += "operations that have not ended (UTC)\n";
  size_t left_out = 0;
  for (const Wait& wait : job.waits()) {
    const size_t shown = is_message(*wait.record) ? kShownMessages : 1;
    if (shows_all || wait.place < shown) {
      text += wait_text(wait);
    } else {
      ++left_out;
    }
  }
  if (left_out != 0) text += "  and " + std::to_string(left_out) + " behind them: --all\n";
  for (uint32_t rank = 0; rank < 64; ++rank) {
    if (((job.suspects() >> rank) & 1) == 0) continue;
    const RecorderFile* const file = job.file_of(rank);
    if (file != nullptr) text += rank_text(*file);
  }
  if (job.unknown() != 0) {
    text +=
        "  " + ranks_text(job.unknown()) +
        ": on another host, or ended: MEP_FLIGHT_RECORDER=FILE alone keeps the records of those\n";
  }
  return text;
}

}  // namespace

std::string recorder_text(std::vector<RecorderFile>* files, bool shows_all) {
  const auto jobs = by_job(files);
  std::string text;
  if (shows_all) {
    text += files_text(*files);
    for (const RecorderFile& file : *files) text += records_text(file, files->size() == 1);
    text += "\n";
  }
  for (const auto& job : jobs) text += verdict_text(JobWaits(job), shows_all);
  return text;
}

}  // namespace mep
