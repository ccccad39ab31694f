#include "core/coll/check.hpp"

#include "base/status.hpp"
#include "core/coll/collectives.hpp"

namespace mep {

mep_result_t check_buffers(const CollectiveArgs& args, bool send_needed, bool receive_needed) {
  const size_t element = mep_dtype_size(args.dtype);
  if (element == 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "dtype %u is no type", args.dtype);
  }
  if (args.count > (SIZE_MAX / 4) / element) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "count %zu is too large", args.count);
  }
  if (args.count == 0) return MEP_SUCCESS;
  if (send_needed && args.send == nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "sendbuf is NULL, but count is %zu", args.count);
  }
  if (receive_needed && args.receive == nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "recvbuf is NULL, but count is %zu", args.count);
  }
  return MEP_SUCCESS;
}

mep_result_t check_overlap(const CollectiveArgs& args, size_t send_bytes, size_t receive_bytes,
                           size_t in_place_offset) {
  const auto send = reinterpret_cast<uintptr_t>(args.send);
  const auto receive = reinterpret_cast<uintptr_t>(args.receive);
  if (send_bytes == 0 || receive_bytes == 0 || send == receive + in_place_offset) {
    return MEP_SUCCESS;
  }
  if (send < receive + receive_bytes && receive < send + send_bytes) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "sendbuf and recvbuf overlap without being the in-place form");
  }
  return MEP_SUCCESS;
}

mep_result_t check_root(const Collectives& comm, int32_t root) {
  if (root < 0 || static_cast<uint32_t>(root) >= comm.size()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "root %d is no rank of a comm of %u ranks", root,
                comm.size());
  }
  return MEP_SUCCESS;
}

}  // namespace mep
