// DevX of an mlx5 adapter by libmlx5, which is loaded when the first is opened: without it MEP has all but these queues.
// No adapter has executed this yet.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <string>

#include "transport/gpu_queue/mlx5_device.hpp"

namespace mep::verbs {

// An error says in one sentence which step is not possible: the library, the adapter's driver, DevX, the protection domain.
[[nodiscard]] mep_result_t open_mlx5_device(ibv_device* device,
                                            std::unique_ptr<gpu_queue::mlx5::Device>* out);

// The HCA with this name; it has to be there.
[[nodiscard]] mep_result_t open_mlx5_device(const std::string& name,
                                            std::unique_ptr<gpu_queue::mlx5::Device>* out);

// For each HCA of this machine: *report is called with its name, and what queues of `entries` lack there, or an empty text.
// They are made in memory of the host, and destroyed again. Returns how many HCAs there are.
int report_mlx5_queues(uint32_t entries, void (*report)(const char* name, const std::string& lack));

}  // namespace mep::verbs
