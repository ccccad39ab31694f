// Version, results, types and the log.
#include <cerrno>

#include "base/guarded.hpp"
#include "base/log.hpp"
#include "base/sized_struct.hpp"
#include "base/status.hpp"
#include "mep.h"
#include "protocol/types.hpp"

uint32_t mep_version(void) {
  return MEP_VERSION_MAJOR * 10000 + MEP_VERSION_MINOR * 100 + MEP_VERSION_PATCH;
}

const char* mep_last_error(void) {
  return mep::last_error_text();
}

const char* mep_result_string(mep_result_t result) {
#define MEP_NAME(code) \
  case code:           \
    return #code
  switch (result) {
    MEP_NAME(MEP_SUCCESS);
    MEP_NAME(MEP_PARTIAL);
    MEP_NAME(MEP_IN_PROGRESS);
    MEP_NAME(MEP_ERR_INVALID_ARGUMENT);
    MEP_NAME(MEP_ERR_UNSUPPORTED);
    MEP_NAME(MEP_ERR_NO_MEMORY);
    MEP_NAME(MEP_ERR_SYSTEM);
    MEP_NAME(MEP_ERR_INTERNAL);
    MEP_NAME(MEP_ERR_TIMEOUT);
    MEP_NAME(MEP_ERR_PEER_FAILED);
    MEP_NAME(MEP_ERR_PEER_LEFT);
    MEP_NAME(MEP_ERR_NO_QUORUM);
    MEP_NAME(MEP_ERR_EVICTED);
    MEP_NAME(MEP_ERR_BUSY);
    MEP_NAME(MEP_ERR_FORKED);
    MEP_NAME(MEP_ERR_MISMATCH);
    MEP_NAME(MEP_ERR_BOOTSTRAP);
    MEP_NAME(MEP_ERR_DENIED);
    MEP_NAME(MEP_ERR_REVOKED);
    MEP_NAME(MEP_ERR_ABORTED);
    MEP_NAME(MEP_ERR_VERSION);
    MEP_NAME(MEP_ERR_CAPACITY);
    MEP_NAME(MEP_ERR_NOT_FOUND);
    MEP_NAME(MEP_ERR_DEVICE);
    MEP_NAME(MEP_ERR_THREAD);
    default:
      return "unknown result";
  }
#undef MEP_NAME
}

void mep_struct_init(void* x, size_t size) {
  mep::init_sized_struct(x, size);
}

size_t mep_dtype_size(mep_dtype_t dtype) {
  return mep::type_facts(dtype).bytes;
}

mep_result_t mep_set_log_callback(mep_log_callback_t callback, void* user) {
  using namespace mep;
  static_assert(MEP_LOG_ERROR == static_cast<int>(LogLevel::kError));
  static_assert(MEP_LOG_DEBUG == static_cast<int>(LogLevel::kDebug));
  return guarded([&] { return set_log_callback(callback, user); });
}

void mep_log_to_descriptor(void* user, int32_t /*level*/, const char* line) {
  const int saved_errno = errno;
  mep::log_to_descriptor(static_cast<int>(reinterpret_cast<intptr_t>(user)), line);
  errno = saved_errno;
}
