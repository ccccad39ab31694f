// Operations of mep_perf that are programs of their own: suite, which starts mep_perf under mpirun, and queue, which has
// parts of the library in it.
#pragma once

#include <string>

namespace mep::perf {

// Replaces this process by `program`, which lies beside mep_perf, with the words behind words[0]. `operation` is for the
// error: throws when that is not possible.
[[noreturn]] void become_beside(const std::string& program, const std::string& operation,
                                char** words);

}  // namespace mep::perf
