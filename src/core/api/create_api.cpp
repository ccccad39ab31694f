// mep_comm_create_from_ranks: the listed ranks make a comm; no other rank takes part.
//
// No operation of the parent joins the listed ranks, so each computes the comm's id by itself: from the name, the
// slots, and the incarnations in them. Another list, or a replaced member, gives another id. A rank that cannot do its
// part revokes the id, so that the others need not wait. The first operation on the new comm, a barrier,
// succeeds on all of them or on none.
#include <string>
#include <vector>

#include "base/status.hpp"
#include "core/api/api_guard.hpp"
#include "core/api/make_comm.hpp"

namespace mep {
namespace {

mep_result_t check_list(const Comm& parent, const int32_t* ranks, int32_t count) {
  std::vector<bool> is_listed(parent.size());
  for (int32_t i = 0; i < count; ++i) {
    if (ranks[i] < 0 || static_cast<uint32_t>(ranks[i]) >= parent.size()) {
      return fail(MEP_ERR_INVALID_ARGUMENT,
                  "ranks[%d] is %d, no rank of a communicator of %u ranks", i, ranks[i],
                  parent.size());
    }
    const auto rank = static_cast<size_t>(ranks[i]);
    if (is_listed[rank]) {
      return fail(MEP_ERR_INVALID_ARGUMENT, "rank %d stands in the list twice", ranks[i]);
    }
    is_listed[rank] = true;
  }
  if (is_listed[parent.rank()]) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "this rank, %u, is not in the list; only ranks of the list make the communicator",
              parent.rank());
}

mep_result_t check_members(const CommMembers& members, const int32_t* ranks) {
  for (size_t i = 0; i < members.incarnations.size(); ++i) {
    if (members.incarnations[i] != 0) continue;
    return fail(MEP_ERR_PEER_FAILED,
                "rank %d is not in the view; list ranks that live, or admit its replacement first",
                ranks[i]);
  }
  return MEP_SUCCESS;
}

mep_result_t make_listed(mep_comm_t comm, const std::vector<uint32_t>& slots,
                         const CommMembers& members, const char* name, mep_comm_t* child) {
  Comm& parent = *comm->comm;
  const uint64_t id = Comm::listed_id(name, slots, members.incarnations);
  auto handle =
      std::make_unique<mep_comm>(std::make_unique<Comm>(parent.world_ptr(), name, slots, id));
  Comm& made = *handle->comm;
  made.set_timeout_ms(parent.timeout_ms());
  if (!parent.world().take_comm_id(id)) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "a communicator \"%s\" of these ranks was made, or tried, before; give a new name",
                name);
  }
  const auto make = [&]() -> mep_result_t {
    MEP_TRY(made.begin(1, 1, &members));
    MEP_TRY(made.finish(Deadline::after_ms(parent.timeout_ms())));
    const CallScope scope(handle.get());
    const PurposeScope purpose(handle.get(), CallPurpose::kSplit);
    MEP_TRY(made.run(Collective::k_barrier, {}));
    return add_gpu(handle.get(), gpu_place(comm), made);
  };
  const mep_result_t result = guarded(make);
  if (result != MEP_SUCCESS) return give_up_making(result, handle);
  handle->belongs_to(comm);
  *child = handle.release();
  return MEP_SUCCESS;
}

mep_result_t create_from_ranks(mep_comm_t comm, const int32_t* ranks, int32_t count,
                               const char* name, mep_comm_t* child) {
  Comm& parent = *comm->comm;
  MEP_TRY(parent.identity().check_world());
  MEP_TRY(check_list(parent, ranks, count));
  std::vector<uint32_t> slots;
  slots.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    slots.push_back(parent.slots()[static_cast<size_t>(ranks[i])]);
  }
  // This thread uses no window of the parent while it waits for the others, so views of the parent may change.
  const Comm::WaitingScope waiting(parent);
  const CommMembers members = CommMembers::of(parent.world().view().snapshot(), slots);
  MEP_TRY(check_members(members, ranks));
  return make_listed(comm, slots, members, name, child);
}

}  // namespace
}  // namespace mep

mep_result_t mep_comm_create_from_ranks(mep_comm_t comm, const int32_t* ranks, int32_t count,
                                        const char* name, mep_comm_t* child) {
  using namespace mep;
  if (child == nullptr) return null_argument("child");
  *child = nullptr;
  MEP_TRY(check_comm(comm));
  if (ranks == nullptr) return null_argument("ranks");
  MEP_TRY(check_comm_name(name));
  if (count < 1) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "count is %d; list one rank at least, this one", count);
  }
  return guarded([&]() -> mep_result_t {
    const CallScope scope(comm);
    MEP_TRY(scope.check());
    return create_from_ranks(comm, ranks, count, name, child);
  });
}
