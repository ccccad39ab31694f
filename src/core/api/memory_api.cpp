// Memory of the library: of the host, or of the GPU on communicators with one.
#include "core/api/api_guard.hpp"

namespace mep {
namespace {

constexpr size_t kMostAlignment = 4096;  // of pages, which all memory is made of

// kept: null, or what holds the memory from then on.
mep_result_t free_memory(mep_comm_t comm, void* memory, std::shared_ptr<const void>* kept) {
  MEP_TRY(comm->backend->free(memory, kept));
  comm->comm->world().count_allocation(-1);
  return MEP_SUCCESS;
}

// Runs `work` inside a CallScope.
template <typename Work>
mep_result_t in_call(mep_comm_t comm, Work&& work) {
  return guarded([&]() -> mep_result_t {
    const CallScope scope(comm);
    MEP_TRY(scope.check());
    return work();
  });
}

}  // namespace
}  // namespace mep

mep_result_t mep_mem_alloc(mep_comm_t comm, size_t bytes, uint32_t flags, size_t alignment,
                           void** memory) {
  using namespace mep;
  if (memory == nullptr) return null_argument("memory");
  *memory = nullptr;
  MEP_TRY(check_comm(comm));
  if (bytes == 0) return fail(MEP_ERR_INVALID_ARGUMENT, "bytes is 0");
  if (flags != 0) return fail(MEP_ERR_INVALID_ARGUMENT, "flags is %#x; none are known", flags);
  if (alignment > kMostAlignment || (alignment & (alignment - 1)) != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "alignment is %zu; give 0 or a power of two up to %zu",
                alignment, kMostAlignment);
  }
  return guarded([&]() -> mep_result_t {
    MEP_TRY(comm->backend->allocate(bytes, memory));
    comm->comm->world().count_allocation(1);
    return MEP_SUCCESS;
  });
}

mep_result_t mep_mem_free(mep_comm_t comm, void* memory) {
  using namespace mep;
  MEP_TRY(check_comm(comm));
  if (memory == nullptr) return MEP_SUCCESS;
  return guarded([&] { return free_memory(comm, memory, nullptr); });
}

mep_result_t mep_mem_free_keep(mep_comm_t comm, void* memory, mep_memory_t* kept) {
  using namespace mep;
  if (kept == nullptr) return null_argument("kept");
  *kept = nullptr;
  MEP_TRY(check_comm(comm));
  if (memory == nullptr) return MEP_SUCCESS;
  return guarded([&]() -> mep_result_t {
    auto owner = std::make_unique<mep_memory>();
    MEP_TRY(free_memory(comm, memory, &owner->memory));
    *kept = owner.release();
    return MEP_SUCCESS;
  });
}

mep_result_t mep_comm_register(mep_comm_t comm, const void* memory, size_t bytes,
                               mep_registration_t* registration) {
  using namespace mep;
  if (registration == nullptr) return null_argument("registration");
  *registration = 0;
  MEP_TRY(check_comm(comm));
  if (memory == nullptr) return null_argument("memory");
  if (bytes == 0) return fail(MEP_ERR_INVALID_ARGUMENT, "bytes is 0");
  return in_call(comm, [&] {
    const auto deadline = Deadline::after_ms(comm->comm->timeout_ms());
    return comm->backend->register_memory(memory, bytes, deadline, registration);
  });
}

mep_result_t mep_comm_deregister(mep_comm_t comm, mep_registration_t registration) {
  using namespace mep;
  MEP_TRY(check_comm(comm));
  return in_call(comm, [&] { return comm->backend->deregister_memory(registration); });
}

mep_result_t mep_memory_release(mep_memory_t kept) {
  delete kept;
  return MEP_SUCCESS;
}
