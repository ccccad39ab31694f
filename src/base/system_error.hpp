// The result that the caller of this library gets for the error of a system call.
#pragma once

#include <cerrno>

#include "base/unique_fd.hpp"
#include "mep.h"

namespace mep {

// Memory, descriptors or places in a table of the kernel: it may succeed later, or with higher limits.
constexpr bool is_shortage(int error) {
  return error == ENOMEM || error == EMFILE || error == ENFILE || error == ENOBUFS ||
         error == ENOSPC;
}

// Beside a text that shows the same errno.
constexpr mep_result_t result_of_errno(int error) {
  return is_shortage(error) ? MEP_ERR_NO_MEMORY : MEP_ERR_SYSTEM;
}

// A sandbox's filter answers so to a call that it forbids.
constexpr bool is_forbidden(int error) {
  return error == EPERM || error == EACCES || error == ENOSYS;
}

// "PURPOSE: CALL ...", with what lifts the limit or allows the call.
[[nodiscard]] mep_result_t fail_call(const char* purpose, const char* call, int error);

// A nonblocking eventfd that begins with `count`.
[[nodiscard]] mep_result_t open_eventfd(const char* purpose, unsigned count, UniqueFd* out);

}  // namespace mep
