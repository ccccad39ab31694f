// The joiner's side: a rank that takes an empty slot of a world at work.
#include <poll.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/failpoint.hpp"
#include "base/status.hpp"
#include "core/api/api_guard.hpp"
#include "core/api/make_comm.hpp"
#include "core/api/recover.hpp"
#include "core/ep/ep_object.hpp"
#include "core/world/frames.hpp"

namespace mep {
namespace {

constexpr int kPollMs = 50;

struct Welcome {
  bool has_view = false;
  bool has_comms = false;
  membership::View view;
  std::vector<CommDescription> comms;
};

// Every member tells the view and the comms that it has in common with the joiner; what else comes
// stays in the links. A peer that begins with something else is a joiner too and has no welcome to give.
class Reception {
 public:
  explicit Reception(Mesh& mesh) : mesh_(mesh) {}

  mep_result_t wait(const Deadline& deadline, Welcome* welcome) {
    while (!deadline.expired()) {
      // First, for a link may hold a welcome that came with the last frame of the handshake: poll() does not see it.
      bool all = true;
      for (const PeerLink& peer : mesh_.peers) {
        if (is_awaited(peer)) MEP_TRY(read(peer));
        all = all && !is_awaited(peer);
      }
      if (all && latest_view() != nullptr) {
        merge(welcome);
        return MEP_SUCCESS;
      }
      std::vector<pollfd> fds;
      for (const PeerLink& peer : mesh_.peers) {
        if (is_awaited(peer)) fds.push_back({peer.link->fd(), POLLIN, 0});
      }
      (void)poll(fds.data(), fds.size(), deadline.left_ms(kPollMs));
    }
    return fail(MEP_ERR_TIMEOUT, "the members did not answer; is one of them inside a call?");
  }

 private:
  // Nobody knows at first who is a member; the first welcome says it.
  bool is_awaited(const PeerLink& peer) const {
    const uint32_t slot = peer.identity.slot;
    const auto found = welcomes_.find(slot);
    if (silent_.contains(slot) || (found != welcomes_.end() && found->second.has_comms))
      return false;
    const membership::View* known = latest_view();
    return known == nullptr || known->incarnation(slot) == peer.identity.incarnation;
  }

  const membership::View* latest_view() const {
    const membership::View* latest = nullptr;
    for (const auto& [slot, welcome] : welcomes_) {
      if (!welcome.has_comms) continue;
      if (latest == nullptr || latest->epoch < welcome.view.epoch) latest = &welcome.view;
    }
    return latest;
  }

  mep_result_t read(const PeerLink& peer) {
    const uint32_t slot = peer.identity.slot;
    Welcome& welcome = welcomes_[slot];
    bool bad = false;
    Frame other;
    other.type = 0;
    const mep_result_t result = peer.link->receive([&](Frame& frame) {
      if (frame.type == kFrameView) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(frame.payload.data());
        welcome.has_view = membership::decode_view({bytes, frame.payload.size()}, max_slots(),
                                                   &welcome.view, nullptr);
        bad = !welcome.has_view;
        return !bad;
      }
      if (!welcome.has_view) {
        other = std::move(frame);
        return false;
      }
      std::vector<CommDescription> part;
      bad = frame.type != kFrameComms || !decode_comms(frame.payload, max_slots(), &part) ||
            !are_own(part);
      welcome.has_comms = !bad && part.empty();
      merge_welcome(std::move(part), &welcome.comms);
      return !bad && !welcome.has_comms;
    });
    if (result == MEP_ERR_NO_MEMORY) return result;
    if (bad) return fail(MEP_ERR_DENIED, "rank %u sent a bad welcome", slot);
    if (other.type != 0) {
      peer.link->unread(std::move(other));
      silent_.insert(slot);
    } else if (result != MEP_SUCCESS && !welcome.has_comms) {
      silent_.insert(slot);  // closed: it gives no welcome; another may
    }
    return MEP_SUCCESS;
  }

  // The latest view, and each comm as one of its members has described it.
  void merge(Welcome* out) {
    out->view = *latest_view();
    out->has_view = true;
    std::set<uint64_t> known;
    for (auto& [slot, welcome] : welcomes_) {
      if (!welcome.has_comms) continue;
      for (CommDescription& comm : welcome.comms) {
        if (known.insert(comm.id).second) out->comms.push_back(std::move(comm));
      }
    }
  }

  // A comm that this rank has no place in would give it somebody else's.
  bool are_own(const std::vector<CommDescription>& comms) const {
    return std::all_of(comms.begin(), comms.end(), [this](const CommDescription& comm) {
      return std::find(comm.slots.begin(), comm.slots.end(), mesh_.self.identity.slot) !=
             comm.slots.end();
    });
  }

  uint32_t max_slots() const { return static_cast<uint32_t>(mesh_.max_size); }

  Mesh& mesh_;
  std::map<uint32_t, Welcome> welcomes_;  // by slot, as far as they have come
  std::set<uint32_t> silent_;             // slots of which none will come
};

struct Entering {
  std::shared_ptr<World> world;
  std::vector<GpuPlace> places;  // this rank's, if it has a GPU
  std::vector<std::unique_ptr<mep_comm>> comms;
};

mep_result_t attach_object(std::span<const std::byte> object, const Deadline& deadline,
                           const std::vector<GpuPlace>& places, mep_comm* handle) {
  Comm& comm = *handle->comm;
  if (object.empty()) return fail(MEP_ERR_DENIED, "a member described nothing");
  const std::span<const std::byte> description = object.subspan(1);
  switch (static_cast<ObjectKind>(object[0])) {
    case ObjectKind::kGpu: {
      if (places.empty()) {
        return fail(MEP_ERR_MISMATCH, "comm %s is on GPUs: give config.device_type",
                    comm.name().c_str());
      }
      std::unique_ptr<GpuBackend> gpu;
      MEP_TRY(join_gpu_backend(comm, places[0], description, deadline, &gpu));
      handle->backend = std::move(gpu);
      return MEP_SUCCESS;
    }
    case ObjectKind::kEp: {
      std::unique_ptr<EpObject> attached;
      MEP_TRY(EpObject::attach(comm, *handle->backend, description, deadline, &attached));
      comm.clients().keep_unattached(std::move(attached));
      return MEP_SUCCESS;
    }
  }
  return fail(MEP_ERR_DENIED, "a member described an object of an unknown kind");
}

mep_result_t make_comms(const Welcome& welcome, const Deadline& deadline, Entering* entering) {
  for (const CommDescription& description : welcome.comms) {
    auto handle = std::make_unique<mep_comm>(std::make_unique<Comm>(
        entering->world, description.name, description.slots, description.id));
    Comm& comm = *handle->comm;
    MEP_TRY(comm.begin(description.epoch, 1));
    const mep_result_t made = comm.finish(deadline);
    if (made == MEP_ERR_NOT_FOUND) continue;  // a member has destroyed it meanwhile
    MEP_TRY(made);
    comm.set_child_number(description.child_number);
    comm.set_ep_number(description.ep_number);
    for (const std::vector<std::byte>& object : description.objects) {
      const mep_result_t result = attach_object(object, deadline, entering->places, handle.get());
      if (result == MEP_ERR_NOT_FOUND) continue;  // likewise
      MEP_TRY(result);
    }
    if (Comm::is_spanning(description.id) && !entering->places.empty() &&
        !handle->backend->enqueues()) {
      return fail(MEP_ERR_MISMATCH, "comm %s is on host memory: leave out config.device_type",
                  comm.name().c_str());
    }
    entering->comms.push_back(std::move(handle));
  }
  return MEP_SUCCESS;
}

// Else all that knew the comm are gone: who came with this rank, but later, was told nothing of it.
bool has_older_member(const Comm& comm, const Admission& admission) {
  const std::vector<uint32_t>& slots = comm.slots();
  return std::any_of(slots.begin(), slots.end(), [&](uint32_t slot) {
    return admission.view->members.has(slot) &&
           std::find(admission.added.begin(), admission.added.end(), slot) == admission.added.end();
  });
}

// Drops comms that another rank which came with this one was not told of: their members are gone or have destroyed them.
mep_result_t meet_joiners(const Admission& admission, const Deadline& deadline,
                          std::vector<std::unique_ptr<mep_comm>>* comms) {
  for (auto each = comms->begin(); each != comms->end();) {
    const mep_result_t met = has_older_member(*(*each)->comm, admission)
                                 ? (*each)->backend->meet_joiners(deadline)
                                 : MEP_ERR_NOT_FOUND;
    if (met != MEP_ERR_NOT_FOUND) MEP_TRY(met);
    each = met == MEP_SUCCESS ? each + 1 : comms->erase(each);
  }
  return MEP_SUCCESS;
}

// Gives the joiner its comm: the largest comm over the whole world that had its place before, or one that it makes
// together with the members, who are growing the world.
mep_result_t hand_out(const ResolvedConfig& config, Entering* entering, const Admission& admission,
                      mep_comm_t* comm) {
  const auto first_size = static_cast<uint32_t>(config.size);
  std::unique_ptr<mep_comm>* largest = nullptr;
  for (std::unique_ptr<mep_comm>& each : entering->comms) {
    if (!Comm::is_spanning(each->comm->id())) continue;
    if (largest == nullptr || (*largest)->comm->size() < each->comm->size()) largest = &each;
  }
  std::unique_ptr<mep_comm> made;
  if (largest != nullptr) {
    made = std::move(*largest);
  } else if (entering->world->self_slot() >= first_size) {
    mep_comm_t grown = nullptr;
    MEP_TRY(make_grown(nullptr, nullptr, entering->world, size_with(admission.added), admission,
                       config.timeout_ms,
                       entering->places.empty() ? nullptr : entering->places.data(), &grown));
    made.reset(grown);
  } else {
    return fail(MEP_ERR_INTERNAL, "the members named no world for rank %u",
                entering->world->self_slot());
  }
  made->is_world = true;
  for (std::unique_ptr<mep_comm>& each : entering->comms) {
    if (each == nullptr) continue;
    made->unattached[each->comm->name()] = std::move(each);
  }
  *comm = made.release();
  return MEP_SUCCESS;
}

// One try. *again: it missed a rank that lives.
mep_result_t try_to_join(const mep_comm_config_t& given, ResolvedConfig config,
                         const Deadline& deadline, bool* again, mep_comm_t* comm) {
  *again = false;
  TransportSet transports;
  MEP_TRY(transports.open(config));
  SelfDescription self;
  MEP_TRY(make_identity(static_cast<uint32_t>(config.rank), &self.identity));
  MEP_TRY(transports.make_offer(&self.offer));
  self.death_page = DeathPage::create();
  Mesh mesh;
  MEP_FAILPOINT("join begin");
  MEP_TRY(bootstrap_join(config, self, deadline, &mesh));
  MEP_FAILPOINT("join connected");
  Welcome welcome;
  MEP_TRY(Reception(mesh).wait(deadline, &welcome));
  MEP_FAILPOINT("join welcomed");
  config.rank = static_cast<int32_t>(mesh.self.identity.slot);
  config.size = mesh.size;
  config.max_size = mesh.max_size;
  Entering entering;
  MEP_TRY(choose_own_place(given, config.rank, &entering.places));
  MEP_TRY(
      World::open(config, std::move(mesh), std::move(transports), &entering.world, &welcome.view));
  Admission admission;
  // The members must learn that it ends, whatever it ends by.
  const mep_result_t result = guarded([&]() -> mep_result_t {
    MEP_TRY(entering.world->take_doorbells(deadline, true));
    MEP_TRY(entering.world->await_connections(deadline, true));
    MEP_TRY(make_comms(welcome, deadline, &entering));
    MEP_FAILPOINT("join ready");
    MEP_TRY(entering.world->admissions().enter(deadline, &admission));
    MEP_TRY(meet_joiners(admission, deadline, &entering.comms));
    entering.world->admissions().end_joining();
    return hand_out(config, &entering, admission, comm);
  });
  if (result == MEP_SUCCESS) return result;
  const mep_result_t terminal = entering.world->terminal_result();
  const bool is_in = !entering.world->admissions().entering();
  *again = terminal == WorldEnd::kMissedRank && !deadline.expired();
  const bool members_went = result == MEP_ERR_PEER_FAILED || result == MEP_ERR_PEER_LEFT;
  if (!is_in && terminal == MEP_SUCCESS && !members_went) {
    const KeepErrorText kept;
    (void)guarded([&]() -> mep_result_t {
      entering.world->say_why(result);
      return MEP_SUCCESS;
    });
  }
  // A joiner that is in already is waited for: the others learn at once that it ends.
  if (is_in) entering.world->abort({});
  entering.world->leave(false, deadline);
  const bool ended_by_others = terminal == MEP_ERR_EVICTED || terminal == MEP_ERR_NO_QUORUM;
  if (!is_in && ended_by_others) return Admissions::fail_outside();
  return members_went ? add_context(MEP_ERR_BOOTSTRAP, "the join failed, try again") : result;
}

mep_result_t join(const mep_comm_config_t* config_given, mep_comm_t* comm) {
  mep_comm_config_t given;
  MEP_TRY(read_comm_config(config_given, &given));
  ResolvedConfig config;
  MEP_TRY(failpoints_from_environment());
  MEP_TRY(resolve_config(&given, &config, ConfigUse::kJoin));
  const Deadline deadline = Deadline::after_ms(config.init_timeout_ms);
  for (;;) {
    bool again = false;
    const mep_result_t result = try_to_join(given, config, deadline, &again, comm);
    if (!again) return result;
  }
}

}  // namespace
}  // namespace mep

mep_result_t mep_comm_join(const mep_comm_config_t* config, mep_comm_t* comm) {
  using namespace mep;
  if (comm == nullptr) return null_argument("comm");
  *comm = nullptr;
  return guarded([&] { return join(config, comm); });
}

mep_result_t mep_comm_attach(mep_comm_t world, const char* name, mep_comm_t* comm) {
  using namespace mep;
  MEP_TRY(on_world(world));
  if (name == nullptr) return null_argument("name");
  if (comm == nullptr) return null_argument("comm");
  *comm = nullptr;
  return guarded([&]() -> mep_result_t {
    const CallScope scope(world);
    MEP_TRY(scope.check());
    const auto found = world->unattached.find(name);
    if (found == world->unattached.end()) {
      return fail(MEP_ERR_NOT_FOUND, "this rank joined no communicator named \"%s\"", name);
    }
    found->second->belongs_to(world);
    *comm = found->second.release();
    world->unattached.erase(found);
    return MEP_SUCCESS;
  });
}
