#include "core/world/control_thread.hpp"

#include <pthread.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/clock.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/status.hpp"

namespace mep {
namespace {

constexpr int kMaxWaitMs = 1000;

}  // namespace

ControlThread::ControlThread(const Parts& parts)
    : config_(parts.config),
      peers_(parts.peers),
      view_(parts.view),
      end_(parts.end),
      admissions_(parts.admissions),
      windows_(parts.windows),
      links_(parts.peers),
      metrics_(parts.config) {}

ControlThread::~ControlThread() {
  stop();
}

mep_result_t ControlThread::start(const membership::View* joining, UniqueFd listener,
                                  std::shared_ptr<Gate> gate) {
  MEP_TRY(links_.open());
  make_membership(joining);
  joiners_.emplace(peers_, *membership_, links_, participants_, windows_, admissions_, view_);
  change_.emplace(config_, peers_, *membership_, links_, participants_, *joiners_, windows_);
  leaving_.emplace(peers_, *membership_, links_, participants_);
  closings_.emplace(peers_, *membership_, links_, participants_, windows_);
  for (uint32_t slot = 0; slot < peers_.count(); ++slot) {
    MEP_TRY(links_.watch_peer(slot));
    change_->dying().watch(slot);
  }
  MEP_TRY(joiners_->open_door(config_, std::move(listener), std::move(gate)));
  links_.watch_transports();
  view_.publish(membership_->view_ptr());
  if (!config_.witness.empty()) {
    MEP_TRY(Witness::open(
        config_.witness,
        [this](uint64_t epoch, uint64_t digest) {
          post([this, epoch, digest] { membership_->on_witness(epoch, digest); });
        },
        &witness_));
  }

  metrics_.open(peers_.self_slot());
  requests_.open();
  const mep_result_t started = start_library_thread(
      "the control thread", [this] { loop(); }, &thread_);
  if (started != MEP_SUCCESS) requests_.close();
  return started;
}

void ControlThread::make_membership(const membership::View* joining) {
  membership::Start start;
  start.slot = peers_.self_slot();
  start.incarnation = peers_.identity().incarnation;
  start.max_slots = peers_.count();
  start.now_us = now_ns() / 1000;
  start.view.epoch = 1;
  for (const WorldPeer& peer : peers_) {
    if (joining == nullptr && peer.identity.incarnation != 0) {
      start.view.put({peer.identity.slot, peer.identity.incarnation, peer.identity.host});
      const bool is_sibling = peer.identity.process_token == peers_.identity().process_token;
      if (is_sibling) start.siblings.add(peer.identity.slot);
    }
  }
  if (joining != nullptr) {
    start.view = *joining;
    start.joining = true;
  }
  start.config = membership::config_for(config_.heartbeat_ms * uint64_t{1000},
                                        config_.suspect_ms * uint64_t{1000});
  start.config.quorum = static_cast<membership::QuorumPolicy>(config_.quorum);
  membership_ = std::make_unique<membership::Membership>(std::move(start));
}

void ControlThread::stop() {
  if (!thread_.joinable()) return;
  // Release: what this thread posted before is run by the round that ends the loop.
  stopping_.store(true, std::memory_order_release);
  links_.ring();
  thread_.join();
  witness_.reset();
}

bool ControlThread::call(FunctionRef<void()> request) {
  return requests_.call(request, [this] { links_.ring(); });
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
  try {
    first_round();
    for (bool is_last = false; !is_last;) {
      // Acquire: see stop(). One more round, for what was posted before.
      is_last = stopping_.load(std::memory_order_acquire);
      round();
    }
  } catch (const CannotFence&) {
    end_early(MEP_ERR_SYSTEM);
  } catch (const std::bad_alloc&) {
    end_early(MEP_ERR_NO_MEMORY);
  }
  if (metrics_.is_wanted()) metrics_.write(participants_, now_ns());
  // Until here no caller goes on, so all participants are there.
  requests_.close();
}

void ControlThread::first_round() {
  carry_out();
  // Bytes that the links already hold raise no event.
  for (uint32_t slot = 0; slot < peers_.count(); ++slot) read_link(slot);
}

void ControlThread::round() {
  // Acquire: see run_out_of_memory().
  if (is_out_of_memory_.load(std::memory_order_acquire)) throw std::bad_alloc();
  const bool at_once = std::exchange(again_, false) || stopping_.load(std::memory_order_relaxed);
  links_.wait(
      at_once ? 0 : wait_ms(), [this](uint32_t slot) { read_link(slot); },
      [this](uint32_t slot) { process_ended(slot, true); });
  change_->dying().check(*membership_, [this](uint32_t slot) { process_ended(slot, false); });
  requests_.run();
  tick();
}

void ControlThread::run_out_of_memory() {
  // At once: no operation of this rank goes on.
  end_.set(MEP_ERR_NO_MEMORY);
  // Release: the thread sees the result.
  is_out_of_memory_.store(true, std::memory_order_release);
  links_.ring();
}

// Nothing in here may throw.
void ControlThread::end_early(mep_result_t result) {
  // No thread of this rank completes anything more; then the others are told.
  end_world(result);
  (void)end_.fail_as_ended();
  log(LogLevel::kError, "%s", last_error_text());
  try {
    membership_->on_exhausted();
    for (const membership::Action& action : membership_->take_actions()) {
      if (const auto* push = std::get_if<membership::PushRow>(&action)) act(*push);
    }
    links_.flush();
  } catch (const std::bad_alloc&) {
    // The end of the links says it, later.
  }
  joiners_->close_door();
  links_.end_all();
}

void ControlThread::tick() {
  serve_transports();
  change_->check_still();
  const uint64_t now = now_ns();
  note_tick(now);
  membership_->tick(now / 1000);
  carry_out();
  joiners_->serve_door();
  joiners_->connect([this](uint32_t slot) { drop_link(slot); },
                    [this](uint32_t slot) { read_link(slot); });
  const uint32_t missed = joiners_->find_missed_rank();
  if (missed != membership::kNoSlot && end_.result() == MEP_SUCCESS) {
    log(LogLevel::kInfo, "rank %u has no link to this joiner, which asks again", missed);
    end_world(WorldEnd::kMissedRank);
  }
  carry_out();
  if (leaving_->is_due()) {
    membership_->on_leave();
    carry_out();
    links_.flush();
    end_.note_left();
  }
  leaving_->answer_leaving();
  closings_->check();
  closings_->answer();
  leaving_->answer_closed();
  change_->check_fences();
  drop_broken_links();
  links_.flush();
  if (metrics_.is_wanted() && metrics_.is_due(now_ns())) metrics_.write(participants_, now_ns());
}

int ControlThread::wait_ms() const {
  // Somebody waits for a user's thread of this rank to pass an operation: look again soon.
  if (leaving_->is_asked() || closings_->is_asked() || joiners_->is_knocked() ||
      change_->is_freezing() || change_->is_draining() || change_->dying().any()) {
    return 1;
  }
  const int cap_ms = joiners_->wait_ms(kMaxWaitMs);
  const uint64_t now = now_ns() / 1000;
  const uint64_t next = membership_->next_tick_us();
  if (next <= now) return 0;
  return static_cast<int>(
      std::min<uint64_t>((next - now + 999) / 1000, static_cast<uint64_t>(cap_ms)));
}

void ControlThread::add_participant(WorldParticipant* participant, uint64_t epoch) {
  participants_.add(participant);
  membership_->on_comm_created(participant->comm_id(),
                               joiners_->latest_epoch(participant->comm_id(), epoch),
                               participant->member_slots());
  // It came too late for the tables of the change under way: it stands still until that is over.
  if (membership_->phase() == membership::Phase::kChanging) participant->stop();
  carry_out();
}

void ControlThread::remove_participant(WorldParticipant* participant) {
  participants_.remove(participant);
  closings_->forget(participant);
  std::vector<membership::ChannelState> closed;
  participant->describe(&closed);
  // Nobody lacks anything of these, or nothing has succeeded on them (Comm::close_after_changes).
  std::erase_if(closed, [participant](const membership::ChannelState& state) {
    return state.comm == participant->comm_id() && participant->is_replicated(state.channel);
  });
  leaving_->note_closed(std::move(closed), participant->member_slots());
  membership_->on_comm_destroyed(participant->comm_id());
  carry_out();
}

void ControlThread::abort(const std::string& reason) {
  // First nobody posts any more: the others take the statement for this rank's end.
  end_world(MEP_ERR_ABORTED);
  membership_->on_abort(reason);
  carry_out();
  links_.flush();
}

void ControlThread::end_world(mep_result_t result) {
  end_.set(result);
  // Nothing that a peer still owes matters any more, and no thread may wait for it.
  for (const WorldPeer& peer : peers_) {
    if (peer.transport != nullptr) peer.transport->give_up(peer.identity.slot);
  }
  wake_all();
}

void ControlThread::close_world() {
  end_.set(MEP_ERR_ABORTED);
  wake_all();
}

void ControlThread::wake_all() {
  for (const auto& [id, comm] : participants_) comm->terminate();
  windows_.wake();
}

}  // namespace mep
