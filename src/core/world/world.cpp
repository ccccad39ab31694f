#include "core/world/world.hpp"

#include <pthread.h>

#include <ctime>
#include <mutex>

#include "base/failpoint.hpp"
#include "base/fork_hold.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "base/tool_range.hpp"
#include "core/bootstrap/hello.hpp"
#include "core/world/control_thread.hpp"
#include "core/world/wait_decision.hpp"
#include "transport/doorbell.hpp"

namespace mep {
namespace {

// Relaxed: a child sees what its parent wrote before the fork, and no other thread writes it there.
std::atomic<uint64_t> fork_count{0};

void watch_forks() {
  const ForkHold hold;
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1, std::memory_order_relaxed); });
  });
}

}  // namespace

uint64_t fork_generation() {
  watch_forks();
  return fork_count.load(std::memory_order_relaxed);
}

// --- Opening --------------------------------------------------------------------------------------

World::World(const ResolvedConfig& config, SelfDescription self, TransportSet transports)
    : config_(config),
      fork_generation_(fork_generation()),
      peers_(static_cast<uint32_t>(config.max_size), std::move(self), std::move(transports)),
      control_(std::make_unique<ControlThread>(
          ControlThread::Parts{config_, peers_, view_, end_, admissions_, windows_})),
      admissions_(*control_, end_, peers_.self_slot()),
      windows_(peers_, *control_, view_, end_, admissions_),
      recorder_(FlightRecorder::open(config_, peers_.self_slot())) {}

mep_result_t World::open(const ResolvedConfig& config, Mesh mesh, TransportSet transports,
                         std::shared_ptr<World>* out, const membership::View* joining) {
  find_tool();
  std::vector<PeerLink> links = std::move(mesh.peers);
  const std::shared_ptr<World> world(
      new World(config, std::move(mesh.self), std::move(transports)));
  WorldPeers& peers = world->peers_;
  MEP_TRY(world->windows_.open());
  MEP_TRY(peers.open_network(world->doorbell()));
  if (peers.network().is_open()) world->wait_policy_.network = &peers.network();
  MEP_TRY(world->windows_.bind_event());
  world->request_event_ = std::make_unique<RequestEvent>(world->doorbell());
  decide_wait(world->identity(), links, &world->yield_gauge_, &world->wait_policy_);
  if ((config.flags & MEP_COMM_PROGRESS_THREAD) != 0) {
    world->progress_thread_ =
        std::make_unique<ProgressThread>(world->doorbell(), world->wait_policy_);
  }
  for (PeerLink& link : links) {
    WorldPeer& peer = peers.take_in(&link);
    MEP_TRY(peers.choose_transport(&peer, link.offer));
    log(LogLevel::kInfo, "rank %u is reached by %s", link.identity.slot, peer.transport->name());
  }
  if (joining != nullptr) world->admissions_.begin_entering();
  MEP_TRY(world->control_->start(joining, std::move(mesh.listener), std::move(mesh.gate)));
  MEP_FAILPOINT("world started");
  std::vector<uint32_t> everybody;
  for (uint32_t slot = 0; slot < peers.count(); ++slot) {
    if (peers[slot].identity.incarnation != 0) everybody.push_back(slot);
  }
  MEP_TRY(world->windows_.offer(world->windows_.of_world(), everybody));
  *out = world;
  return MEP_SUCCESS;
}

mep_result_t World::take_doorbells(const Deadline& deadline, bool is_joiner) {
  std::vector<uint32_t> members;
  view_.snapshot().members.each([&](uint32_t slot) { members.push_back(slot); });
  std::vector<Remote> remotes;
  return windows_.receive(
      windows_.of_world(), members,
      [&](uint32_t slot) { return is_joiner && view_.snapshot().incarnation(slot) == 0; }, deadline,
      &remotes);
}

mep_result_t World::await_connections(const Deadline& deadline, bool is_joiner) {
  for (uint32_t slot = 0; slot < max_slots(); ++slot) {
    const WorldPeer& peer = peers_[slot];
    const auto wanted = [&] {
      return peer.transport != nullptr && slot != self_slot() &&
             view_.snapshot().incarnation(slot) == peer.identity.incarnation;
    };
    while (wanted() && !peer.transport->status(slot).is_connected) {
      const bool failed =
          peers_.state(slot) == MEP_PEER_SUSPECT || peers_.state(slot) == MEP_PEER_DEAD;
      if (failed && is_joiner) break;
      if (terminal_result() != MEP_SUCCESS || failed || deadline.expired()) {
        return fail(MEP_ERR_BOOTSTRAP,
                    "rank %u was found, but %s does not reach it; see the log (MEP_LOG=info), "
                    "MEP_NET_IF, and whether a firewall is in between",
                    slot, peer.transport->name());
      }
      constexpr timespec kPause{0, 200'000};
      nanosleep(&kPause, nullptr);
    }
  }
  return MEP_SUCCESS;
}

void World::wake() const {
  doorbell_ring(doorbell());
}

void World::count_allocation(int change) {
  // Relaxed: a count, looked at when the world is destroyed.
  allocations_.fetch_add(static_cast<uint32_t>(change), std::memory_order_relaxed);
}

World::~World() {
  progress_thread_.reset();
  request_event_.reset();
  control_->stop();
  control_.reset();
  windows_.unbind_events();
}

bool World::forked() const {
  return fork_generation_ != fork_count.load(std::memory_order_relaxed);
}

// --- Requests -------------------------------------------------------------------------------------

void World::post(std::function<void()> request) {
  control_->post(std::move(request));
}

bool World::call(FunctionRef<void()> request) {
  return control_->call(request);
}

mep_result_t World::run_out_of_memory() {
  control_->run_out_of_memory();
  return end_.fail_as_ended();
}

CommMembers CommMembers::of(const membership::View& view, const std::vector<uint32_t>& slots) {
  CommMembers members;
  members.world_epoch = view.epoch;
  for (const uint32_t slot : slots) members.incarnations.push_back(view.incarnation(slot));
  return members;
}

mep_result_t World::begin_client(WorldParticipant* client, uint64_t epoch,
                                 const std::shared_ptr<Window>& window,
                                 const std::vector<uint32_t>& slots, const CommMembers* members) {
  // A joiner that is told of the client is offered its window: so the window comes first.
  if (window != nullptr) windows_.add_own(window, slots);
  bool is_begun = false;
  const bool ran = control_->call([&] {
    const membership::View& view = control_->membership().view();
    for (size_t i = 0; members != nullptr && i < slots.size(); ++i) {
      if (view.incarnation(slots[i]) != members->incarnations[i]) return;
    }
    if (control_->participants().is_refused(client->comm_id())) return;
    is_begun = terminal_result() == MEP_SUCCESS;
    if (is_begun) control_->add_participant(client, epoch);
  });
  if (is_begun) return MEP_SUCCESS;
  if (window != nullptr) windows_.remove_own(window->id());
  if (!ran || terminal_result() != MEP_SUCCESS) return end_.fail_as_ended();
  return fail(MEP_ERR_PEER_FAILED,
              "the membership changed before this rank could begin to make its part of a "
              "communicator");
}

bool World::take_comm_id(uint64_t id) {
  const std::lock_guard lock(comm_ids_mutex_);
  return comm_ids_.insert(id).second;
}

void World::ask_held(WorldParticipant* client, uint64_t channel, uint64_t done,
                     std::shared_ptr<std::atomic<bool>> held) {
  control_->call([&] { control_->closings().ask(client, channel, done, std::move(held)); });
}

void World::remove_client(WorldParticipant* client) {
  control_->call([&] { control_->remove_participant(client); });
}

void World::note_closed(std::vector<membership::ChannelState> channels,
                        const membership::SlotSet& members) {
  control_->post([this, channels = std::move(channels), members] {
    control_->leaving().note_closed(channels, members);
  });
}

bool World::remove_client_if(WorldParticipant* client, FunctionRef<bool()> may_go) {
  bool is_removed = false;
  const bool ran = control_->call([&] {
    if (!may_go()) return;
    control_->remove_participant(client);
    is_removed = true;
  });
  return is_removed || !ran;
}

void World::report_deadline(uint64_t comm, uint64_t channel, uint64_t comm_epoch) {
  control_->post([this, comm, channel, comm_epoch] {
    control_->membership().on_deadline(comm, channel, comm_epoch);
  });
}

void World::request_evict(uint32_t slot) {
  control_->post([this, slot] {
    control_->membership().on_evict(slot, control_->membership().view().incarnation(slot));
  });
}

void World::request_revoke(uint64_t comm) {
  control_->post([this, comm] { control_->membership().on_revoke(comm); });
}

bool World::idle() {
  bool idle = true;
  // Its looks are no calls of another thread.
  const ProgressThread::Pause pause(progress_thread());
  control_->call([&] { idle = control_->participants().quiesced(); });
  return idle;
}

void World::leave(bool orderly, const Deadline& deadline) {
  if (orderly && terminal_result() == MEP_SUCCESS) {
    control_->post([this] { control_->leaving().start(); });
    end_.await_left(deadline);
  }
  // Communicators that are still there have no control thread from here on.
  control_->call([this] { control_->close_world(); });
  control_->stop();
}

mep_result_t World::await_torn_down(const Deadline& deadline) const {
  constexpr timespec kPause{0, 100'000};
  while (peers_.lingering() != 0) {
    if (terminal_result() != MEP_SUCCESS) return fail_as_ended();
    if (deadline.expired()) {
      return fail(MEP_ERR_TIMEOUT,
                  "%u processes that died still hold their GPUs: their kernels may write to this "
                  "rank's; call again",
                  peers_.lingering());
    }
    (void)nanosleep(&kPause, nullptr);
  }
  return MEP_SUCCESS;
}

void World::say_why(mep_result_t result) {
  const auto self = static_cast<int32_t>(self_slot());
  const std::vector<std::byte> words = encode_abort({result, self, self, last_error_text()});
  control_->call([&] { control_->links().tell_all(kAbortFrame, words); });
}

void World::abort(const std::string& reason) {
  control_->call([&] { control_->abort(reason); });
}

}  // namespace mep
