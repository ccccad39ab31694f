// MEP_LOG=error|warn|info|debug (default warn) to stderr or MEP_LOG_FILE; one write() a line, so
// the lines of several ranks do not mix. A line is "mep[RANK] LEVEL: TEXT", with the rank once
// set_log_rank() was called; in a file, and with MEP_LOG=debug, "mep[RANK] TIME HOST:PID LEVEL: TEXT".
#pragma once

namespace mep {

enum class LogLevel { kError, kWarn, kInfo, kDebug };

bool log_enabled(LogLevel level);
void log(LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));
// The rank shown for lines of this thread (threads of one process may be different ranks); -1:
// none.
void set_log_rank(int rank);

}  // namespace mep
