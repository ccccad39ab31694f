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

uint64_t Comm::listed_id(const std::string& name, const std::vector<uint32_t>& slots,
                         const std::vector<uint64_t>& incarnations) {
  Hash hash;
  hash.bytes(name.data(), name.size());
  for (const uint32_t slot : slots) hash.word(slot);
  for (const uint64_t incarnation : incarnations) hash.word(incarnation);
  return (hash.value() & ~kSpanning) | 1;
}

uint64_t Comm::spanning_id(const std::string& name, uint64_t world_epoch) {
  Hash hash(world_epoch);
  hash.bytes(name.data(), name.size());
  return hash.value() | kSpanning | 1;
}

CommMembers Comm::members_of(const std::vector<uint32_t>& of) const {
  CommMembers birth;
  birth.world_epoch = adopted().world_epoch;
  for (const uint32_t slot : of) {
    const auto it = std::find(slots().begin(), slots().end(), slot);
    birth.incarnations.push_back(
        it == slots().end() ? 0
                            : adopted().incarnations[static_cast<size_t>(it - slots().begin())]);
  }
  return birth;
}

mep_result_t Comm::begin(uint64_t epoch, uint64_t next_seq, const CommMembers* birth) {
  MEP_TEST_DELAY_POINT("comm begin");
  CommMembers given =
      birth != nullptr ? *birth : CommMembers::of(world().view().snapshot(), slots());
  // A joiner is not in the view that it has seen; of this comm it may be the only one that is left.
  given.incarnations[rank()] = world().identity().incarnation;
  collectives_.begin(CommView::first(given, epoch), next_seq);
  // Until finish(): memory of members that go must not be unmapped under this thread. Nobody knows this comm yet.
  (void)gate_.enter();
  PeerWindows& windows = collectives_.windows();
  const mep_result_t created = windows.create(id(), window_bytes(size()));
  const std::string text = created == MEP_SUCCESS ? "" : last_error_text();
  // Without a window too: by its channel the others are told that this rank could not make its part.
  MEP_TRY(world().begin_client(this, epoch, windows.own(), slots(), birth));
  opened_ = true;
  MEP_TEST_DELAY_POINT("comm offered");
  if (created != MEP_SUCCESS) return fail(created, "%s", text.c_str());
  return world().windows().send(windows.own(), slots());
}

mep_result_t Comm::finish(const Deadline& deadline) {
  MEP_TEST_DELAY_POINT("comm finish");
  const CommView& view = adopted();
  const auto has_changed = [&] { return !collectives_.channel().in_epoch(view.epoch); };
  PeerWindows& windows = collectives_.windows();
  MEP_TRY(windows.receive(view.incarnations, deadline, has_changed));
  // A joiner that is not in the view yet begins with the view that lets it in. Every live member has a
  // window; those that it did not find have left a view that it is not in.
  std::shared_ptr<const CommView> reached;
  if (world().admissions().entering()) {
    CommMembers found{view.world_epoch, view.incarnations};
    for (uint32_t rank = 0; rank < size(); ++rank) {
      if (!windows.has(rank)) found.incarnations[rank] = 0;
    }
    reached = CommView::first(found, view.epoch);
  }
  MEP_TRY(collectives_.open(std::move(reached)));
  messages_.open(adopted());
  {
    const std::lock_guard lock(clients_.mutex());
    losses_.note(*latest_view());
  }
  if (world().progress_thread() != nullptr) MEP_TRY(world().progress_thread()->attach(this));
  MEP_TEST_DELAY_POINT("comm open");
  leave_call();
  return MEP_SUCCESS;
}

// Revokes a comm that could not be made, so that a view change ends its making on all its members; waits for that.
void Comm::give_up_making() {
  const auto is_over = [this] {
    return !collectives_.channel().in_epoch(adopted().epoch) ||
           world().terminal_result() != MEP_SUCCESS;
  };
  if (!opened_ || is_over()) return;
  world().request_revoke(id());
  (void)collectives_.channel().wait(identity_.change_deadline(), is_over);
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
  const OperationChannel& channel = collectives_.channel();
  const Deadline limit = identity_.change_deadline();
  const Deadline patience = Deadline::after_ms(std::min<uint64_t>(timeout_ms(), kAskMs));
  const uint64_t epoch = latest_view()->epoch;
  const bool is_unused = !channel.has_moved();
  std::shared_ptr<std::atomic<bool>> held;
  (void)world().attempt([&] {
    if (!opened_ || is_unused) return;
    held = std::make_shared<std::atomic<bool>>(false);
    world().ask_held(this, channel.id(), channel.done(), held);
  });
  // Acquire: pairs with the control thread that has counted the last answer.
  const auto may_go = [&] {
    if (world().terminal_result() != MEP_SUCCESS) return true;
    if (channel.frozen()) return false;
    const bool is_held = held != nullptr && held->load(std::memory_order_acquire);
    return is_unused || is_held || !channel.in_epoch(epoch);
  };
  bool has_asked_change = false;
  // Without the control thread a change that had begun ends no more: this rank has left the world.
  while (opened_ && !limit.expired() && world().call([] {})) {
    const bool may = channel.wait(has_asked_change ? limit : patience, may_go);
    if (!may && !has_asked_change) {
      world().report_deadline(id(), channel.id(), epoch);
      has_asked_change = true;
    }
    // Once more on the control thread, which begins the changes.
    if (may && world().remove_client_if(this, may_go)) opened_ = false;
  }
  close();
}

void Comm::close() {
  clients_.drop_unattached();
  world().pending_comms().remove(this);
  if (world().progress_thread() != nullptr) world().progress_thread()->detach(this);
  if (opened_) world().remove_client(this);
  opened_ = false;
  messages_.close();
  collectives_.windows().drop();
}

}  // namespace mep
