// Threads of the library. They block all signals: those are the application's.
#pragma once

#include <functional>
#include <thread>

#include "mep.h"

namespace mep {

// `name` is for the error text, "the control thread". On failure *out is unchanged, and the caller's
// signal mask is as it was either way.
[[nodiscard]] mep_result_t start_library_thread(const char* name, std::function<void()> run,
                                                std::thread* out);

}  // namespace mep
