// MEP_LOG=error|warn|info|debug (default warn) to stderr or MEP_LOG_FILE; one write() a line, so
// the lines of several ranks do not mix. A line is "mep[RANK] LEVEL: TEXT", with the rank once
// set_log_rank() was called; in a file, and with MEP_LOG=debug, "mep[RANK] TIME HOST:PID LEVEL: TEXT".
//
// In MEP_LOG_FILE %r is the rank that MEP_RANK or the launcher says, %p this process, %% a percent sign.
//
// A callback of the program takes the lines in place of stderr, without their ends; a file gets them all the same.
#pragma once

#include <cstdint>

#include "mep.h"

namespace mep {

enum class LogLevel { kError, kWarn, kInfo, kDebug };

bool log_enabled(LogLevel level);
void log(LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));
// The rank shown for lines of this thread (threads of one process may be different ranks); -1:
// none.
void set_log_rank(int rank);

// Finds the rank of this process for MEP_LOG_FILE where MEP_RANK is not set; false: nobody says it.
using LogRankFinder = bool (*)(uint32_t* rank);
// Before the first line.
void set_log_rank_finder(LogRankFinder finder);

using LogCallback = void (*)(void* user, int32_t level, const char* line);
// Null: stderr again. When this returns, the one before runs no more. An error inside of a callback. Throws
// std::bad_alloc.
[[nodiscard]] mep_result_t set_log_callback(LogCallback callback, void* user);
// Writes the line and its end at once.
void log_to_descriptor(int descriptor, const char* line);

}  // namespace mep
