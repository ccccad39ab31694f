// What the error of a system call is to the caller of this library.
#pragma once

#include <cerrno>

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

}  // namespace mep
