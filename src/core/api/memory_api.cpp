// Source memory.
#include "core/api/api_guard.hpp"

mep_result_t mep_mem_alloc(mep_comm_t comm, size_t bytes, void** memory) {
  using namespace mep;
  if (memory == nullptr) return null_argument("memory");
  *memory = nullptr;
  MEP_TRY(check_comm(comm));
  if (bytes == 0) return fail(MEP_ERR_INVALID_ARGUMENT, "bytes is 0");
  return guarded([&]() -> mep_result_t {
    MEP_TRY(comm->comm->world().source_memory().allocate(bytes, memory));
    comm->comm->world().count_allocation(1);
    return MEP_SUCCESS;
  });
}

mep_result_t mep_mem_free(mep_comm_t comm, void* memory) {
  using namespace mep;
  MEP_TRY(check_comm(comm));
  if (memory == nullptr) return MEP_SUCCESS;
  return guarded([&]() -> mep_result_t {
    MEP_TRY(comm->comm->world().source_memory().free(memory, nullptr));
    comm->comm->world().count_allocation(-1);
    return MEP_SUCCESS;
  });
}
