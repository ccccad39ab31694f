// The life of a comm: how it is made while the membership may change, and how it is closed.
//
// A comm is made of members as they were at one moment, the same for all that make it: its birth. The
// first step puts it under the world's view changes, in the same breath in which the control thread
// compares that birth with the view: if a member of it has gone, the making has failed, and else no
// change can pass it by. So all that make it are in its first epoch or see the same change.
#include <algorithm>

#include "base/hash.hpp"
#include "base/status.hpp"
#include "base/test_delay.hpp"
#include "core/comm/comm.hpp"

namespace mep {
namespace {

// Beyond all that membership may take; what is waited for so long is a bug.
constexpr uint64_t kChangeGraceMs = 60'000;
// How long the others may take to say that they hold what was done here, before a view change settles it.
constexpr uint64_t kAskMs = 1'000;

}  // namespace

// --- Making it ------------------------------------------------------------------------------------

// Odd: never the id of the world's window.
uint64_t Comm::id_of(const std::string& name) {
  Hash hash;
  hash.bytes(name.data(), name.size());
  return (hash.value() & ~kSpanning) | 1;
}

uint64_t Comm::child_id(uint64_t parent, uint32_t number, int32_t color) {
  Hash hash(parent);
  hash.word(number);
  hash.word(static_cast<uint64_t>(color));
  return (hash.value() & ~kSpanning) | 1;
}

uint64_t Comm::spanning_id(const std::string& name, uint64_t world_epoch) {
  Hash hash(world_epoch);
  hash.bytes(name.data(), name.size());
  return hash.value() | kSpanning | 1;
}

CommBirth Comm::birth_of(const std::vector<uint32_t>& slots) const {
  CommBirth birth;
  birth.world_epoch = adopted_->world_epoch;
  for (const uint32_t slot : slots) {
    const auto it = std::find(slots_.begin(), slots_.end(), slot);
    birth.incarnations.push_back(
        it == slots_.end() ? 0 : adopted_->incarnations[static_cast<size_t>(it - slots_.begin())]);
  }
  return birth;
}

std::shared_ptr<const CommView> Comm::first_view(const CommBirth& birth, uint64_t epoch) const {
  auto view = std::make_shared<CommView>();
  view->epoch = epoch;
  view->world_epoch = birth.world_epoch;
  view->incarnations = birth.incarnations;
  view->live_bits.assign((slots_.size() + 63) / 64, 0);
  view->left_bits.assign((slots_.size() + 63) / 64, 0);
  for (uint32_t rank = 0; rank < slots_.size(); ++rank) {
    if (birth.incarnations[rank] == 0) continue;
    view->live.push_back(rank);
    view->live_bits[rank / 64] |= uint64_t{1} << (rank % 64);
  }
  return view;
}

mep_result_t Comm::begin(uint64_t epoch, uint64_t next_seq, const CommBirth* birth) {
  MEP_TEST_DELAY_POINT("comm begin");
  const CommBirth given =
      birth != nullptr ? *birth : CommBirth::of(world_->view_snapshot(), slots_);
  view_ = first_view(given, epoch);
  adopted_ = view_;
  seq_ = next_seq - 1;
  // Relaxed: the control thread does not know this comm yet.
  adopted_epoch_.store(epoch, std::memory_order_relaxed);
  channel_.restart(epoch, seq_);
  // Until finish(): memory of members that go must not be unmapped under this thread.
  in_call_.store(1, std::memory_order_relaxed);
  const size_t bytes = Cells::window_bytes(size()) + Bulk::window_bytes(size());
  const mep_result_t created = Window::create(id_, bytes, &window_);
  const std::string text = created == MEP_SUCCESS ? "" : last_error_text();
  // Without a window too: by its channel the others are told that this rank could not make its part.
  MEP_TRY(world_->begin_client(this, epoch, window_, slots_, birth));
  opened_ = true;
  MEP_TEST_DELAY_POINT("comm offered");
  if (created != MEP_SUCCESS) return fail(created, "%s", text.c_str());
  return world_->send_windows(window_, slots_);
}

mep_result_t Comm::finish(const Deadline& deadline) {
  MEP_TEST_DELAY_POINT("comm finish");
  // A newcomer that is not in the view yet takes what there is: it begins with the view that lets it in.
  const bool entering = world_->entering();
  const auto is_absent = [&](uint32_t slot) {
    if (entering) return world_->view_snapshot().incarnation(slot) == 0;
    const auto it = std::find(slots_.begin(), slots_.end(), slot);
    return adopted_->incarnations[static_cast<size_t>(it - slots_.begin())] == 0;
  };
  const auto has_changed = [this] { return !channel_.in_epoch(adopted_->epoch); };
  MEP_TRY(world_->receive_windows(window_, slots_, is_absent, deadline, &remotes_, has_changed));
  {
    // The control thread looks at the cells too, under the lock.
    const std::lock_guard lock(mutex_);
    if (view_ != adopted_) {
      return fail(MEP_ERR_PEER_FAILED, "the membership changed while comm %s was made",
                  name_.c_str());
    }
    if (entering) drop_unreached();
    cells_.open(rank_, &remotes_, window_->data());
    bulk_.open(rank_, Cells::window_bytes(size()), &remotes_, window_->data());
    cells_.restart(adopted_->epoch, seq_ + 1, adopted_->live);
    bulk_.restart(adopted_->epoch, adopted_->live, cells_.groups(), cells_.through_leaders());
    remote_incarnations_ = adopted_->incarnations;
  }
  MEP_TEST_DELAY_POINT("comm open");
  leave_call();
  return MEP_SUCCESS;
}

// Every live member has a Remote. Those that a newcomer did not find have left a view that it is not in.
void Comm::drop_unreached() {
  CommBirth reached{adopted_->world_epoch, adopted_->incarnations};
  for (uint32_t rank = 0; rank < size(); ++rank) {
    const bool is_reached = remotes_[rank].mapped != nullptr || remotes_[rank].transport != nullptr;
    if (!is_reached) reached.incarnations[rank] = 0;
  }
  view_ = first_view(reached, adopted_->epoch);
  adopted_ = view_;
}

// What a view change that ends the making of a comm on all its members says to those that wait.
void Comm::give_up_making() {
  const auto is_told = [this] {
    return !channel_.in_epoch(adopted_->epoch) || world_->terminal_result() != MEP_SUCCESS;
  };
  if (!opened_ || is_told()) return;
  world_->request_revoke(id_);
  const Deadline limit = Deadline::after_ms(timeout_ms() + kChangeGraceMs);
  (void)wait_until(world_->wait_policy(), world_->doorbell(), limit, is_told);
}

// --- Closing it -----------------------------------------------------------------------------------

// A comm is left as the world is left: a member that goes has said what is done here, and all others hold
// that. Without it this rank's row would lack the comm at the next change, N* be taken from who is
// left, and what has succeeded here fail there. So the comm stays under view changes until
//   - each other member has answered, is dead or is out of the view, or
//   - a change of this comm was installed: whoever is in that view was given all up to N*.
// A view change that has begun counts on what this rank has reported of the comm, and may have it give
// others what they lack: it is waited for too.
void Comm::close_after_changes() {
  MEP_TEST_DELAY_POINT("comm closing");
  const Deadline limit = Deadline::after_ms(timeout_ms() + kChangeGraceMs);
  const Deadline patience = Deadline::after_ms(std::min<uint64_t>(timeout_ms(), kAskMs));
  const uint64_t epoch = latest_view()->epoch;
  const auto held = std::make_shared<std::atomic<bool>>(!channel_.has_moved());
  if (opened_ && !held->load(std::memory_order_relaxed)) {
    world_->ask_held(this, channel_.id(), channel_.done(), held);
  }
  // Acquire: pairs with the control thread that has counted the last answer.
  const auto may_go = [this, epoch, held] {
    if (world_->terminal_result() != MEP_SUCCESS) return true;
    if (channel_.wedged()) return false;
    return held->load(std::memory_order_acquire) || !channel_.in_epoch(epoch);
  };
  bool has_asked_change = false;
  // Without the control thread a change that had begun ends no more: this rank has left the world.
  while (opened_ && !limit.expired() && world_->call([] {})) {
    const bool may = wait_until(world_->wait_policy(), world_->doorbell(),
                                has_asked_change ? limit : patience, may_go);
    if (!may && !has_asked_change) {
      has_asked_change = true;
      world_->report_deadline(id_, channel_.id(), epoch);
    }
    // Once more on the control thread, which begins the changes.
    if (may && world_->remove_client_if(this, may_go)) opened_ = false;
  }
  close();
}

void Comm::close() {
  dormant_.clear();
  if (opened_) world_->remove_client(this);
  opened_ = false;
  if (window_ != nullptr) world_->drop_window(window_->id());
  window_ = nullptr;
}

}  // namespace mep
