// Checks that several collectives share. Each names what is wrong.
#pragma once

#include "core/coll/operation.hpp"

namespace mep {

// Buffers given where there are elements, a known type, count x size within bounds.
[[nodiscard]] mep_result_t check_buffers(const CollectiveArgs& args, bool send_needed,
                                         bool receive_needed);
// There is such an operator, and a reduction with it on the type.
[[nodiscard]] mep_result_t check_operator(const CollectiveArgs& args);
// [send, send + send_bytes) and [receive, receive + receive_bytes) do not overlap, unless
// send + own_in_send == receive + own_in_receive: the own blocks are in one place.
[[nodiscard]] mep_result_t check_overlap(const CollectiveArgs& args, size_t send_bytes,
                                         size_t receive_bytes, size_t own_in_receive,
                                         size_t own_in_send = 0);
// They do not overlap at all.
[[nodiscard]] mep_result_t check_apart(const CollectiveArgs& args, size_t send_bytes,
                                       size_t receive_bytes);
// The root is a rank of the comm, and alive.
[[nodiscard]] mep_result_t check_root(const Collectives& comm, int32_t root);

}  // namespace mep
