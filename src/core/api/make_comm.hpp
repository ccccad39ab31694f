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

// Runs the steps that the backend of `parent` adds to a new comm of it: each step is agreed on by `members`, the
// parent or the new comm.
[[nodiscard]] mep_result_t take_child_steps(mep_comm_t parent, mep_comm_t child, Comm& members);

// The caller's config, read once and no further than its struct_size.
[[nodiscard]] mep_result_t read_comm_config(const mep_comm_config_t* config,
                                            mep_comm_config_t* given);
// The GPU of this process's rank, by its config; none if that asks for none. MEP_DEVICE_BY_RANK counts by the rank's
// number on this host, or by its rank if neither MEP_LOCAL_RANK nor a launcher tells that number.
[[nodiscard]] mep_result_t choose_own_place(const mep_comm_config_t& config, int32_t rank,
                                            std::vector<GpuPlace>* places);

// A name that a user gives to a comm.
[[nodiscard]] mep_result_t check_comm_name(const char* name);

// Others that wait for this rank's part of a comm learn by a view change that it is not to come. After an error,
// which stays and is given back.
mep_result_t give_up_making(mep_result_t result, const std::unique_ptr<mep_comm>& handle);

}  // namespace mep
