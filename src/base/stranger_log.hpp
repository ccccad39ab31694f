// Warnings about connections of strangers, which may come without end.
#pragma once

namespace mep {

// One line a minute from this process; the next one says how many were left out.
void log_stranger(const char* format, ...) __attribute__((format(printf, 1, 2)));
// The minute is over.
void allow_stranger_line_for_test();

}  // namespace mep
