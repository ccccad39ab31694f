#include "core/api/make_comm.hpp"

#include <cstring>
#include <span>

#include "base/test_delay.hpp"
#include "core/api/api_guard.hpp"
#include "core/comm/agreement.hpp"

namespace mep {

// Every offer is on its way before anybody waits for one; every window is taken before anybody may drop
// his. Both steps end by an operation of the parent, whose view changes with every change of these members:
// so whoever has missed one, or met one, learns of it there like all others.
mep_result_t make_together(Comm& parent, FunctionRef<mep_result_t()> begin,
                           FunctionRef<mep_result_t()> finish) {
  MEP_TRY(step_together(parent, "make its part of a communicator", begin));
  MEP_TRY(step_together(parent, "take its peers' parts of a communicator", finish));
  MEP_TEST_DELAY_POINT("comm agreed");
  return MEP_SUCCESS;
}

const GpuPlace* gpu_place(mep_comm_t comm) {
  GpuBackend* const gpu = comm->backend->gpu_backend();
  return gpu != nullptr ? &gpu->place() : nullptr;
}

mep_result_t add_gpu(mep_comm_t made, const GpuPlace* place, Comm& members) {
  if (place == nullptr) return MEP_SUCCESS;
  const std::span<const char* const> steps = GpuBackend::steps();
  for (size_t i = 0; i < steps.size(); ++i) {
    MEP_TRY(step_together(members, steps[i], [&] {
      return GpuBackend::take_step(i, *made->comm, *place, &made->backend);
    }));
  }
  return MEP_SUCCESS;
}

mep_result_t check_comm_name(const char* name) {
  constexpr size_t kMostBytes = MEP_MAX_NAME_BYTES;
  if (name == nullptr) return null_argument("name");
  const size_t bytes = std::strlen(name);
  if (bytes >= 1 && bytes <= kMostBytes) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT, "a name has 1 to %zu bytes, this has %zu", kMostBytes,
              bytes);
}

mep_result_t give_up_making(mep_result_t result, const std::unique_ptr<mep_comm>& handle) {
  const KeepErrorText kept;
  (void)guarded([&]() -> mep_result_t {
    if (handle != nullptr && handle->comm != nullptr) handle->comm->give_up_making();
    return MEP_SUCCESS;
  });
  return result;
}

}  // namespace mep
