// Making a communicator together: what each rank did of it is told to all before anybody uses it.
#pragma once

#include <functional>

#include "core/comm/comm.hpp"

namespace mep {

// One operation of `comm` that tells each rank what `own`, its local step, came to: the same result on
// all ranks. An error's text names the rank, and on the rank itself what went wrong.
[[nodiscard]] mep_result_t agree_on_step(Comm& comm, mep_result_t own, const char* what);

// Makes a comm by all ranks of `parent`, which has all its members but newcomers: `begin` makes it and
// calls its begin(), `finish` its finish(). If a rank cannot do its part, all return that error; if the
// membership changes, what `parent` says of that.
[[nodiscard]] mep_result_t make_together(Comm& parent, const std::function<mep_result_t()>& begin,
                                         const std::function<mep_result_t()>& finish);

}  // namespace mep
