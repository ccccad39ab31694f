// The order of a step, and what keeps a view change from waiting for ever: rounds that drop
// suspicions which left no quorum, eviction of who does not answer, and giving up.
#include <algorithm>

#include "base/hash.hpp"
#include "core/membership/membership.hpp"

namespace mep::membership {

void Membership::step() {
  // Each pass acts on what the one before has changed; the bound only guards against a fault here,
  // the next event goes on where it stopped.
  for (int pass = 0; pass < 16 && active(); ++pass) {
    again_ = false;
    look_for_committed();
    if (!active()) return;
    refresh_ready();
    gather_evidence();
    if (phase_ == Phase::kJoining) {
      try_accept();
      watch_join();
    } else {
      if (phase_ == Phase::kStable && change_wanted()) {
        phase_ = Phase::kFreezing;
        progress_us_ = now_us_;
        give(Freeze{view_->epoch});
      }
      if (phase_ == Phase::kChanging) {
        try_commit();
        if (phase_ == Phase::kChanging) {
          try_offer();
          watch_donors();
          try_accept();
          serve_catch_up();
        }
      }
    }
    if (!again_) break;
  }
}

void Membership::on_frozen(uint64_t epoch, std::vector<ChannelState> channels) {
  if (phase_ != Phase::kFreezing || epoch != view_->epoch) return;
  phase_ = Phase::kChanging;
  row_.frozen = true;
  // In order, so that all members find a channel fast, and each once.
  std::sort(channels.begin(), channels.end(),
            [](const ChannelState& left, const ChannelState& right) {
              return ChannelKey{left.comm, left.channel} < ChannelKey{right.comm, right.channel};
            });
  row_.channels.clear();
  for (const ChannelState& state : channels) {
    ChannelState* last = row_.channels.empty() ? nullptr : &row_.channels.back();
    if (last != nullptr && last->comm == state.comm && last->channel == state.channel) {
      last->done = std::max(last->done, state.done);
      last->entered = std::max(last->entered, state.entered);
    } else {
      row_.channels.push_back(state);
    }
  }
  row_.comms.clear();
  for (const auto& [comm, state] : comms_) row_.comms.push_back({comm, state.epoch});
  progress_us_ = now_us_;
  touch();
}

// Drops suspicions that are mere opinion. A member that is fenced out stays suspected: it cannot be reached any more.
// Accepted values stay, so whatever may have been committed is found again.
void Membership::new_round(uint32_t round) {
  row_.round = round;
  SlotSet kept = confirmed_;
  view_->members.each([&](uint32_t slot) {
    if (slot != slot_ && peers_[slot].fence_asked) kept.add(slot);
  });
  row_.suspected = kept & view_->members;
  new_rows_ = view_->members;
  stuck_since_us_ = 0;
  touch();
  again_ = true;
}

void Membership::watch_quorum() {
  if (phase_ == Phase::kJoining) return;
  const SlotSet unreachable = row_.link_down | row_.silent;
  const SlotSet reachable = view_->members - unreachable - confirmed_;
  const SlotSet trusted = reachable - row_.suspected;
  const bool out = row_.suspected.has(slot_);
  // The witness holds another half's decision, or one of this half that may yet be found again.
  const bool refused = quorum(reachable) == Quorum::kWitness && witness_digest_ != 0 &&
                       witness_digest_ != witness_asked_;
  if (quorum(reachable) != Quorum::kNo && !out && !refused) {
    no_quorum_since_us_ = 0;
  } else if (no_quorum_since_us_ == 0) {
    no_quorum_since_us_ = now_us_;
  } else if (now_us_ >= no_quorum_since_us_ + config_.no_quorum_after_us) {
    give_up();
    return;
  }
  if (quorum(trusted) != Quorum::kNo || quorum(reachable) == Quorum::kNo) {
    stuck_since_us_ = 0;
  } else if (stuck_since_us_ == 0) {
    stuck_since_us_ = now_us_;
  } else if (now_us_ >= stuck_since_us_ + config_.stuck_round_us) {
    new_round(row_.round + 1);
  }
}

// Suspicions and rounds are no progress: they may come and go without end while links flap.
uint64_t Membership::progress_mark() const {
  Hash mark(static_cast<uint64_t>(phase_));
  mark.word(view_->epoch);
  uint64_t frozen = 0;
  uint64_t accepted = 0;
  uint64_t offers = 0;
  uint64_t flushing = 0;
  live().each([&](uint32_t slot) {
    const Row* row = usable_row(slot);
    if (row == nullptr) return;
    frozen += row->frozen ? 1 : 0;
    accepted += row->accepted.value != nullptr ? 1u + row->accepted.ballot.suspected : 0;
    offers += row->offer.value != nullptr ? 1u + row->offer.ballot.suspected : 0;
    flushing += row->catch_up.size();
  });
  mark.word(frozen);
  mark.word(accepted);
  mark.word(offers);
  mark.word(flushing);
  return mark.value();
}

void Membership::watch_progress() {
  if (phase_ != Phase::kFreezing && phase_ != Phase::kChanging) return;
  const uint64_t mark = progress_mark();
  if (mark != progress_mark_) {
    progress_mark_ = mark;
    progress_us_ = now_us_;
    return;
  }
  const uint64_t stalled_us = now_us_ - progress_us_;
  const SlotSet present = live();
  const bool next_stall = now_us_ >= stall_acted_us_ + config_.stalled_change_us;
  if (phase_ == Phase::kFreezing) {
    // Its own channels do not freeze: this rank is what holds the others up.
    if (2 * stalled_us >= config_.stalled_change_us) give_up();
  } else if (stalled_us >= 4 * config_.stalled_change_us) {
    give_up();
  } else if (present.lowest() == slot_) {
    if (2 * stalled_us >= config_.stalled_change_us) suspect_stalled_joiners();
    if (stalled_us >= config_.stalled_change_us && next_stall) suspect_stalled(present);
  } else if (stalled_us >= 2 * config_.stalled_change_us && next_stall && present.has(slot_)) {
    stall_acted_us_ = now_us_;
    SlotSet rest = present;
    rest.remove(present.lowest());
    if (quorum(rest) != Quorum::kNo) suspect(present.lowest(), RemovalReason::kStalled);
  }
}

void Membership::suspect_stalled_joiners() {
  if (row_.offer.value == nullptr) return;
  for (const Member& member : row_.offer.value->added) {
    const Row* row = joiner_row(member.slot, member.incarnation);
    if (row == nullptr || row->accepted.value == nullptr ||
        row->accepted.ballot != row_.offer.ballot)
      suspect(member.slot, RemovalReason::kStalled);
  }
}

// The lead takes those for gone who have not done their present part, if a quorum has.
void Membership::suspect_stalled(const SlotSet& live) {
  stall_acted_us_ = now_us_;
  SlotSet behind;
  const BallotProposal& offer = row_.offer;
  live.each([&](uint32_t slot) {
    if (slot == slot_) return;
    const Row* row = usable_row(slot);
    bool done = row != nullptr && row->frozen && row->round == row_.round &&
                row->suspected == row_.suspected;
    if (done && offer.value != nullptr)
      done = row->accepted.value != nullptr && row->accepted.ballot == offer.ballot;
    if (!done) behind.add(slot);
  });
  if (quorum(live - behind) == Quorum::kNo) return;
  behind.each([&](uint32_t slot) { suspect(slot, RemovalReason::kStalled); });
}

void Membership::give_up() {
  row_.standing = Standing::kGaveUp;
  touch();
  publish({});
  phase_ = Phase::kNoQuorum;
  give(NoQuorum{});
}

void Membership::on_leave() {
  if (!active()) return;
  row_.standing = Standing::kLeft;
  touch();
  publish({});
  phase_ = Phase::kLeft;
}

void Membership::on_abort(const std::string& reason) {
  if (!active()) return;
  row_.standing = Standing::kGaveUp;
  if (!reason.empty()) row_.reasons.push_back({slot_, reason.substr(0, kMaxReasonBytes)});
  touch();
  publish({});
  phase_ = Phase::kLeft;
}

void Membership::on_exhausted() {
  if (!active()) return;
  phase_ = Phase::kLeft;
  actions_.clear();
  if (published_.row == nullptr) return;  // nobody has heard of this rank
  Row last = *published_.row;
  last.standing = Standing::kGaveUp;
  last.version = row_.version + 1;
  give(PushRow{std::make_shared<const Row>(std::move(last)), audience()});
}

}  // namespace mep::membership
