// mep_comm_init, mep_comm_init_all and mep_comm_destroy: worlds begin and end here.
#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/failpoint.hpp"
#include "core/api/api_guard.hpp"
#include "core/api/make_comm.hpp"
#include "core/bootstrap/launcher_environment.hpp"
#include "core/comm/gpu_backend.hpp"

namespace mep {
namespace {

std::vector<uint32_t> first_slots(int32_t count) {
  std::vector<uint32_t> slots(static_cast<size_t>(count));
  for (uint32_t slot = 0; slot < slots.size(); ++slot) slots[slot] = slot;
  return slots;
}

// Chooses the GPUs of this process's `count` ranks, whose local ranks begin with `local_rank`. *places stays empty if
// the config asks for no GPU.
mep_result_t choose_places(const mep_comm_config_t& config, uint64_t local_rank, size_t count,
                           std::vector<GpuPlace>* places) {
  if (config.device_type == MEP_DEVICE_HOST) return MEP_SUCCESS;
  std::map<int32_t, uint32_t> ranks_of;
  for (size_t i = 0; i < count; ++i) {
    GpuPlace& place = places->emplace_back();
    MEP_TRY(choose_device(config, local_rank + i, &place.device));
    ++ranks_of[place.device];
  }
  uint32_t most = 0;
  for (const auto& [device, ranks] : ranks_of) most = std::max(most, ranks);
  for (GpuPlace& place : *places) {
    place.ranks_on_device = ranks_of[place.device];
    place.most_on_a_device = most;
  }
  return MEP_SUCCESS;
}

// One rank's part of a world that is not finished yet.
struct Opening {
  std::shared_ptr<World> world;
  std::unique_ptr<Comm> comm;
};

mep_result_t open_world(const ResolvedConfig& config, Mesh mesh, TransportSet transports,
                        Opening* out) {
  // These incarnations must be the world's members: begin() or finish() fails if one has died since.
  CommMembers members;
  members.incarnations.resize(static_cast<size_t>(config.size), 0);
  members.incarnations[mesh.self.identity.slot] = mesh.self.identity.incarnation;
  for (const PeerLink& peer : mesh.peers) {
    members.incarnations[peer.identity.slot] = peer.identity.incarnation;
  }
  MEP_TRY(World::open(config, std::move(mesh), std::move(transports), &out->world));
  out->comm = std::make_unique<Comm>(out->world, "world", first_slots(config.size),
                                     Comm::spanning_id("world", 1));
  return out->comm->begin(1, 1, &members);
}

// Aborts a world that could not be opened, so that the others do not wait for this rank. The error text stays.
mep_result_t give_up(const Opening& opening, mep_result_t result) {
  if (opening.world == nullptr) return result;
  const std::string text = last_error_text();
  opening.world->abort({});
  return fail(result, "%s", text.c_str());
}

mep_result_t finish_world(const Deadline& deadline, Opening* opening, mep_comm_t* comm) {
  MEP_TRY(opening->world->await_connections(deadline));
  MEP_TRY(opening->comm->finish(deadline));
  auto handle = std::make_unique<mep_comm>(std::move(opening->comm));
  handle->is_world = true;
  *comm = handle.release();
  return MEP_SUCCESS;
}

// Makes the GPU backends of `comms`, which are ranks of this process; none if `places` is empty. `made_together`:
// `comms` are all ranks of the world.
mep_result_t add_devices(const std::vector<GpuPlace>& places, bool made_together,
                         const Deadline& deadline, std::span<const mep_comm_t> comms) {
  if (places.empty()) return MEP_SUCCESS;
  const std::span<const GpuPlace> together =
      made_together ? std::span<const GpuPlace>(places) : std::span<const GpuPlace>();
  std::vector<GpuBackend*> sides;
  for (size_t i = 0; i < comms.size(); ++i) {
    std::unique_ptr<GpuBackend> side;
    MEP_TRY(make_gpu_backend(*comms[i]->comm, places[i], together, &side));
    sides.push_back(side.get());
    comms[i]->backend = std::move(side);
  }
  for (GpuBackend* side : sides) MEP_TRY(side->connect(deadline));
  MEP_FAILPOINT("gpus meet");
  for (GpuBackend* side : sides) MEP_TRY(side->begin_proof());
  for (GpuBackend* side : sides) MEP_TRY(side->end_proof());
  return MEP_SUCCESS;
}

// A rank that ends before all ranks have confirmed the world makes the start fail; the world has not lost it, because
// there is no world yet. The error text keeps its cause and names the ranks that ended.
mep_result_t as_failed_start(mep_result_t result, const World* world) {
  if (result != MEP_ERR_PEER_FAILED && result != MEP_ERR_PEER_LEFT) return result;
  std::string ended;
  for (int32_t rank = 0; world != nullptr && rank < world->config().size; ++rank) {
    if (world->view().snapshot().incarnation(static_cast<uint32_t>(rank)) != 0) continue;
    ended += (ended.empty() ? "rank " : ", rank ") + std::to_string(rank);
  }
  return add_context(MEP_ERR_BOOTSTRAP, "the start failed, %s ended meanwhile",
                     ended.empty() ? "a rank" : ended.c_str());
}

// Runs a first barrier: all ranks have success or, as far as they can know, none has.
mep_result_t confirm(mep_comm_t comm, uint32_t timeout_ms) {
  const CallScope scope(comm);
  comm->comm->set_timeout_ms(timeout_ms);
  const mep_result_t result = comm->comm->run(Collective::k_barrier, {});
  comm->comm->set_timeout_ms(comm->comm->world().config().timeout_ms);
  return result;
}

void close_world(mep_comm_t comm, bool orderly) {
  Comm& world_comm = *comm->comm;
  const std::shared_ptr<World> world = world_comm.world_ptr();
  comm->unattached.clear();
  if (!orderly) world->abort({});
  world->leave(orderly, Deadline::after_ms(world_comm.timeout_ms()));
  world_comm.close();
  delete comm;
}

}  // namespace

mep_result_t read_comm_config(const mep_comm_config_t* config, mep_comm_config_t* given) {
  mep_struct_init(given, sizeof *given);
  if (config != nullptr) MEP_TRY(read_sized_struct(config, "mep_comm_config_t", given));
  given->struct_size = sizeof *given;
  return MEP_SUCCESS;
}

mep_result_t choose_own_place(const mep_comm_config_t& config, int32_t rank,
                              std::vector<GpuPlace>* places) {
  auto local_rank = static_cast<uint64_t>(rank);
  if (config.device_type == MEP_DEVICE_CUDA_BY_RANK) {
    MEP_TRY(find_local_rank(&local_rank));
  }
  return choose_places(config, local_rank, 1, places);
}

}  // namespace mep

mep_result_t mep_comm_init(const mep_comm_config_t* config, mep_comm_t* comm) {
  using namespace mep;
  if (comm == nullptr) return null_argument("comm");
  *comm = nullptr;
  return guarded([&]() -> mep_result_t {
    MEP_TRY(failpoints_from_environment());
    mep_comm_config_t given;
    MEP_TRY(read_comm_config(config, &given));
    ResolvedConfig resolved;
    MEP_TRY(resolve_config(&given, &resolved));
    std::vector<GpuPlace> places;
    MEP_TRY(choose_own_place(given, resolved.rank, &places));
    const Deadline deadline = Deadline::after_ms(resolved.init_timeout_ms);
    TransportSet transports;
    MEP_TRY(transports.open(resolved));
    SelfDescription self;
    MEP_TRY(make_identity(static_cast<uint32_t>(resolved.rank), &self.identity));
    MEP_TRY(transports.make_offer(&self.offer));
    self.death_page = DeathPage::create();
    Mesh mesh;
    MEP_TRY(bootstrap_mesh(resolved, self, &mesh));
    Opening opening;
    mep_comm_t made = nullptr;
    mep_result_t opened = open_world(resolved, std::move(mesh), std::move(transports), &opening);
    if (opened == MEP_SUCCESS) opened = opening.world->take_doorbells(deadline);
    if (opened == MEP_SUCCESS) opened = finish_world(deadline, &opening, &made);
    if (opened != MEP_SUCCESS) {
      return as_failed_start(give_up(opening, opened), opening.world.get());
    }
    MEP_FAILPOINT("init connected");
    mep_result_t confirmed = add_devices(places, false, deadline, {&made, 1});
    if (confirmed == MEP_SUCCESS) made->comm->world().admissions().begin();
    if (confirmed == MEP_SUCCESS) confirmed = confirm(made, resolved.init_timeout_ms);
    if (confirmed != MEP_SUCCESS) {
      const std::string text = last_error_text();
      close_world(made, false);
      set_last_error_text(text.c_str());
      return as_failed_start(confirmed, opening.world.get());
    }
    *comm = made;
    return MEP_SUCCESS;
  });
}

mep_result_t mep_comm_init_all(int32_t count, const mep_comm_config_t* config, mep_comm_t* comms) {
  using namespace mep;
  if (comms == nullptr) return null_argument("comms");
  if (count < 1 || count > 4096) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "count is %d, it must be 1 to 4096", count);
  }
  std::fill(comms, comms + count, nullptr);
  return guarded([&]() -> mep_result_t {
    mep_comm_config_t given;
    MEP_TRY(read_comm_config(config, &given));
    given.rank = 0;
    given.size = count;
    given.flags |= MEP_COMM_SET_RANK;
    given.job = "threads";
    given.rendezvous = nullptr;
    given.store = nullptr;
    MEP_TRY(failpoints_from_environment());
    ResolvedConfig resolved;
    MEP_TRY(resolve_config(&given, &resolved, ConfigUse::kThreads));
    const auto ranks = static_cast<size_t>(count);
    std::vector<GpuPlace> places;
    MEP_TRY(choose_places(given, 0, ranks, &places));
    const Deadline deadline = Deadline::after_ms(resolved.init_timeout_ms);
    std::vector<TransportSet> transports(ranks);
    std::vector<SelfDescription> selves(ranks);
    for (size_t rank = 0; rank < ranks; ++rank) {
      MEP_TRY(transports[rank].open(resolved));
      MEP_TRY(make_identity(static_cast<uint32_t>(rank), &selves[rank].identity));
      MEP_TRY(transports[rank].make_offer(&selves[rank].offer));
    }
    std::vector<Mesh> meshes;
    MEP_TRY(bootstrap_threads(selves, &meshes));
    std::vector<Opening> openings(ranks);
    for (size_t rank = 0; rank < ranks; ++rank) {
      resolved.rank = static_cast<int32_t>(rank);
      MEP_TRY(open_world(resolved, std::move(meshes[rank]), std::move(transports[rank]),
                         &openings[rank]));
    }
    std::vector<mep_comm_t> made(ranks, nullptr);
    mep_result_t result = MEP_SUCCESS;
    for (size_t rank = 0; rank < ranks && result == MEP_SUCCESS; ++rank) {
      result = openings[rank].world->take_doorbells(deadline);
    }
    for (size_t rank = 0; rank < ranks && result == MEP_SUCCESS; ++rank) {
      result = finish_world(deadline, &openings[rank], &made[rank]);
    }
    if (result == MEP_SUCCESS) result = add_devices(places, true, deadline, made);
    if (result != MEP_SUCCESS) {
      for (const mep_comm_t each : made) {
        if (each != nullptr) close_world(each, false);
      }
      return result;
    }
    std::copy(made.begin(), made.end(), comms);
    return MEP_SUCCESS;
  });
}

mep_result_t mep_comm_destroy(mep_comm_t comm) {
  using namespace mep;
  if (comm == nullptr) return MEP_SUCCESS;
  return guarded([&]() -> mep_result_t {
    if (comm->comm->world().forked()) return check_comm(comm);
    // Held until the end, so that no other thread enters the communicator any more.
    CallScope scope(comm);
    MEP_TRY(scope.check());
    if (comm->backend->busy()) {
      return fail(MEP_ERR_BUSY,
                  "operations of the communicator still run on its GPU; wait for "
                  "their streams first");
    }
    // Acquire: at 0 every comm made from this one has ended its use of the world, also in another thread.
    if (comm->users.load(std::memory_order_acquire) != 0 ||
        comm->comm->messages().request_blocks().has_lent() || !comm->comm->collectives().idle() ||
        comm->comm->clients().any(comm->comm->clients().unattached() +
                                  comm->backend->view_participants())) {
      return fail(MEP_ERR_BUSY,
                  "the communicator still has EP objects, requests or communicators "
                  "made from it; destroy or finish them first");
    }
    if (comm->is_world && comm->comm->world().allocations() != 0) {
      return fail(MEP_ERR_BUSY, "memory of mep_mem_alloc is not freed yet");
    }
    comm->comm->clients().drop_unattached();
    if (comm->is_world) comm->comm->messages().leave_world();
    scope.forget();
    if (comm->is_world) {
      close_world(comm, true);
    } else {
      comm->comm->close_after_changes();
      delete comm;
    }
    return MEP_SUCCESS;
  });
}
