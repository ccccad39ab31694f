// Ranks that come, as the members see it: replacements and growth.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/failpoint.hpp"
#include "base/status.hpp"
#include "core/api/api_guard.hpp"
#include "core/api/make_comm.hpp"
#include "core/api/recover.hpp"
#include "core/comm/agreement.hpp"

namespace mep {

mep_result_t on_world(mep_comm_t comm) {
  MEP_TRY(check_comm(comm));
  if (comm->is_world || comm->is_grown) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "this is a communicator made by mep_comm_split; give the "
              "world");
}

namespace {

// How long members wait for each other when they ask only for who is ready now.
constexpr uint64_t kReadyNowMs = 50;
// The steps that all members agree on, as the error of a member that could not do one names them.
constexpr const char* kReady = "begin to admit joiners";
constexpr const char* kAdmitted = "admit joiners";

constexpr const char* kWorldName = "world";

std::string grown_name(uint32_t size) {
  return kWorldName + ("+" + std::to_string(size));
}

// All members must take part in what follows: also those that came by growth.
mep_result_t covers_all(const Comm& world_comm) {
  membership::SlotSet outside = world_comm.world().view().snapshot().members;
  outside -= world_comm.member_slots();
  if (outside.empty()) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "the world has grown beyond this communicator; give the one that mep_comm_grow made");
}

// All members are in the same call, no thread of this one is elsewhere, and all have done what they did
// before it.
mep_result_t meet(Comm& world_comm, PassedReports* passed, mep_result_t own, const char* what) {
  if (!world_comm.collectives().idle()) {
    return fail(MEP_ERR_BUSY, "requests of this world are not finished yet");
  }
  char own_text[kErrorTextBytes];
  (void)snprintf(own_text, sizeof own_text, "%s", last_error_text());
  return passed->run([&] {
    set_last_error_text(own_text);
    return agree_on_step(world_comm, own, what);
  });
}

mep_result_t admit(mep_comm_t world, const membership::SlotSet& wanted, uint64_t wait_ms,
                   Admission* admission) {
  Comm& world_comm = *world->comm;
  // A view that comes meanwhile is no call of another thread, and keeps no joiner out.
  const Comm::WaitingScope waiting(world_comm);
  if (!world_comm.world().idle()) {
    return fail(MEP_ERR_THREAD, "another thread is inside a call on this world; finish it first");
  }
  const auto prepare = [&] {
    return world->backend->prepare_for_joiners(Deadline::after_ms(world_comm.timeout_ms()));
  };
  return world_comm.world().admissions().recover(wanted, Deadline::after_ms(wait_ms), prepare,
                                                 admission);
}

membership::SlotSet slots_of_world(const Comm& world_comm) {
  membership::SlotSet slots;
  for (const uint32_t slot : world_comm.slots()) slots.add(slot);
  return slots;
}

mep_result_t check_streams(mep_comm_t world) {
  if (!world->backend->busy()) return MEP_SUCCESS;
  return fail(MEP_ERR_BUSY,
              "operations of the world still run on its GPU: wait for their streams first");
}

// Whether any rank knows of a joiner. All get the same answer.
mep_result_t ask_for_joiners(Comm& world_comm, PassedReports* passed, bool* anybody) {
  const uint32_t ready = world_comm.world().admissions().ready_joiners();
  uint32_t most = 0;
  const mep_result_t result = passed->run([&] {
    return world_comm.run(Collective::k_allreduce, {&ready, &most, 1, MEP_UINT32, MEP_MAX, 0});
  });
  *anybody = most != 0;
  return result;
}

mep_result_t recover_ranks(mep_comm_t world, const int32_t* ranks, int32_t count,
                           uint32_t timeout_ms, int32_t* admitted) {
  Comm& world_comm = *world->comm;
  for (int32_t i = 0; i < count; ++i) {
    if (ranks[i] >= 0 && static_cast<uint32_t>(ranks[i]) < world_comm.size()) continue;
    return fail(MEP_ERR_INVALID_ARGUMENT, "ranks[%d] is %d, no rank of a world of %u", i, ranks[i],
                world_comm.size());
  }
  membership::SlotSet wanted;
  const mep_result_t ready = guarded([&]() -> mep_result_t {
    MEP_TRY(check_streams(world));
    for (int32_t i = 0; i < count; ++i) {
      wanted.add(world_comm.slots()[static_cast<size_t>(ranks[i])]);
    }
    if (count == 0) wanted = slots_of_world(world_comm);
    return MEP_SUCCESS;
  });
  PassedReports passed(world_comm);
  MEP_TRY(meet(world_comm, &passed, ready, kReady));
  if (count == 0) {
    bool anybody = false;
    MEP_TRY(ask_for_joiners(world_comm, &passed, &anybody));
    if (!anybody) return MEP_SUCCESS;
  }
  Admission admission;
  MEP_TRY(admit(world, wanted, count == 0 ? kReadyNowMs : timeout_ms, &admission));
  *admitted = static_cast<int32_t>(admission.added.size());
  const auto now = world_comm.latest_view();
  MEP_TRY(world->backend->meet_joiners(Deadline::after_ms(world_comm.timeout_ms())));
  for (int32_t i = 0; i < count; ++i) {
    if (now->is_live(static_cast<uint32_t>(ranks[i]))) continue;
    std::string why =
        world_comm.world().admissions().refusal(world_comm.slots()[static_cast<size_t>(ranks[i])]);
    if (!why.empty()) why.insert(0, "; the last that came: ");
    return fail(
        MEP_ERR_TIMEOUT,
        "no replacement of rank %d was ready within %u ms, or it ended before it was admitted%s",
        ranks[i], timeout_ms, why.c_str());
  }
  return MEP_SUCCESS;
}

// A comm over the first `size` slots, of whoever was in the view of the admission.
mep_result_t begin_grown(const std::shared_ptr<World>& world, uint32_t size,
                         const Admission& admission, std::unique_ptr<mep_comm>* out) {
  std::vector<uint32_t> slots(size);
  for (uint32_t slot = 0; slot < size; ++slot) slots[slot] = slot;
  const CommMembers members = CommMembers::of(*admission.view, slots);
  *out = std::make_unique<mep_comm>(
      std::make_unique<Comm>(world, grown_name(size), std::move(slots),
                             Comm::spanning_id(grown_name(size), admission.view->epoch)));
  (*out)->is_grown = true;
  return (*out)->comm->begin(1, 1, &members);
}

// All members and joiners have GPUs, or none has.
mep_result_t agree_on_gpus(Comm& grown, bool has_gpu) {
  const uint8_t mine[] = {has_gpu, !has_gpu};
  uint8_t any[] = {0, 0};
  MEP_TRY(grown.run(Collective::k_allreduce, {mine, any, 2, MEP_UINT8, MEP_MAX, 0}));
  if (any[0] == 0 || any[1] == 0) return MEP_SUCCESS;
  return fail(MEP_ERR_MISMATCH, "some ranks have a GPU in config.device_type and others have not");
}

}  // namespace

mep_result_t make_grown(Comm* members, const PassedReports* passed,
                        const std::shared_ptr<World>& world, uint32_t size,
                        const Admission& admission, uint32_t timeout_ms, const GpuPlace* place,
                        mep_comm_t* grown) {
  std::unique_ptr<mep_comm> handle;
  const auto begin = [&] { return begin_grown(world, size, admission, &handle); };
  const auto finish = [&] { return handle->comm->finish(Deadline::after_ms(timeout_ms)); };
  if (members != nullptr) {
    const mep_result_t made = make_together(*members, begin, finish);
    if (made != MEP_SUCCESS) return give_up_making(made, handle);
  } else {
    MEP_TRY(begin());
    MEP_TRY(finish());
  }
  {
    const CallScope scope(handle.get());
    MEP_TRY(agree_on_gpus(*handle->comm, place != nullptr));
    MEP_TRY(add_gpu(handle.get(), place, *handle->comm));
    MEP_TRY(share_reports(*handle->comm, passed));
  }
  *grown = handle.release();
  return MEP_SUCCESS;
}

uint32_t size_with(const std::vector<uint32_t>& added) {
  return 1 + *std::max_element(added.begin(), added.end());
}

namespace {

// Fewer came than were wanted: they make a comm of those that came, which the members do not.
mep_result_t refuse_grown(const std::shared_ptr<World>& world, const Admission& admission,
                          mep_result_t result) {
  const KeepErrorText kept;
  std::unique_ptr<mep_comm> handle;
  (void)guarded([&] { return begin_grown(world, size_with(admission.added), admission, &handle); });
  return give_up_making(result, handle);
}

// Free slots for `count` more, and how large a comm over all of the world is then.
mep_result_t choose_slots(const Comm& world_comm, int32_t count, membership::SlotSet* wanted,
                          uint32_t* size) {
  const World& world = world_comm.world();
  const membership::View view = world.view().snapshot();
  *size = world_comm.size();
  for (uint32_t slot = world_comm.size(); slot < world.max_slots(); ++slot) {
    if (view.members.has(slot)) {
      *size = slot + 1;
    } else if (wanted->count() < static_cast<uint32_t>(count)) {
      wanted->add(slot);
      *size = slot + 1;
    }
  }
  if (wanted->count() == static_cast<uint32_t>(count)) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "the world has room for %u more ranks, not %d; max_size was %u at the start",
              wanted->count(), count, world.max_slots());
}

// After an error those that were admitted leave again. Until they are out of the view the next call on this
// world would be refused on some members, and waited for by those that know already that they are out.
mep_result_t await_departures(const Comm& world_comm, mep_result_t result) {
  const KeepErrorText kept;
  (void)guarded([&]() -> mep_result_t {
    const Deadline limit = world_comm.identity().change_deadline();
    (void)world_comm.collectives().channel().wait(limit, [&] {
      return world_comm.world().terminal_result() != MEP_SUCCESS ||
             covers_all(world_comm) == MEP_SUCCESS;
    });
    return MEP_SUCCESS;
  });
  return result;
}

mep_result_t grow(mep_comm_t from, int32_t count, uint32_t timeout_ms, mep_comm_t* grown) {
  Comm& world_comm = *from->comm;
  const std::shared_ptr<World>& world = world_comm.world_ptr();
  membership::SlotSet wanted;
  uint32_t size = 0;
  const mep_result_t ready = guarded([&]() -> mep_result_t {
    MEP_TRY(check_streams(from));
    return choose_slots(world_comm, count, &wanted, &size);
  });
  if (ready == MEP_ERR_INVALID_ARGUMENT) return ready;
  PassedReports passed(world_comm);
  MEP_TRY(meet(world_comm, &passed, ready, kReady));
  Admission admission;
  const mep_result_t admitted =
      guarded([&] { return admit(from, wanted, timeout_ms, &admission); });
  const std::vector<uint32_t>& added = admission.added;
  // A member that died before the admission is not in its view: the meeting passes over it, like the one before.
  mep_result_t result = meet(world_comm, &passed, admitted, kAdmitted);
  if (result == MEP_SUCCESS && added.size() == static_cast<size_t>(count)) {
    result = make_grown(&world_comm, &passed, world, size, admission, timeout_ms, gpu_place(from),
                        grown);
    return result == MEP_SUCCESS ? result : await_departures(world_comm, result);
  }
  if (result == MEP_SUCCESS) {
    result =
        fail(MEP_ERR_TIMEOUT,
             "only %zu of %d new ranks were ready within %u ms and did not end before they were "
             "admitted",
             added.size(), count, timeout_ms);
  }
  if (added.empty()) return result;
  return await_departures(world_comm, refuse_grown(world, admission, result));
}

}  // namespace

// Everybody sees the same minimum, so all ask for admission or nobody does.
mep_result_t barrier_with_admission(Comm& world_comm) {
  if (covers_all(world_comm) != MEP_SUCCESS) return world_comm.run(Collective::k_barrier, {});
  const uint32_t ready = world_comm.world().admissions().ready_joiners();
  uint32_t everywhere = 0;
  MEP_TRY(
      world_comm.run(Collective::k_allreduce, {&ready, &everywhere, 1, MEP_UINT32, MEP_MIN, 0}));
  if (everywhere == 0) return MEP_SUCCESS;
  Admission admission;
  const Comm::WaitingScope waiting(world_comm);
  return world_comm.world().admissions().recover(
      slots_of_world(world_comm), Deadline::after_ms(kReadyNowMs), [] { return MEP_SUCCESS; },
      &admission);
}

}  // namespace mep

mep_result_t mep_recover_ranks(mep_comm_t world, const int32_t* ranks, int32_t count,
                               uint32_t timeout_ms, int32_t* admitted) {
  using namespace mep;
  MEP_TRY(on_world(world));
  if (admitted == nullptr) return null_argument("admitted");
  *admitted = 0;
  if (count < 0 || (count > 0 && ranks == nullptr)) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "count is %d with ranks %s", count,
                ranks == nullptr ? "NULL" : "given");
  }
  return guarded([&]() -> mep_result_t {
    const CallScope scope(world);
    MEP_TRY(scope.check());
    MEP_TRY(covers_all(*world->comm));
    return recover_ranks(world, ranks, count, timeout_ms, admitted);
  });
}

mep_result_t mep_comm_grow(mep_comm_t world, int32_t count, uint32_t timeout_ms,
                           mep_comm_t* grown) {
  using namespace mep;
  MEP_TRY(on_world(world));
  if (grown == nullptr) return null_argument("grown");
  *grown = nullptr;
  if (count < 1) return fail(MEP_ERR_INVALID_ARGUMENT, "count is %d, it must be positive", count);
  return guarded([&]() -> mep_result_t {
    const CallScope scope(world);
    MEP_TRY(scope.check());
    MEP_TRY(covers_all(*world->comm));
    MEP_TRY(grow(world, count, timeout_ms, grown));
    (*grown)->belongs_to(world);
    return MEP_SUCCESS;
  });
}
