#include "recorder_report.hpp"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <set>

#include "../records.hpp"

namespace mep {
namespace {

struct Options {
  std::vector<std::string> paths;
  std::string job;
  bool shows_all = false;
  bool is_json = false;
};

bool read_options(std::span<char* const> arguments, Options* options) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string argument = arguments[i];
    if (argument == "--all") {
      options->shows_all = true;
    } else if (argument == "--json") {
      options->is_json = true;
    } else if (argument == "--job" && i + 1 < arguments.size() && arguments[i + 1][0] != '\0') {
      options->job = arguments[++i];
    } else if (argument.empty() || argument[0] != '-') {
      options->paths.push_back(argument);
    } else {
      (void)std::fprintf(stderr, "mep_info: '%s' is unknown here or lacks its value; try --help\n",
                         argument.c_str());
      return false;
    }
  }
  return true;
}

int read_files(const Options& options, std::vector<RecorderFile>* files) {
  int status = 0;
  for (const std::string& path : options.paths) {
    RecorderFile file;
    std::string problem;
    if (read_recorder(path, &file, &problem)) {
      if (is_of_job(file, options.job)) files->push_back(std::move(file));
      continue;
    }
    (void)std::fprintf(stderr, "mep_info: %s %s\n", path.c_str(), problem.c_str());
    status = 1;
  }
  return status;
}

void print_unreadable(std::span<const Unreadable> unreadable) {
  std::string text;
  for (const Unreadable& each : unreadable) {
    text += (text.empty() ? "" : ", ") + std::to_string(each.pid) + " (" + each.name +
            "): " + each.problem;
  }
  if (text.empty()) return;
  (void)std::fprintf(stderr, "mep_info: not read, though they may be ranks: processes %s\n",
                     text.c_str());
}

}  // namespace

int recorder_report(std::span<char* const> arguments) {
  Options options;
  if (!read_options(arguments, &options)) return 2;
  RecorderSearch found;
  const bool searches = options.paths.empty();
  if (searches) found = find_recorders(options.job);
  int status = read_files(options, &found.files);
  if (options.is_json) {
    (void)std::fputs(recorder_json(&found.files, found.unreadable).c_str(), stdout);
    return status;
  }
  print_unreadable(found.unreadable);
  if (found.files.empty() && (searches || status == 0)) {
    const std::string of_job = options.job.empty() ? "" : " of job " + options.job;
    (void)std::fprintf(stderr, "mep_info: no records%s %s\n", of_job.c_str(),
                       searches ? "in the processes of this user on this host" : "in these files");
    status = 1;
  }
  (void)std::fputs(recorder_text(&found.files, options.shows_all).c_str(), stdout);
  return status;
}

std::string command_for(const RecorderFile& file) {
  if (!file.is_running) return "";
  const std::string pid = std::to_string(file.pid);
  std::array<char, 4096> program;
  const ssize_t length =
      readlink(("/proc/" + pid + "/exe").c_str(), program.data(), program.size());
  if (length < 0) return "gdb -p " + pid;
  const std::string path(program.data(), static_cast<size_t>(length));
  const bool is_python = path.substr(path.rfind('/') + 1).starts_with("python");
  return (is_python ? "py-spy dump --pid " : "gdb -p ") + pid;
}

const char* state_text(const RecorderFile& file) {
  if (file.is_running) return "runs";
  if (file.header.closed == 1) return "has ended its world";
  return file.header.host == perf::host_name() ? "is gone" : "is not seen from here";
}

}  // namespace mep
