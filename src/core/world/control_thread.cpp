#include "core/world/control_thread.hpp"

#include <pthread.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/failpoint.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "base/system_error.hpp"

namespace mep {
namespace {

constexpr int kMaxWaitMs = 1000;
// More than the last row and the frames that carry it take; above what malloc keeps for itself when it
// is freed.
constexpr size_t kReserveBytes = size_t{1} << 20;

// EBADF is a descriptor that could not be made; the limit of watches is a limit of memory, too.
mep_result_t fail_for_watch() {
  if (errno == EBADF || errno == EMFILE || errno == ENFILE) {
    return fail(MEP_ERR_NO_MEMORY,
                "no descriptors are left for the control thread; raise ulimit -n");
  }
  return fail(result_of_errno(errno), "the control thread cannot watch its descriptors: %m");
}

uint64_t pack(uint32_t source, uint32_t slot) {
  return uint64_t{source} << 32 | slot;
}

}  // namespace

ControlThread::ControlThread(const Parts& parts, UniqueFd listener, std::shared_ptr<Gate> gate)
    : config_(parts.config),
      peers_(parts.peers),
      view_(parts.view),
      end_(parts.end),
      admissions_(parts.admissions),
      windows_(parts.windows),
      listener_(std::move(listener)),
      gate_(std::move(gate)) {}

ControlThread::~ControlThread() {
  stop();
}

mep_result_t ControlThread::start(const membership::View* joining) {
  reserve_ = std::make_unique<std::byte[]>(kReserveBytes);
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return fail_call("the control thread", "epoll_create1", errno);
  MEP_TRY(open_eventfd("the control thread", 0, &request_event_));
  membership::Start start;
  start.slot = peers_.self_slot();
  start.incarnation = peers_.identity().incarnation;
  start.host = peers_.identity().host;
  start.max_slots = peers_.count();
  start.now_us = now_ns() / 1000;
  start.view.epoch = 1;
  bool watched = watch(request_event_.get(), Source::kRequests, 0, EPOLLIN);
  for (uint32_t slot = 0; slot < peers_.count(); ++slot) {
    const WorldPeer& peer = peers_[slot];
    if (peer.identity.incarnation == 0) continue;
    if (joining == nullptr) {
      start.view.put({slot, peer.identity.incarnation, peer.identity.host});
    }
    if (peer.link) watched = watched && watch(peer.link->fd(), Source::kLink, slot, EPOLLIN);
    if (peer.pidfd.valid()) {
      watched = watched && watch(peer.pidfd.get(), Source::kProcess, slot, EPOLLIN);
    }
  }
  if (joining != nullptr) {
    start.view = *joining;
    start.joining = true;
  }
  if (listener_.valid()) {
    join_listener_ = std::make_unique<JoinListener>(listener_.get(), config_, peers_.self(), gate_);
    watched = watched && watch(join_listener_->fd(), Source::kJoinListener, 0, EPOLLIN);
  }
  if (!watched) return fail_for_watch();
  watch_transports();
  start.config = membership::config_for(config_.heartbeat_ms * uint64_t{1000},
                                        config_.suspect_ms * uint64_t{1000});
  start.config.quorum = static_cast<membership::QuorumPolicy>(config_.quorum);
  membership_ = std::make_unique<membership::Membership>(std::move(start));
  publish_view();
  if (!config_.witness.empty()) {
    MEP_TRY(Witness::open(
        config_.witness,
        [this](uint64_t epoch, uint64_t digest) {
          post([this, epoch, digest] { membership_->on_witness(epoch, digest); });
        },
        &witness_));
  }

  requests_.open();
  const mep_result_t started = start_library_thread(
      "the control thread", [this] { loop(); }, &thread_);
  if (started != MEP_SUCCESS) requests_.close();
  return started;
}

void ControlThread::stop() {
  if (!thread_.joinable()) return;
  // Release: what this thread posted before is run by the round that ends the loop.
  stopping_.store(true, std::memory_order_release);
  ring();
  thread_.join();
  witness_.reset();
}

void ControlThread::ring() {
  const uint64_t one = 1;
  // Cannot fail in a way that matters: the counter is full only if it is readable already.
  (void)!write(request_event_.get(), &one, sizeof one);
}

void ControlThread::post(std::function<void()> request) {
  requests_.post(std::move(request), [this] { ring(); });
}

bool ControlThread::call(FunctionRef<void()> request) {
  return requests_.call(request, [this] { ring(); });
}

bool ControlThread::call_or_throw(FunctionRef<void()> request) {
  bool threw = false;
  const bool ran = call([&] {
    try {
      request();
    } catch (const std::bad_alloc&) {
      threw = true;
    }
  });
  if (threw) throw std::bad_alloc();
  return ran;
}

void ControlThread::loop() {
  pthread_setname_np(pthread_self(), "mep-control");
  set_log_rank(static_cast<int>(peers_.self_slot()));
  bool is_first = true;
  bool is_last = false;
  while (!is_last) {
    // Acquire: see stop(). One more round, for what was posted before.
    is_last = stopping_.load(std::memory_order_acquire);
    try {
      if (std::exchange(is_first, false)) first_round();
      round();
    } catch (const std::bad_alloc&) {
      run_out_of_memory();
    }
  }
  requests_.close();
}

void ControlThread::first_round() {
  carry_out();
  // Bytes that the links already hold raise no event.
  for (uint32_t slot = 0; slot < peers_.count(); ++slot) read_link(slot);
}

void ControlThread::round() {
  std::array<epoll_event, 64> events;
  const bool at_once = std::exchange(again_, false) || stopping_.load(std::memory_order_relaxed);
  const int wait = at_once ? 0 : wait_ms();
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait);
  for (int i = 0; i < count; ++i) {
    const uint64_t data = events[static_cast<size_t>(i)].data.u64;
    handle(static_cast<Source>(data >> 32), static_cast<uint32_t>(data),
           events[static_cast<size_t>(i)].events);
  }
  std::exchange(waiting_links_, {}).each([this](uint32_t slot) { read_link(slot); });
  run_requests();
  tick();
}

// Nothing in here may throw.
void ControlThread::run_out_of_memory() {
  again_ = true;
  if (exhausted_) return;
  exhausted_ = true;
  reserve_.reset();
  log(LogLevel::kError, "out of memory: this rank ends its part of the world");
  // No thread of this rank completes anything more; then the others are told.
  end_world(MEP_ERR_NO_MEMORY);
  try {
    say_last_words();
  } catch (const std::bad_alloc&) {
    // The end of the links says it, later.
  }
  join_listener_.reset();
  arriving_joiners_.clear();
  leaving_peers_.clear();
  preparing_.reset();
  waiting_links_ = {};
  for (WorldPeer& peer : peers_) {
    if (peer.pidfd.valid()) unwatch(peer.pidfd.get());
    if (peer.link == nullptr) continue;
    unwatch(peer.link->fd());
    peer.link->shutdown();
    peer.link = nullptr;
  }
}

void ControlThread::say_last_words() {
  membership_->on_exhausted();
  for (const membership::Action& action : membership_->take_actions()) {
    if (const auto* push = std::get_if<membership::PushRow>(&action)) act(*push);
  }
  flush_links();
}

bool ControlThread::watch(int fd, Source source, uint32_t slot, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = pack(static_cast<uint32_t>(source), slot);
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void ControlThread::unwatch(int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void ControlThread::handle(Source source, uint32_t slot, uint32_t events) {
  switch (source) {
    case Source::kRequests: {
      uint64_t count = 0;
      (void)!read(request_event_.get(), &count, sizeof count);
      return;
    }
    case Source::kLink:
      if ((events & EPOLLOUT) != 0) flush_links();
      if ((events & ~uint32_t{EPOLLOUT}) != 0) read_link(slot);
      return;
    case Source::kProcess:
      process_ended(slot);
      return;
    case Source::kJoinListener:
    case Source::kTransport:
      return;  // served in every round
  }
}

void ControlThread::run_requests() {
  requests_.run([this] { run_out_of_memory(); });
}

void ControlThread::tick() {
  serve_transports();
  if (exhausted_) return;
  membership_->tick(now_ns() / 1000);
  carry_out();
  serve_join_listener();
  advance_joiners();
  look_for_missed_members();
  carry_out();
  check_leaving();
  answer_leaving();
  check_closings();
  answer_closings();
  answer_closed();
  if (!fences_.empty()) check_fences();
  drop_broken_links();
  flush_links();
}

int ControlThread::wait_ms() const {
  if (exhausted_) return kMaxWaitMs;
  if (!waiting_links_.empty()) return 1;
  // Somebody waits for a user's thread of this rank to pass an operation: look again soon.
  if (!leaving_peers_.empty() || !closing_peers_.empty() || !arriving_joiners_.empty() ||
      preparing_ != nullptr)
    return 1;
  const int cap_ms = join_listener_ != nullptr ? join_listener_->wait_ms(kMaxWaitMs) : kMaxWaitMs;
  const uint64_t now = now_ns() / 1000;
  const uint64_t next = membership_->next_tick_us();
  if (next <= now) return 0;
  return static_cast<int>(
      std::min<uint64_t>((next - now + 999) / 1000, static_cast<uint64_t>(cap_ms)));
}

void ControlThread::add_client(WorldParticipant* client, uint64_t epoch) {
  clients_[client->comm_id()] = client;
  const auto told = told_epochs_.find(client->comm_id());
  if (told != told_epochs_.end() && membership_->phase() == membership::Phase::kJoining) {
    epoch = std::max(epoch, told->second);
  }
  membership_->on_comm_created(client->comm_id(), epoch, client->member_slots());
  // It came too late for the tables of the change under way: it stands still until that is over.
  if (membership_->phase() == membership::Phase::kChanging) {
    std::vector<membership::ChannelState> unused;
    client->freeze(&unused);
  }
  carry_out();
}

void ControlThread::remove_client(WorldParticipant* client) {
  clients_.erase(client->comm_id());
  std::erase_if(closings_, [client](const Closing& each) { return each.client == client; });
  std::vector<membership::ChannelState> closed;
  client->describe(&closed);
  // Nobody lacks anything of these, or nothing has succeeded on them (Comm::close_after_changes).
  std::erase_if(closed, [client](const membership::ChannelState& state) {
    return state.comm == client->comm_id() && client->is_replicated(state.channel);
  });
  note_closed(std::move(closed), client->member_slots());
  membership_->on_comm_destroyed(client->comm_id());
  carry_out();
}

void ControlThread::publish_view() {
  view_.publish(membership_->view_ptr());
}

WorldParticipant* ControlThread::client(uint64_t comm) const {
  const auto it = clients_.find(comm);
  return it == clients_.end() ? nullptr : it->second;
}

// --- Leaving --------------------------------------------------------------------------------------

// Says what this rank has completed and asks everybody whether they hold it. Only then is LEFT said: so
// no operation succeeds here and fails elsewhere because this rank has gone.
void ControlThread::start_leaving() {
  if (leave_ != Leave::kNo) return;
  leave_ = Leave::kAsking;
  MEP_FAILPOINT("leave");
  std::vector<membership::ChannelState> done;
  closed_.append_to(&done);
  for (const auto& [id, client] : clients_) client->describe(&done);
  const std::vector<std::byte> payload = encode_leaving(done);
  leave_awaited_ = membership_->view().members;
  leave_awaited_.remove(peers_.self_slot());
  leave_awaited_.each([&](uint32_t slot) { send(slot, kFrameLeaving, payload); });
}

void ControlThread::abort(const std::string& reason) {
  // First nobody posts any more: the others take the statement for this rank's end.
  end_world(MEP_ERR_ABORTED);
  membership_->on_abort(reason);
  carry_out();
  flush_links();
}

void ControlThread::check_leaving() {
  if (leave_ != Leave::kAsking) return;
  leave_awaited_ &= membership_->view().members;
  membership::SlotSet lost;
  membership::SlotSet others;
  membership_->view().members.each([&](uint32_t slot) {
    if (slot == peers_.self_slot() || membership_->stated_its_end(slot)) return;
    const bool is_lost = peers_[slot].link == nullptr || membership_->confirmed_dead(slot);
    (is_lost ? lost : others).add(slot);
  });
  leave_awaited_ &= others;
  if (!leave_awaited_.empty()) return;
  // Those that go on may need this rank, as a witness or for the quorum, until the lost ones are out.
  if (!lost.empty() && !others.empty()) return;
  leave_ = Leave::kLeft;
  membership_->on_leave();
  carry_out();
  flush_links();
  end_.note_left();
}

void ControlThread::answer_leaving() {
  std::erase_if(leaving_peers_, [this](LeavingPeer& peer) {
    drop_held(&peer.done);
    if (!peer.done.empty()) return false;
    send(peer.slot, kFrameLeavingHeld, {});
    return true;
  });
}

bool ControlThread::has_left() const {
  return leave_ == Leave::kLeft;
}

}  // namespace mep
