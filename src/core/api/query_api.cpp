// mep_comm_query: the values in force on a comm, and how its ranks are reached.
#include <algorithm>

#include "core/api/api_guard.hpp"

namespace mep {
namespace {

mep_reach_t reach_of(mep_comm_t comm, const CommView& view, uint32_t rank) {
  if (rank == comm->comm->rank()) return MEP_REACH_SELF;
  if (!view.is_live(rank)) return MEP_REACH_NONE;
  return comm->backend->reach_of(rank);
}

void fill_limits(mep_comm_t comm, mep_comm_info_t* info) {
  const BackendLimits limits = comm->backend->limits();
  info->message_eager_bytes = limits.message_eager_bytes;
  info->max_group_messages = limits.group_messages;
  info->num_sms = limits.blocks;
}

void fill_config(const Comm& impl, mep_comm_info_t* info) {
  const ResolvedConfig& config = impl.world().config();
  info->flags = config.flags & ~uint32_t{MEP_COMM_SET_RANK};
  info->max_size = static_cast<int32_t>(impl.world().max_slots());
  info->quorum = config.quorum;
  info->timeout_ms = impl.timeout_ms();
  info->heartbeat_ms = config.heartbeat_ms;
  info->suspect_ms = config.suspect_ms;
}

mep_result_t query(mep_comm_t comm, mep_comm_info_t* info) {
  mep_comm_info_t read;
  MEP_TRY(read_sized_struct(info, "mep_comm_info_t", &read));
  mep_comm_info_t filled{};
  filled.struct_size = read.struct_size;
  filled.capacity = read.capacity;
  filled.reach = read.reach;
  filled.transports = read.transports;
  const Comm& impl = *comm->comm;
  const auto view = impl.latest_view();
  filled.rank = static_cast<int32_t>(impl.rank());
  filled.size = static_cast<int32_t>(impl.size());
  filled.live = static_cast<int32_t>(view->live.size());
  MEP_TRY(mep_comm_device(comm, &filled.device_type, &filled.device));
  fill_config(impl, &filled);
  fill_limits(comm, &filled);
  for (uint32_t rank = 0; rank < std::min(impl.size(), filled.capacity); ++rank) {
    if (filled.reach != nullptr) filled.reach[rank] = reach_of(comm, *view, rank);
    if (filled.transports != nullptr) {
      filled.transports[rank] = impl.world().peers().transport_text(impl.slots()[rank]);
    }
  }
  write_sized_struct(filled, info);
  const bool has_array = filled.reach != nullptr || filled.transports != nullptr;
  if (!has_array || filled.capacity >= impl.size()) return MEP_SUCCESS;
  return fail(MEP_ERR_CAPACITY, "capacity is %u, the communicator has %u ranks", filled.capacity,
              impl.size());
}

}  // namespace
}  // namespace mep

mep_result_t mep_comm_query(mep_comm_t comm, mep_comm_info_t* info) {
  using namespace mep;
  MEP_TRY(check_comm(comm));
  if (info == nullptr) return null_argument("info");
  return guarded([&] { return query(comm, info); });
}
