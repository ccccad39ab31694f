// mep_perf suite: a program of its own, perf/suite.py, which starts mep_perf under mpirun for one operation
// after another.
#pragma once

namespace mep::perf {

// Replaces this process by mep_perf_suite, which lies beside mep_perf, with the words behind "suite". Throws
// when that is not possible.
[[noreturn]] void become_suite(char** argv);

}  // namespace mep::perf
