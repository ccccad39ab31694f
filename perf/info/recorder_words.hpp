// Parts of the reports about recorders, in words.
#pragma once

#include <cstdint>
#include <string>

#include "recorder_file.hpp"

namespace mep {

bool has(const flight::Record& record, uint8_t flag);
bool is_message(const flight::Record& record);
uint64_t unix_ns(const RecorderFile& file, uint64_t mono_ns);
// UTC.
std::string time_text(const RecorderFile& file, uint64_t mono_ns);
// Empty: it has ended, at a time that is not known.
std::string duration_text(const flight::Record& record);
std::string ranks_text(uint64_t mask);
const char* kind_text(flight::Kind kind);
// "allreduce 4 of world, epoch 2, 8 bytes of int64"
std::string call_text(const flight::Record& record);
// How it ended, or what is wrong until now; often empty.
std::string end_text(const flight::Record& record);

}  // namespace mep
