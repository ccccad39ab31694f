#include "core/world/view_change.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/failpoint.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "core/world/frames.hpp"

namespace mep {
namespace {

// Whether the comm's epoch advances when `value` is installed.
bool affects(const membership::Proposal& value, const WorldParticipant& comm) {
  const auto has = [&](uint32_t slot) { return comm.member_slots().has(slot); };
  return std::any_of(value.removed.begin(), value.removed.end(),
                     [&](const auto& removal) { return has(removal.slot); }) ||
         std::any_of(value.added.begin(), value.added.end(),
                     [&](const auto& member) { return has(member.slot); }) ||
         std::any_of(value.settled.begin(), value.settled.end(),
                     [&](const auto& settled) { return settled.comm == comm.comm_id(); }) ||
         std::find(value.revoked.begin(), value.revoked.end(), comm.comm_id()) !=
             value.revoked.end();
}

}  // namespace

void ViewChange::act(const membership::Freeze& action) {
  note_evidence();
  take_what_has_come();
  give_up_the_gone();
  for (const auto& [id, comm] : participants_) comm->stop();
  freezing_epoch_ = action.epoch;
  // Nearly always nobody posts, or a chunk is copied to its end.
  const Deadline limit = Deadline::after_ms(1);
  do {
    check_still();
  } while (is_freezing() && !limit.expired());
}

void ViewChange::check_still() {
  if (!is_freezing()) return;
  for (const auto& [id, comm] : participants_) {
    comm->stop();  // also one that is new
    if (!comm->is_still()) return;
  }
  std::vector<membership::ChannelState> channels;
  for (const auto& [id, comm] : participants_) comm->freeze(&channels);
  const uint64_t epoch = std::exchange(freezing_epoch_, 0);
  quiet_epoch_ = epoch;
  ask_for_quiet();
  times_.frozen_ns = now_ns();
  times_.agreed_ns = 0;
  membership_.on_frozen(epoch, std::move(channels));
}

// Evidence long before a change was of something else.
void ViewChange::note_evidence() {
  constexpr uint64_t kStaleNs = 10'000'000'000;
  const uint64_t now = now_ns();
  if (times_.evidence_ns == 0 || now - times_.evidence_ns > kStaleNs) times_.evidence_ns = now;
}

void ViewChange::note_agreed() {
  if (times_.agreed_ns == 0) times_.agreed_ns = now_ns();
}

// Before a view change looks at what is here: a rank that has died may have given all that others need,
// and it still lies in a socket.
void ViewChange::take_what_has_come() {
  constexpr int kRounds = 64;
  if (!peers_.network().is_open()) return;
  for (int i = 0; i < kRounds && peers_.network().progress(); ++i) {
  }
}

// A thread that posts to one that is gone goes on at once.
void ViewChange::give_up_the_gone() {
  if (!peers_.network().active()) return;
  for (uint32_t slot = 0; slot < peers_.count(); ++slot) {
    const WorldPeer& peer = peers_[slot];
    if (slot == peers_.self_slot() || peer.transport == nullptr ||
        !peers_.is_in(membership_.view(), slot))
      continue;
    if (peer.link == nullptr || membership_.confirmed_dead(slot)) peer.transport->give_up(slot);
  }
}

// From the freeze to the new view.
void ViewChange::ask_for_quiet() {
  if (quiet_epoch_ == 0 || !peers_.network().active()) return;
  for (uint32_t slot = 0; slot < peers_.count(); ++slot) {
    const WorldPeer& peer = peers_[slot];
    if (slot == peers_.self_slot() || peer.transport == nullptr ||
        !peers_.is_in(membership_.view(), slot))
      continue;
    // One that is lost sends none either, and is not waited for.
    (void)peer.transport->quiesced(slot, quiet_epoch_);
  }
}

void ViewChange::act(const membership::CatchUpReceive& action) {
  note_agreed();
  catch_up_items_ = action.items;
  catch_up_plan_ = action.plan;
  catch_up_pending_ = true;
  check_catch_up();
}

void ViewChange::check_catch_up() {
  if (!catch_up_pending_) return;
  for (const membership::CatchUpItem& item : catch_up_items_) {
    const WorldParticipant* comm = participants_.find(item.comm);
    if (comm == nullptr || !comm->is_replicated(item.channel)) continue;
    const auto it = caught_up_.find({item.comm, item.channel});
    if (it == caught_up_.end() || it->second < item.to_seq) return;
  }
  catch_up_pending_ = false;
  membership_.on_caught_up(catch_up_plan_);
}

void ViewChange::act(const membership::CatchUpSend& action) {
  note_agreed();
  MEP_FAILPOINT("catch-up");
  WorldParticipant* comm = participants_.find(action.comm);
  if (comm == nullptr || !comm->is_replicated(action.channel)) return;
  comm->give_catch_up(action.channel, action.from_seq, action.to_seq,
                      [&](uint64_t seq, uint32_t source, std::span<const std::byte> bytes) {
                        links_.send(
                            action.to, kFrameCatchUp,
                            encode_catch_up({action.comm, action.channel, seq, source, bytes}));
                      });
  links_.send(action.to, kFrameCatchUpEnd,
              encode_catch_up_end({action.comm, action.channel, action.to_seq}));
}

bool ViewChange::take_catch_up(const Frame& frame) {
  MEP_FAILPOINT("catch-up receive");
  CatchUpFrame flush;
  if (!decode_catch_up(frame.payload, &flush)) {
    (void)fail(MEP_ERR_DENIED, "a bad flush frame");
    return false;
  }
  WorldParticipant* target = participants_.find(flush.comm);
  if (target != nullptr && membership_.phase() == membership::Phase::kChanging) {
    target->take_catch_up(flush.channel, flush.seq, flush.source, flush.contribution);
  }
  return true;
}

bool ViewChange::take_catch_up_end(const Frame& frame) {
  CatchUpEndFrame end;
  if (!decode_catch_up_end(frame.payload, &end)) {
    (void)fail(MEP_ERR_DENIED, "a bad end of a flush");
    return false;
  }
  uint64_t& up_to = caught_up_[{end.comm, end.channel}];
  up_to = std::max(up_to, end.to_seq);
  check_catch_up();
  return true;
}

// A process that is gone writes no more. One that may still run keeps only the old pages: the windows
// that it could write get new ones, and everybody else must have taken those before this rank agrees. Adapters may have
// more of either under way: their queue pairs end in any case.
void ViewChange::act(const membership::FenceOut& action) {
  MEP_FAILPOINT("fence");
  windows_.fence(action.slot, action.incarnation);
  WorldPeer& peer = peers_[action.slot];
  // Data that a process sent before its end may land after it.
  const bool late = peer.transport != nullptr && !peer.transport->traits().lands_at_once &&
                    peer.identity.incarnation == action.incarnation;
  if ((action.confirmed && !late) || peer.transport == nullptr) {
    membership_.on_fenced(action.slot, action.incarnation);
    return;
  }
  if (peer.transport->fence_out(action.slot) != MEP_SUCCESS) {
    log(LogLevel::kWarn, "cannot fence rank %u out: %s", action.slot, last_error_text());
  }
  Fence fence{action.slot, action.incarnation, {}, Deadline::after_ms(config_.suspect_ms)};
  if (peer.transport->traits().renews_windows) {
    membership::SlotSet unreached;
    windows_.renew(action.slot, joiners_.connected(), &fence.awaited, &unreached);
    unreached.each([this](uint32_t slot) { links_.mark_broken(slot); });
    joiners_.take_over(&fence.awaited);
  }
  fences_.push_back(std::move(fence));
  check_fences();
}

void ViewChange::note_taken(uint32_t slot, uint64_t window, uint32_t generation) {
  for (Fence& fence : fences_) fence.awaited.erase({{slot, window}, generation});
  check_fences();
}

void ViewChange::check_fences() {
  std::vector<Fence> finished;
  std::erase_if(fences_, [&](Fence& fence) {
    std::erase_if(fence.awaited, [this, &fence](const auto& entry) {
      const uint32_t slot = entry.first.first;
      if (peers_[slot].link == nullptr || membership_.confirmed_dead(slot) ||
          membership_.row().suspected.has(slot)) {
        return true;
      }
      // Nobody suspects a joiner: one that stands still is sent away, and may come again.
      if (peers_.is_in(membership_.view(), slot) || !fence.joiners_until.expired()) return false;
      links_.mark_broken(slot);
      return true;
    });
    if (!fence.awaited.empty()) return false;
    finished.push_back(fence);
    return true;
  });
  for (const Fence& fence : finished) membership_.on_fenced(fence.slot, fence.incarnation);
}

void ViewChange::act(const membership::Prepare& action) {
  note_agreed();
  preparing_ = std::make_unique<membership::Prepare>(action);
  check_prepare();
}

void ViewChange::check_prepare() {
  if (preparing_ == nullptr || !drained()) return;
  const membership::Prepare action = std::move(*preparing_);
  preparing_.reset();
  for (const auto& [id, comm] : participants_) {
    if (affects(*action.value, *comm)) comm->prepare();
  }
  membership_.on_prepared(action.token);
  times_.prepared_ns = now_ns();
}

// Whether all has landed here that the members which stay had posted before they were stopped.
bool ViewChange::drained() const {
  if (!peers_.network().active()) return true;
  bool all = true;
  preparing_->value->members.each([&](uint32_t slot) {
    const WorldPeer& peer = peers_[slot];
    if (slot == peers_.self_slot() || peer.transport == nullptr ||
        !peers_.is_in(membership_.view(), slot))
      return;
    if (peer.link == nullptr || membership_.confirmed_dead(slot) ||
        membership_.row().suspected.has(slot)) {
      return;
    }
    all = all && peer.transport->quiesced(slot, quiet_epoch_);
  });
  return all;
}

void ViewChange::drain() {
  ask_for_quiet();  // those again whose queue was full
  check_prepare();
}

void ViewChange::commit() {
  freezing_epoch_ = 0;
  times_.committed_ns = now_ns();
  catch_up_items_.clear();
  catch_up_pending_ = false;
  caught_up_.clear();
  fences_.clear();
  preparing_.reset();
  quiet_epoch_ = 0;
}

void ViewChange::finish(uint64_t world_epoch) {
  times_.installed_ns = now_ns();
  const auto us = [](uint64_t from_ns, uint64_t to_ns) {
    return from_ns == 0 || to_ns < from_ns ? 0ull : (to_ns - from_ns) / 1000ull;
  };
  log(LogLevel::kInfo,
      "view %llu: frozen %llu us after the first evidence, agreed in %llu us, fenced in %llu us, "
      "committed in %llu us, installed in %llu us",
      static_cast<unsigned long long>(world_epoch), us(times_.evidence_ns, times_.frozen_ns),
      us(times_.frozen_ns, times_.agreed_ns), us(times_.agreed_ns, times_.prepared_ns),
      us(times_.prepared_ns, times_.committed_ns), us(times_.committed_ns, times_.installed_ns));
  times_ = {};
}

}  // namespace mep
