// mep_info --recorder: which operations of a job have not ended, and who has not begun them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "recorder_file.hpp"
#include "recorder_search.hpp"

namespace mep {

// The arguments behind --recorder. Returns the exit status; files that cannot be read do not spoil the others.
int recorder_report(std::span<char* const> arguments);

// Both sort the files. The verdict comes last; `shows_all`: behind the files and the last records.
std::string recorder_text(std::vector<RecorderFile>* files, bool shows_all);
std::string recorder_json(std::vector<RecorderFile>* files, std::span<const Unreadable> unreadable);

// The line to type to see where that rank's process is; empty if it does not run here.
std::string command_for(const RecorderFile& file);
const char* state_text(const RecorderFile& file);

}  // namespace mep
