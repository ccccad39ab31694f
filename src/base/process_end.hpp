// Sees that a process has ended before the kernel has torn its memory down, which takes up to 0.1 s a GB. A pidfd of the
// process becomes readable after that, one of a thread (Linux 6.9) when that thread ends. The last thread to end is the
// one that tears the memory down, so two are watched.
#pragma once

#include <sys/types.h>

#include <array>
#include <span>
#include <string_view>

#include "base/unique_fd.hpp"

namespace mep {

// Invalid: the kernel gives none.
UniqueFd open_pidfd(pid_t process);
// The pid behind a pidfd, in this process's pid namespace; 0: not visible here; -1: `fd` is no pidfd.
long pid_behind(int fd);
using ThreadPidfds = std::array<UniqueFd, 2>;
// Each is readable once a thread of the process that has one of these names has ended. Invalid: there is none, or the
// kernel gives no such descriptor. A program may give its own threads such names: their end is a reason to look.
ThreadPidfds open_thread_pidfds(pid_t process, std::span<const std::string_view> names);
// No thread of the process, which has not been waited for yet, runs code of the program again. Each of its threads must
// say so itself: false where one is not to be read, for whatever reason.
bool all_threads_exit(pid_t process);

}  // namespace mep
