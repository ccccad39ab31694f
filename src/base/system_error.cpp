#include "base/system_error.hpp"

#include <string.h>
#include <sys/eventfd.h>

#include "base/status.hpp"

namespace mep {

mep_result_t fail_call(const char* purpose, const char* call, int error) {
  const char* reason = strerrordesc_np(error);
  if (reason == nullptr) reason = "unknown error";
  if (is_forbidden(error)) {
    return fail(
        MEP_ERR_SYSTEM,
        "%s: %s is refused: %s; allow this system call in the sandbox (seccomp profile of the "
        "container or service)",
        purpose, call, reason);
  }
  const bool is_descriptor = error == EMFILE || error == ENFILE;
  return fail(result_of_errno(error), "%s: %s: %s%s", purpose, call, reason,
              is_descriptor ? " (ulimit -n)" : "");
}

mep_result_t open_eventfd(const char* purpose, unsigned count, UniqueFd* out) {
  out->reset(eventfd(count, EFD_CLOEXEC | EFD_NONBLOCK));
  return out->valid() ? MEP_SUCCESS : fail_call(purpose, "eventfd2", errno);
}

}  // namespace mep
