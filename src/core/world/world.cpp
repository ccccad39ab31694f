#include "core/world/world.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <new>

#include "base/failpoint.hpp"
#include "base/fork_hold.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "core/world/control_thread.hpp"

namespace mep {
namespace {

constexpr uint64_t kAnswerGraceNs = 60'000'000'000;

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
  return fork_count.load(std::memory_order_relaxed);
}

// --- Opening --------------------------------------------------------------------------------------

World::World(const ResolvedConfig& config, Mesh mesh, TransportSet transports)
    : config_(config),
      self_(std::move(mesh.self)),
      transports_(std::move(transports)),
      peers_(static_cast<size_t>(config.max_size)),
      listener_(std::move(mesh.listener)),
      gate_(std::move(mesh.gate)),
      source_memory_(self_.identity.incarnation),
      fork_generation_(fork_generation()) {
  peers_[self_.identity.slot].identity = self_.identity;
}

mep_result_t World::open(const ResolvedConfig& config, Mesh mesh, TransportSet transports,
                         std::shared_ptr<World>* out, const membership::View* joining) {
  watch_forks();
  std::vector<PeerLink> links = std::move(mesh.peers);
  const std::shared_ptr<World> world(new World(config, std::move(mesh), std::move(transports)));
  MEP_TRY(Window::create(kWorldWindowId, 4096, &world->world_window_));
  doorbell_open(world->doorbell());
  MEP_TRY(world->open_network());
  world->request_bell_ = std::make_unique<RequestBell>(world->doorbell());
  world->decide_wait_policy(links);
  if ((config.flags & MEP_COMM_PROGRESS_THREAD) != 0) {
    world->progress_thread_ =
        std::make_unique<ProgressThread>(world->doorbell(), world->wait_policy_);
  }
  for (PeerLink& link : links) {
    Peer& peer = world->peers_[link.identity.slot];
    peer.identity = link.identity;
    peer.link = std::move(link.link);
    peer.pidfd = std::move(link.pidfd);
    peer.session = link.session;
    MEP_TRY(world->choose_transport(&peer, link.offer));
    log(LogLevel::kInfo, "rank %u is reached by %s", link.identity.slot, peer.transport->name());
  }
  world->entering_ = joining != nullptr;
  world->control_ = std::make_unique<ControlThread>(world.get());
  MEP_TRY(world->control_->start(joining));
  std::vector<uint32_t> everybody;
  for (uint32_t slot = 0; slot < world->max_slots(); ++slot) {
    if (world->peers_[slot].identity.incarnation != 0) everybody.push_back(slot);
  }
  MEP_TRY(world->offer_window(world->world_window_, everybody));
  *out = world;
  return MEP_SUCCESS;
}

mep_result_t World::take_doorbells(const Deadline& deadline, bool is_newcomer) {
  std::vector<uint32_t> members;
  view_snapshot().members.each([&](uint32_t slot) { members.push_back(slot); });
  std::vector<Remote> remotes;
  return receive_windows(
      world_window_, members,
      [&](uint32_t slot) { return is_newcomer && view_snapshot().incarnation(slot) == 0; },
      deadline, &remotes);
}

void World::count_allocation(int change) {
  // Relaxed: a count, looked at when the world is destroyed.
  allocations_.fetch_add(static_cast<uint32_t>(change), std::memory_order_relaxed);
}

World::~World() {
  progress_thread_.reset();
  request_bell_.reset();
  if (control_ != nullptr) control_->stop();
  control_.reset();
  if (!network_.is_open()) return;
  if (world_window_ != nullptr) doorbell_unbind_event(doorbell());
  for (uint32_t slot = 0; slot < max_slots(); ++slot) unbind_event(slot);
}

bool World::forked() const {
  return fork_generation_ != fork_generation();
}

uint32_t World::peer_state(uint32_t slot) const {
  // Relaxed: see Peer.
  return peers_[slot].state.load(std::memory_order_relaxed);
}

const char* World::transport_text(uint32_t slot) const {
  if (slot == self_slot()) return "self";
  const Transport* transport = peers_[slot].transport;
  if (transport == nullptr) return "none";
  const char* text = transport->status(slot).text;
  return text != nullptr ? text : transport->name();
}

// --- Requests -------------------------------------------------------------------------------------

void World::post(std::function<void()> request) {
  control_->post(std::move(request));
}

bool World::call(FunctionRef<void()> request) {
  return control_->call(request);
}

mep_result_t World::fail_as_ended() const {
  const mep_result_t terminal = terminal_result();
  return fail(terminal != MEP_SUCCESS ? terminal : MEP_ERR_ABORTED,
              "the world has ended for this rank");
}

CommBirth CommBirth::of(const membership::View& view, const std::vector<uint32_t>& slots) {
  CommBirth birth;
  birth.world_epoch = view.epoch;
  for (const uint32_t slot : slots) birth.incarnations.push_back(view.incarnation(slot));
  return birth;
}

mep_result_t World::begin_client(WorldClient* client, uint64_t epoch,
                                 const std::shared_ptr<Window>& window,
                                 const std::vector<uint32_t>& slots, const CommBirth* birth) {
  // A newcomer that is told of the client is offered its window: so the window comes first.
  if (window != nullptr) directory_.add_own(window, slots);
  bool is_begun = false;
  const bool ran = control_->call([&] {
    const membership::View& view = control_->membership().view();
    for (size_t i = 0; birth != nullptr && i < slots.size(); ++i) {
      if (view.incarnation(slots[i]) != birth->incarnations[i]) return;
    }
    if (control_->is_refused(client->comm_id())) return;
    is_begun = terminal_result() == MEP_SUCCESS;
    if (is_begun) control_->add_client(client, epoch);
  });
  if (is_begun) return MEP_SUCCESS;
  if (window != nullptr) directory_.remove_own(window->id());
  if (!ran || terminal_result() != MEP_SUCCESS) return fail_as_ended();
  return fail(MEP_ERR_PEER_FAILED,
              "the membership changed before this rank could begin to make its part of a "
              "communicator");
}

void World::ask_held(WorldClient* client, uint64_t channel, uint64_t done,
                     std::shared_ptr<std::atomic<bool>> held) {
  control_->call([&] { control_->ask_held(client, channel, done, std::move(held)); });
}

void World::remove_client(WorldClient* client) {
  control_->call([&] { control_->remove_client(client); });
}

void World::note_closed(std::vector<membership::ChannelState> channels,
                        const membership::SlotSet& members) {
  control_->post([this, channels = std::move(channels), members] {
    control_->note_closed(channels, members);
  });
}

bool World::remove_client_if(WorldClient* client, FunctionRef<bool()> may_go) {
  bool is_removed = false;
  const bool ran = control_->call([&] {
    if (!may_go()) return;
    control_->remove_client(client);
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
  control_->call([&] { idle = control_->quiesced(); });
  return idle;
}

mep_result_t World::recover(const membership::SlotSet& wanted, const Deadline& deadline,
                            Admission* admission) {
  uint64_t seq = 0;
  {
    const std::lock_guard lock(state_mutex_);
    seq = ++recover_calls_;
  }
  const uint64_t deadline_us = deadline.at_ns() / 1000;
  control_->call([&] {
    log(LogLevel::kDebug, "recover %llu: %u slots, %lld ms left",
        static_cast<unsigned long long>(seq), wanted.count(),
        (static_cast<long long>(deadline_us) - static_cast<long long>(now_ns() / 1000)) / 1000);
    control_->membership().on_recover(seq, wanted, deadline_us);
  });
  MEP_FAILPOINT("recover");
  std::unique_lock lock(state_mutex_);
  // Every member answers, or is removed by the same membership: the bound is for its bugs only.
  const Deadline limit = Deadline::at(deadline.at_ns() + kAnswerGraceNs);
  while (recover_answered_ < seq && terminal_result() == MEP_SUCCESS && !limit.expired()) {
    state_changed_.wait_for(lock, std::chrono::milliseconds(limit.left_ms(100)));
  }
  if (recover_answered_ < seq) {
    const mep_result_t terminal = terminal_result();
    if (terminal != MEP_SUCCESS) return fail(terminal, "the world has ended for this rank");
    return fail(MEP_ERR_TIMEOUT, "not all members called this, or they did not answer");
  }
  *admission = admission_;
  return MEP_SUCCESS;
}

mep_result_t World::enter(const Deadline& deadline, Admission* admission) {
  control_->post([this] { control_->say_ready(); });
  std::unique_lock lock(state_mutex_);
  while (!joined_ && terminal_result() == MEP_SUCCESS && !deadline.expired()) {
    state_changed_.wait_for(lock, std::chrono::milliseconds(deadline.left_ms(100)));
  }
  if (joined_) {
    entering_ = false;
    *admission = admission_;
    return MEP_SUCCESS;
  }
  if (terminal_result() != MEP_SUCCESS) {
    return fail(MEP_ERR_BOOTSTRAP,
                "the job ended, or filled this rank's place, before it was "
                "admitted");
  }
  return fail(MEP_ERR_TIMEOUT,
              "rank %u is ready, but no mep_recover_ranks or mep_comm_grow of the "
              "members admitted it",
              self_slot());
}

void World::recover_answered(uint64_t seq, Admission admission, bool joined) {
  const std::lock_guard lock(state_mutex_);
  if (joined) {
    joined_ = true;
    recover_calls_ = seq;
  }
  recover_answered_ = std::max(recover_answered_, seq);
  admission_ = std::move(admission);
  state_changed_.notify_all();
}

void World::leave(bool orderly, const Deadline& deadline) {
  if (orderly && terminal_result() == MEP_SUCCESS) {
    control_->post([this] { control_->start_leaving(); });
    std::unique_lock lock(state_mutex_);
    while (!left_ && !deadline.expired() && terminal_result() == MEP_SUCCESS) {
      state_changed_.wait_for(lock, std::chrono::milliseconds(deadline.left_ms(100)));
    }
  }
  // Communicators that are still there have no control thread from here on.
  control_->call([this] { control_->close_world(); });
  control_->stop();
}

void World::leave_finished() {
  const std::lock_guard lock(state_mutex_);
  left_ = true;
  state_changed_.notify_all();
}

void World::abort() {
  control_->call([this] { control_->abort(); });
}

membership::View World::view_snapshot() const {
  return control_->view_snapshot();
}

void World::set_view_callback(mep_view_callback_t callback, void* user) {
  const std::lock_guard lock(state_mutex_);
  view_callback_ = callback;
  view_callback_user_ = user;
}

ViewChangeTimes World::last_view_change() const {
  const std::lock_guard lock(state_mutex_);
  return last_view_change_;
}

void World::view_changed(const ViewChangeTimes& times, int32_t live) {
  const std::lock_guard lock(state_mutex_);
  last_view_change_ = times;
  if (view_callback_ != nullptr) view_callback_(view_callback_user_, times.world_epoch, live);
}

}  // namespace mep
