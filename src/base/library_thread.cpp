#include "base/library_thread.hpp"

#include <pthread.h>
#include <signal.h>

#include <new>
#include <system_error>
#include <utility>

#include "base/status.hpp"

namespace mep {

mep_result_t start_library_thread(const char* name, std::function<void()> run, std::thread* out) {
  // The thread inherits the mask.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  mep_result_t result = MEP_SUCCESS;
  try {
    *out = std::thread(std::move(run));
  } catch (const std::system_error& error) {
    result = fail(MEP_ERR_NO_MEMORY, "cannot start %s: %s", name, error.what());
  } catch (const std::bad_alloc&) {
    result = fail(MEP_ERR_NO_MEMORY, "cannot start %s: out of memory", name);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return result;
}

}  // namespace mep
