#include "core/comm/backend.hpp"

#include "base/status.hpp"
#include "core/comm/comm.hpp"

namespace mep {
namespace {

const char* place_of(uint8_t backend) {
  if (backend == backends::kHost) return "host memory";
  return backend == backends::kGpu ? "mapped GPU memory" : "GPU memory that goes through the host";
}

}  // namespace

mep_result_t check_no_stream(const void* stream) {
  if (stream == nullptr) [[likely]]
    return MEP_SUCCESS;
  return fail(MEP_ERR_UNSUPPORTED, "this is a host communicator: stream must be NULL");
}

mep_result_t Backend::refuse(Collective kind) const {
  return fail(MEP_ERR_UNSUPPORTED, "%s on %s is not built", name_of(kind), place_of(which_));
}

mep_result_t Backend::check_host(const char* what) const {
  if (!enqueues()) [[likely]]
    return MEP_SUCCESS;
  return fail(MEP_ERR_UNSUPPORTED, "%s on a communicator with a GPU is not built", what);
}

}  // namespace mep
