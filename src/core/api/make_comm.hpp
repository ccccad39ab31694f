// Making a communicator together: what each rank did of it is told to all before anybody uses it.
#pragma once

#include <memory>
#include <vector>

#include "base/function_ref.hpp"
#include "core/comm/comm.hpp"
#include "core/comm/gpu_backend.hpp"
#include "mep.h"

namespace mep {

// Makes a comm by all ranks of `parent`, which has all its members but joiners: `begin` makes it and
// calls its begin(), `finish` its finish(). If a rank cannot do its part, all return that error; if the
// membership changes, what `parent` says of that.
[[nodiscard]] mep_result_t make_together(Comm& parent, FunctionRef<mep_result_t()> begin,
                                         FunctionRef<mep_result_t()> finish);

// Where a comm's GPU is; null: it is on host memory.
const GpuPlace* gpu_place(mep_comm_t comm);
// Gives a new comm its GPU at `place`; null: it has none. Each step is agreed on by `members`, the new comm or one that
// has all its members.
[[nodiscard]] mep_result_t add_gpu(mep_comm_t made, const GpuPlace* place, Comm& members);

// The caller's config, read once and no further than its struct_size.
[[nodiscard]] mep_result_t read_comm_config(const mep_comm_config_t* config,
                                            mep_comm_config_t* given);
// The GPU of this process's rank, by its config; none if that asks for none. MEP_DEVICE_CUDA_BY_RANK counts by the rank's
// number on this host, or by its rank if neither MEP_LOCAL_RANK nor a launcher tells that number.
[[nodiscard]] mep_result_t choose_own_place(const mep_comm_config_t& config, int32_t rank,
                                            std::vector<GpuPlace>* places);

// A name that a user gives to a comm.
[[nodiscard]] mep_result_t check_comm_name(const char* name);

// Others that wait for this rank's part of a comm learn by a view change that it is not to come. After an error,
// which stays and is given back.
mep_result_t give_up_making(mep_result_t result, const std::unique_ptr<mep_comm>& handle);

}  // namespace mep
