// Whether a process has ended, also before the kernel has torn its memory down: a pidfd becomes readable only after that.
#pragma once

#include <sys/types.h>

#include "base/unique_fd.hpp"

namespace mep {

// Invalid: the kernel gives none.
UniqueFd open_pidfd(pid_t process);
// The pid behind a pidfd, in this process's pid namespace; 0: not visible here; -1: `fd` is no pidfd.
long pid_behind(int fd);
// No thread of the process, which has not been waited for yet, runs code of the program again. Each of its threads must
// say so itself: false where one is not to be read, for whatever reason.
bool all_threads_exit(pid_t process);

}  // namespace mep
