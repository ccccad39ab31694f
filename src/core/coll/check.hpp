// Checks that several collectives share. Each names what is wrong.
#pragma once

#include "core/coll/operation.hpp"

namespace mep {

// Buffers given where there are elements, a known type, count x size within bounds.
[[nodiscard]] mep_result_t check_buffers(const CollectiveArgs& args, bool send_needed,
                                         bool receive_needed);
// [send, send + send_bytes) and [receive, receive + receive_bytes) do not overlap, unless
// send == receive + in_place_offset.
[[nodiscard]] mep_result_t check_overlap(const CollectiveArgs& args, size_t send_bytes,
                                         size_t receive_bytes, size_t in_place_offset);
// The root is a rank of the comm, and alive.
[[nodiscard]] mep_result_t check_root(const Collectives& comm, int32_t root);

}  // namespace mep
