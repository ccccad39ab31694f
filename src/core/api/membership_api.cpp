// Splitting, agreeing, and asking for changes of the view.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/api/api_guard.hpp"
#include "core/api/make_comm.hpp"
#include "core/comm/agreement.hpp"

namespace mep {
namespace {

struct SplitEntry {
  int32_t color;
  int32_t key;
  uint32_t number;  // of this split on the parent, so that names stay in step
};

// The live ranks of one color, by (key, rank), as slots.
std::vector<uint32_t> slots_of_color(const Comm& parent, const std::vector<SplitEntry>& entries,
                                     int32_t color) {
  std::vector<uint32_t> ranks;
  ranks.reserve(parent.adopted().live.size());
  for (const uint32_t rank : parent.adopted().live) {
    if (entries[rank].color == color) ranks.push_back(rank);
  }
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](uint32_t a, uint32_t b) { return entries[a].key < entries[b].key; });
  std::vector<uint32_t> slots;
  slots.reserve(ranks.size());
  for (const uint32_t rank : ranks) slots.push_back(parent.slots()[rank]);
  return slots;
}

// A rank without a part in any child still takes part in what all agree on.
mep_result_t watch_split(mep_comm_t comm) {
  Comm& parent = *comm->comm;
  const auto nothing = [] { return MEP_SUCCESS; };
  MEP_TRY(make_together(parent, nothing, nothing));
  if (gpu_place(comm) == nullptr) return MEP_SUCCESS;
  for (size_t i = 0; i < GpuBackend::steps().size(); ++i) {
    MEP_TRY(agree_on_step(parent, MEP_SUCCESS, ""));
  }
  return MEP_SUCCESS;
}

mep_result_t split(mep_comm_t comm, int32_t color, int32_t key, mep_comm_t* child) {
  Comm& parent = *comm->comm;
  const SplitEntry own{color, key, parent.child_number()};
  std::vector<SplitEntry> entries;
  MEP_TRY(step_together(parent, "begin to split a communicator", [&]() -> mep_result_t {
    entries.resize(parent.size());
    return MEP_SUCCESS;
  }));
  MEP_TRY(parent.run(Collective::k_allgather, {&own, entries.data(), sizeof own, MEP_UINT8, 0, 0}));
  // A joiner has not counted the splits before it came.
  uint32_t number = 0;
  for (const uint32_t rank : parent.adopted().live) number = std::max(number, entries[rank].number);
  parent.set_child_number(number + 1);
  if (color < 0) return watch_split(comm);
  std::unique_ptr<mep_comm> handle;
  const auto begin = [&] {
    const std::string name =
        parent.name() + "/" + std::to_string(number) + "." + std::to_string(color);
    const std::vector<uint32_t> slots = slots_of_color(parent, entries, color);
    const CommMembers members = parent.members_of(slots);
    handle = std::make_unique<mep_comm>(std::make_unique<Comm>(
        parent.world_ptr(), name, slots, Comm::child_id(parent.id(), number, color)));
    handle->comm->set_timeout_ms(parent.timeout_ms());
    return handle->comm->begin(1, 1, &members);
  };
  MEP_TRY(make_together(parent, begin, [&] {
    return handle->comm->finish(Deadline::after_ms(parent.timeout_ms()));
  }));
  {
    const CallScope scope(handle.get());
    MEP_TRY(add_gpu(handle.get(), gpu_place(comm), parent));
  }
  handle->belongs_to(comm);
  *child = handle.release();
  return MEP_SUCCESS;
}

// All ranks meet the same changes, by the same operations of comm: they begin again alike.
mep_result_t shrink(mep_comm_t comm, mep_comm_t* child) {
  Comm& parent = *comm->comm;
  const uint32_t timeout_ms = parent.timeout_ms();
  const Deadline limit = Deadline::after_ms(timeout_ms);
  PassedReports passed(parent, PassedReports::kLossesAndRevokes);
  return passed.run([&]() -> mep_result_t {
    MEP_TRY(step_together(parent, "shrink a communicator", [&]() -> mep_result_t {
      if (!limit.expired()) return MEP_SUCCESS;
      return fail(MEP_ERR_TIMEOUT, "its members changed again and again for %u ms", timeout_ms);
    }));
    return split(comm, 0, 0, child);
  });
}

// Failures do not prevent it, but the comm's next collective reports them.
mep_result_t agree(Comm& comm, uint64_t flag, uint64_t* result) {
  PassedReports passed(comm);
  return passed.run([&] {
    return comm.run(Collective::k_allreduce, {&flag, result, 1, MEP_UINT64, MEP_AND, 0});
  });
}

mep_result_t check_terminal(const Comm& comm) {
  return comm.identity().check_world();
}

}  // namespace
}  // namespace mep

mep_result_t mep_comm_split(mep_comm_t comm, int32_t color, int32_t key, mep_comm_t* child) {
  using namespace mep;
  if (child == nullptr) return null_argument("child");
  *child = nullptr;
  MEP_TRY(check_comm(comm));
  if (color < -1) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "color is %d; give 0 or more, or -1 for no communicator",
                color);
  }
  return guarded([&]() -> mep_result_t {
    const CallScope scope(comm);
    MEP_TRY(scope.check());
    const PurposeScope purpose(comm, CallPurpose::kSplit);
    return split(comm, color, key, child);
  });
}

mep_result_t mep_comm_dup(mep_comm_t comm, mep_comm_t* duplicate) {
  if (duplicate == nullptr) return mep::null_argument("duplicate");
  return mep_comm_split(comm, 0, 0, duplicate);
}

mep_result_t mep_comm_shrink(mep_comm_t comm, mep_comm_t* child) {
  using namespace mep;
  if (child == nullptr) return null_argument("child");
  *child = nullptr;
  MEP_TRY(check_comm(comm));
  return guarded([&]() -> mep_result_t {
    const CallScope scope(comm);
    MEP_TRY(scope.check());
    const PurposeScope purpose(comm, CallPurpose::kShrink);
    return shrink(comm, child);
  });
}

mep_result_t mep_comm_agree(mep_comm_t comm, uint64_t flag, uint64_t* result) {
  using namespace mep;
  if (result == nullptr) return null_argument("result");
  MEP_TRY(check_comm(comm));
  return guarded([&]() -> mep_result_t {
    const CallScope scope(comm);
    MEP_TRY(scope.check());
    const PurposeScope purpose(comm, CallPurpose::kAgree);
    uint64_t agreed = 0;
    MEP_TRY(agree(*comm->comm, flag, &agreed));
    *result = agreed;
    return MEP_SUCCESS;
  });
}

mep_result_t mep_comm_set_name(mep_comm_t comm, const char* name) {
  using namespace mep;
  MEP_TRY(check_comm(comm));
  MEP_TRY(check_comm_name(name));
  return guarded([&] { return comm->comm->rename(name); });
}

mep_result_t mep_comm_evict(mep_comm_t comm, int32_t rank) {
  using namespace mep;
  MEP_TRY(check_comm(comm));
  if (rank < 0 || static_cast<uint32_t>(rank) >= comm->comm->size()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "rank %d is no rank of a communicator of %u ranks", rank,
                comm->comm->size());
  }
  if (static_cast<uint32_t>(rank) == comm->comm->rank()) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "rank %d is this rank: it leaves by mep_comm_destroy, or at once by mep_comm_abort",
                rank);
  }
  return guarded([&]() -> mep_result_t {
    Comm& impl = *comm->comm;
    MEP_TRY(check_terminal(impl));
    impl.world().request_evict(impl.slots()[static_cast<size_t>(rank)]);
    return MEP_SUCCESS;
  });
}

mep_result_t mep_comm_revoke(mep_comm_t comm) {
  using namespace mep;
  MEP_TRY(check_comm(comm));
  return guarded([&]() -> mep_result_t {
    MEP_TRY(check_terminal(*comm->comm));
    comm->comm->world().request_revoke(comm->comm->id());
    comm->backend->revoke();
    return MEP_SUCCESS;
  });
}

mep_result_t mep_comm_abort(mep_comm_t comm) {
  return mep_comm_abort_with(comm, nullptr);
}

mep_result_t mep_comm_abort_with(mep_comm_t comm, const char* text) {
  using namespace mep;
  MEP_TRY(check_comm(comm));
  return guarded([&]() -> mep_result_t {
    comm->comm->world().abort(text == nullptr
                                  ? std::string()
                                  : std::string(text, strnlen(text, membership::kMaxReasonBytes)));
    return MEP_SUCCESS;
  });
}
