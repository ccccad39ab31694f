// Whether posters that store to an adapter's page ring it.
#pragma once

#include "base/clock.hpp"
#include "transport/gpu_queue/doorbells.hpp"
#include "transport/gpu_queue/mlx5_pairs.hpp"

namespace mep {

// A thread of the host posts an empty request to a queue pair that is connected to itself, a poster rings, and the request
// completes. Nothing leaves the adapter.
[[nodiscard]] mep_result_t try_doorbells(gpu_queue::mlx5::Adapter& adapter,
                                         gpu_queue::PosterDoorbells& doorbells,
                                         const Deadline& deadline);

}  // namespace mep
