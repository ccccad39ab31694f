// Two ends over a pair of queue pairs of one adapter, both on its first active port: what one puts leaves the queue, goes
// through the adapter, and arrives at the other.
#pragma once

#include <memory>
#include <string>

#include "queue/ends.hpp"
#include "transport/gpu_queue/mlx5_device.hpp"

namespace mep::perf {

// The adapter with this name. Throws what is missing.
std::unique_ptr<gpu_queue::mlx5::Device> open_adapter(const std::string& name);

// Throws where the adapter refuses a step, and leaves nothing of it. `device` stays until the ends have ended.
std::unique_ptr<Ends> make_adapter_ends(const std::string& name, gpu_queue::mlx5::Device& device,
                                        size_t span);

}  // namespace mep::perf
