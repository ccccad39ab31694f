// Version, results and types.
#include "base/status.hpp"
#include "mep.h"

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
    default:
      return "unknown result";
  }
#undef MEP_NAME
}

size_t mep_dtype_size(mep_dtype_t dtype) {
  switch (dtype) {
    case MEP_INT8:
    case MEP_UINT8:
    case MEP_BOOL:
    case MEP_FLOAT8_E4M3:
    case MEP_FLOAT8_E5M2:
      return 1;
    case MEP_INT16:
    case MEP_UINT16:
    case MEP_FLOAT16:
    case MEP_BFLOAT16:
      return 2;
    case MEP_INT32:
    case MEP_UINT32:
    case MEP_FLOAT32:
      return 4;
    case MEP_INT64:
    case MEP_UINT64:
    case MEP_FLOAT64:
      return 8;
    default:
      return 0;
  }
}
