// Queries of a comm: its description, and what happened on it.
#include "core/api/api_guard.hpp"

using mep::check_comm;
using mep::fail;
using mep::guarded;
using mep::null_argument;

mep_result_t mep_comm_rank(mep_comm_t comm, int32_t* rank) {
  MEP_TRY(check_comm(comm));
  if (rank == nullptr) return null_argument("rank");
  *rank = static_cast<int32_t>(comm->comm->rank());
  return MEP_SUCCESS;
}

mep_result_t mep_comm_size(mep_comm_t comm, int32_t* size) {
  MEP_TRY(check_comm(comm));
  if (size == nullptr) return null_argument("size");
  *size = static_cast<int32_t>(comm->comm->size());
  return MEP_SUCCESS;
}

mep_result_t mep_comm_live_count(mep_comm_t comm, int32_t* live) {
  MEP_TRY(check_comm(comm));
  if (live == nullptr) return null_argument("live");
  *live = static_cast<int32_t>(comm->comm->latest_view()->live.size());
  return MEP_SUCCESS;
}

mep_result_t mep_comm_epoch(mep_comm_t comm, uint64_t* epoch) {
  MEP_TRY(check_comm(comm));
  if (epoch == nullptr) return null_argument("epoch");
  *epoch = comm->comm->latest_view()->epoch;
  return MEP_SUCCESS;
}

mep_result_t mep_comm_device(mep_comm_t comm, mep_device_type_t* type, int32_t* device) {
  MEP_TRY(check_comm(comm));
  if (type == nullptr && device == nullptr) return null_argument("type and device");
  const int32_t number = comm->backend->device();
  if (type != nullptr) *type = number < 0 ? MEP_DEVICE_HOST : MEP_DEVICE_CUDA;
  if (device != nullptr) *device = number < 0 ? 0 : number;
  return MEP_SUCCESS;
}

mep_result_t mep_comm_set_timeout(mep_comm_t comm, uint32_t timeout_ms) {
  MEP_TRY(check_comm(comm));
  if (timeout_ms == 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "timeout_ms is 0; give the longest wait in milliseconds");
  }
  comm->comm->set_timeout_ms(timeout_ms);
  comm->backend->set_timeout_ms(timeout_ms);
  return MEP_SUCCESS;
}

namespace {

mep_result_t check_rank(mep_comm_t comm, int32_t rank) {
  if (rank >= 0 && static_cast<uint32_t>(rank) < comm->comm->size()) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT, "rank %d is no rank of a communicator of %u ranks", rank,
              comm->comm->size());
}

}  // namespace

mep_result_t mep_comm_last_op(mep_comm_t comm, mep_op_info_t* info) {
  MEP_TRY(check_comm(comm));
  if (info == nullptr) return null_argument("info");
  return guarded([&]() -> mep_result_t {
    mep_op_info_t filled;
    MEP_TRY(mep::read_sized_struct(info, "mep_op_info_t", &filled));
    const mep::CallScope scope(comm);
    MEP_TRY(scope.check());
    const mep_result_t result = comm->comm->collectives().last_op(&filled);
    if (result == MEP_SUCCESS || result == MEP_ERR_CAPACITY) {
      mep::write_sized_struct(filled, info);
    }
    return result;
  });
}

mep_result_t mep_comm_async_result(mep_comm_t comm) {
  MEP_TRY(check_comm(comm));
  return comm->backend->take_any_failure();
}

mep_result_t mep_comm_stats(mep_comm_t comm, mep_comm_stats_t* stats) {
  MEP_TRY(check_comm(comm));
  if (stats == nullptr) return null_argument("stats");
  mep_comm_stats_t filled;
  MEP_TRY(mep::read_sized_struct(stats, "mep_comm_stats_t", &filled));
  comm->comm->counters().fill(&filled);
  mep::write_sized_struct(filled, stats);
  return MEP_SUCCESS;
}

mep_result_t mep_comm_name(mep_comm_t comm, const char** name) {
  MEP_TRY(check_comm(comm));
  if (name == nullptr) return null_argument("name");
  *name = comm->comm->name().c_str();
  return MEP_SUCCESS;
}

mep_result_t mep_comm_peer_state(mep_comm_t comm, int32_t rank, mep_peer_state_t* state) {
  MEP_TRY(check_comm(comm));
  if (state == nullptr) return null_argument("state");
  MEP_TRY(check_rank(comm, rank));
  const mep::Comm& impl = *comm->comm;
  *state = impl.world().peers().state(impl.slots()[static_cast<size_t>(rank)]);
  return MEP_SUCCESS;
}

mep_result_t mep_comm_view(mep_comm_t comm, mep_view_t* view) {
  MEP_TRY(check_comm(comm));
  if (view == nullptr) return null_argument("view");
  return guarded([&]() -> mep_result_t {
    mep_view_t filled;
    MEP_TRY(mep::read_sized_struct(view, "mep_view_t", &filled));
    const mep::Comm& impl = *comm->comm;
    const auto now = impl.latest_view();
    filled.flags = 0;
    filled.epoch = now->epoch;
    filled.world_epoch = now->world_epoch;
    filled.size = static_cast<int32_t>(impl.size());
    filled.live = static_cast<int32_t>(now->live.size());
    const bool arrays =
        filled.slots != nullptr || filled.incarnations != nullptr || filled.states != nullptr;
    for (uint32_t rank = 0; rank < impl.size() && rank < filled.capacity; ++rank) {
      const uint32_t slot = impl.slots()[rank];
      if (filled.slots != nullptr) filled.slots[rank] = static_cast<int32_t>(slot);
      if (filled.incarnations != nullptr) filled.incarnations[rank] = now->incarnations[rank];
      if (filled.states != nullptr) filled.states[rank] = impl.world().peers().state(slot);
    }
    mep::write_sized_struct(filled, view);
    if (!arrays || filled.capacity >= impl.size()) return MEP_SUCCESS;
    return fail(MEP_ERR_CAPACITY, "the arrays hold %u entries, the communicator has %u ranks",
                filled.capacity, impl.size());
  });
}

mep_result_t mep_comm_lost_ranks(mep_comm_t comm, int32_t* lost, mep_stream_t stream) {
  MEP_TRY(check_comm(comm));
  if (lost == nullptr) return null_argument("lost");
  return guarded([&]() -> mep_result_t {
    const mep::CallScope scope(comm);
    MEP_TRY(scope.check());
    return comm->backend->show_losses(lost, stream);
  });
}

mep_result_t mep_comm_forget_lost(mep_comm_t comm, mep_stream_t stream) {
  MEP_TRY(check_comm(comm));
  return guarded([&]() -> mep_result_t {
    const mep::CallScope scope(comm);
    MEP_TRY(scope.check());
    return comm->backend->forget_losses(stream);
  });
}

mep_result_t mep_comm_wait_view(mep_comm_t comm, uint64_t epoch, uint32_t timeout_ms) {
  MEP_TRY(check_comm(comm));
  return guarded([&]() -> mep_result_t {
    mep::World& world = comm->comm->world();
    const mep::Deadline deadline = mep::Deadline::after_ms(timeout_ms);
    const auto changed = [&] {
      return comm->comm->latest_view()->epoch > epoch || world.terminal_result() != MEP_SUCCESS;
    };
    if (!wait_until(world.wait_policy(), world.doorbell(), deadline, changed)) {
      return fail(MEP_ERR_TIMEOUT, "the view did not change within %u ms", timeout_ms);
    }
    if (comm->comm->latest_view()->epoch > epoch) return MEP_SUCCESS;
    return world.fail_as_ended();
  });
}

mep_result_t mep_comm_set_view_callback(mep_comm_t comm, mep_view_callback_t callback, void* user) {
  MEP_TRY(check_comm(comm));
  return guarded([&]() -> mep_result_t {
    comm->comm->world().view().set_callback(callback, user);
    return MEP_SUCCESS;
  });
}
