// Ranks that come while the world works.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/comm/agreement.hpp"
#include "core/comm/gpu_backend.hpp"
#include "mep.h"

namespace mep {

// Whether joiners can be admitted by calls on it: a world.
[[nodiscard]] mep_result_t on_world(mep_comm_t comm);

// A barrier; then, if every live rank has a joiner whose links are tested, their admission.
[[nodiscard]] mep_result_t barrier_with_admission(Comm& world_comm);

// The size of a comm over the whole world that has these slots too; `added` is not empty.
uint32_t size_with(const std::vector<uint32_t>& added);

// Makes the comm over the first `size` slots, by all who were in the view of the admission. Members agree on
// their parts by `members`, and pass on what they went over; a joiner passes null for both, and leaves the view if it
// cannot do its part. The first operation on the new comm tells either from the other: it succeeds for all who live, or
// fails for all. place: this rank's GPU; null: none. All have one or none has.
[[nodiscard]] mep_result_t make_grown(Comm* members, const PassedReports* passed,
                                      const std::shared_ptr<World>& world, uint32_t size,
                                      const Admission& admission, uint32_t timeout_ms,
                                      const GpuPlace* place, mep_comm_t* grown);

}  // namespace mep
