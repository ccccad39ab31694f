#include "core/coll/check.hpp"

#include "base/status.hpp"
#include "core/coll/collectives.hpp"
#include "kernels/host/kernels.hpp"
#include "protocol/types.hpp"

namespace mep {
namespace {

bool overlap(const CollectiveArgs& args, size_t send_bytes, size_t receive_bytes) {
  const auto send = reinterpret_cast<uintptr_t>(args.send);
  const auto receive = reinterpret_cast<uintptr_t>(args.receive);
  return send_bytes != 0 && receive_bytes != 0 && send < receive + receive_bytes &&
         receive < send + send_bytes;
}

}  // namespace

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

mep_result_t check_operator(const CollectiveArgs& args) {
  if (args.op < MEP_SUM || args.op > MEP_XOR) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "op %u is no operator", args.op);
  }
  if (!reduce_supported(args.dtype, args.op)) {
    return fail(MEP_ERR_UNSUPPORTED, "there is no reduction with operator %s on type %s",
                name_of_operator(args.op), type_facts(args.dtype).name);
  }
  return MEP_SUCCESS;
}

mep_result_t check_overlap(const CollectiveArgs& args, size_t send_bytes, size_t receive_bytes,
                           size_t own_in_receive, size_t own_in_send) {
  const auto send = reinterpret_cast<uintptr_t>(args.send);
  const auto receive = reinterpret_cast<uintptr_t>(args.receive);
  const bool in_place = send + own_in_send == receive + own_in_receive;
  if (in_place || !overlap(args, send_bytes, receive_bytes)) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "sendbuf and recvbuf overlap without being the in-place form");
}

mep_result_t check_apart(const CollectiveArgs& args, size_t send_bytes, size_t receive_bytes) {
  if (!overlap(args, send_bytes, receive_bytes)) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "sendbuf and recvbuf overlap; this collective has no in-place form");
}

mep_result_t check_root(const Collectives& comm, int32_t root) {
  if (root < 0 || static_cast<uint32_t>(root) >= comm.size()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "root %d is no rank of a comm of %u ranks", root,
                comm.size());
  }
  return MEP_SUCCESS;
}

}  // namespace mep
