// The windows of this rank, and its copies of the peers' windows of the same ids: what it offers, what it takes of
// others, and new pages when somebody who could write the old ones is out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "core/membership/membership.hpp"
#include "core/world/remote.hpp"
#include "core/world/wait.hpp"
#include "core/world/window_directory.hpp"
#include "mep.h"
#include "transport/transport.hpp"

namespace mep {

class Admissions;
class ControlThread;
class WorldEnd;
class WorldPeers;
class WorldView;
struct WindowFrame;

// ((peer slot, window id), generation) of renewed windows that a peer has not taken yet.
using AwaitedWindows = std::set<std::pair<std::pair<uint32_t, uint64_t>, uint32_t>>;

class WorldWindows {
 public:
  // Each of these outlives this object; of the control thread it uses only that requests run there.
  WorldWindows(WorldPeers& peers, ControlThread& control, const WorldView& view,
               const WorldEnd& end, const Admissions& admissions)
      : peers_(peers), control_(control), view_(view), end_(end), admissions_(admissions) {}
  WorldWindows(const WorldWindows&) = delete;
  WorldWindows& operator=(const WorldWindows&) = delete;

  // --- The world's own window ---
  // Makes it, with the doorbell in it.
  [[nodiscard]] mep_result_t open();
  const std::shared_ptr<Window>& of_world() const { return world_window_; }
  Doorbell* doorbell() const { return reinterpret_cast<Doorbell*>(world_window_->data()); }
  // A peer that rings this rank reaches its network's wait, too, if there is one.
  [[nodiscard]] mep_result_t bind_event();
  // This rank rings nobody any more.
  void unbind_events();

  // --- User threads ---
  // Offers `window` to `slots` (the own one is skipped).
  [[nodiscard]] mep_result_t offer(const std::shared_ptr<Window>& window,
                                   std::span<const uint32_t> slots);
  // The same in two steps: peers may use it, joiners among them; those of `slots` are told.
  void add_own(const std::shared_ptr<Window>& window, const std::vector<uint32_t>& slots);
  [[nodiscard]] mep_result_t send(const std::shared_ptr<Window>& window,
                                  std::span<const uint32_t> slots);
  // At most kMaxWindowBlobBytes that each offer of an own window to this slot carries from then on, add_own() or not; empty:
  // none. It is of the window's user: nothing here reads it. Any thread.
  void set_note(uint64_t id, uint32_t slot, std::vector<std::byte> note) {
    directory_.set_note(id, slot, std::move(note));
  }
  // Before the window is offered: see WindowDirectory::set_fence().
  void set_fence(uint64_t id, WindowFence fence) { directory_.set_fence(id, std::move(fence)); }
  // Waits for the note that came with the window that the process in the slot offered. Errors as those of receive().
  [[nodiscard]] mep_result_t await_note(uint32_t slot, uint64_t incarnation, uint64_t id,
                                        const Deadline& deadline, std::vector<std::byte>* note);
  // Takes back add_own().
  void remove_own(uint64_t id);
  // Waits for the windows of the same id of `slots`; remotes in the order of slots. A slot that leaves
  // the view meanwhile is MEP_ERR_PEER_FAILED; `skip` says which slots need not come (they stay empty).
  // A joiner gets MEP_ERR_NOT_FOUND if a member has none, having destroyed what it belonged to.
  // `has_changed`, looked at when a view is installed: what the windows are for is not to be had any more,
  // MEP_ERR_PEER_FAILED.
  [[nodiscard]] mep_result_t receive(const std::shared_ptr<Window>& window,
                                     std::span<const uint32_t> slots,
                                     const std::function<bool(uint32_t)>& skip,
                                     const Deadline& deadline, std::vector<Remote>* remotes,
                                     const std::function<bool()>& has_changed = {});
  // Offers memory that kernels of the peers in `memory->slots` write. They are on this host and map it by themselves,
  // joiners among them; it makes no window of a transport.
  [[nodiscard]] mep_result_t offer_memory(std::shared_ptr<const KernelMemory> memory);
  // Waits for the memory that the process in the slot offers under this id. Errors as those of receive().
  [[nodiscard]] mep_result_t take_memory(uint32_t slot, uint64_t incarnation, uint64_t id,
                                         const Deadline& deadline, WindowOffer* offer);
  // A peer's copy of an own window: waits for it and for the peer's doorbell.
  [[nodiscard]] mep_result_t await_remote(uint32_t slot, const std::shared_ptr<Window>& window,
                                          const Deadline& deadline, Remote* remote);
  bool has_offered(uint32_t slot, uint64_t id);
  // The process has said that it has offered all the windows that it came with.
  bool has_offered_all(uint32_t slot, uint64_t incarnation) const;
  // The own one and the peers' of this id.
  void drop(uint64_t id);

  // --- The control thread ---
  // Something changed that waiters should look at.
  void wake() { directory_.wake(); }
  // Takes a window that the peer has offered if one of the same id is in use here, or if it is wanted at once and
  // this rank has one of its own; else keeps the offer until a user's thread wants it. That thread of a joiner
  // (`is_joining`) is also told what went wrong.
  [[nodiscard]] mep_result_t take(uint32_t slot, uint64_t id, WindowOffer offer, bool at_once,
                                  bool is_joining);
  // Memory for kernels, which a user's thread will want.
  void file_memory(uint32_t slot, uint64_t id, WindowOffer offer) {
    directory_.file(slot, id, std::move(offer));
  }
  // The peer has offered all that it has to this rank, a joiner; its link has ended.
  void note_offered(uint32_t slot) { directory_.note_offered(slot); }
  void forget_offered(uint32_t slot) { directory_.forget_offered(slot); }
  // Offers a joiner all that it shares with this rank. `unreached`: whoever could not be told.
  void offer_all(uint32_t slot, membership::SlotSet* unreached);
  // Unmaps all that is left of an earlier incarnation in the slot.
  void forget_peer(uint32_t slot);
  // The process writes no more to windows that have a fence. Throws std::bad_alloc if it may.
  void fence(uint32_t slot, uint64_t incarnation) const;
  // New pages for every other own window that `excluded` could write; offers them to everybody else who has the old ones:
  // members, and joiners that offer_all() was called for. Throws std::bad_alloc if there are none. `unreached`:
  // peers that could not be told.
  void renew(uint32_t excluded, const membership::SlotSet& joiners, AwaitedWindows* awaited,
             membership::SlotSet* unreached);

 private:
  // Until the peer's window is offered or imported, or `skip` says that it need not come.
  [[nodiscard]] mep_result_t await_offer(uint32_t slot, uint64_t id,
                                         const std::function<bool(uint32_t)>& skip,
                                         const Deadline& deadline,
                                         const std::function<bool()>& has_changed);
  [[nodiscard]] mep_result_t reach(uint32_t slot, const Window& window, Remote* remote);
  // Under the peers' reaching_mutex(), or at start-up.
  Remote remote_of(uint32_t slot, const Window& window) const;
  bool is_imported(uint32_t slot, uint64_t window) const;
  // The peer can write to this rank's window: a member with which windows were exchanged, or a joiner that was
  // offered it and may still wait for others before it offers its own.
  bool has_pages(uint32_t slot, const Window& window, const membership::SlotSet& joiners) const;
  // Under the peers' reaching_mutex().
  [[nodiscard]] mep_result_t import_offer(uint32_t slot, const Window& window, WindowOffer* offer);
  // Before it is filed: it may lie there for long, and many of them would take many descriptors.
  void hold(uint32_t slot, uint64_t window, WindowOffer* offer);
  // MEP_ERR_NOT_FOUND: this rank has none of its own of that id.
  [[nodiscard]] mep_result_t take_now(uint32_t slot, uint64_t window, WindowOffer* offer);
  [[nodiscard]] mep_result_t send_one(const Window& window, const WindowExport& exported,
                                      uint32_t slot);
  [[nodiscard]] mep_result_t send_frame(uint32_t slot, const WindowFrame& frame,
                                        std::span<const int> fds);
  [[nodiscard]] mep_result_t send_memory(const KernelMemory& memory, uint32_t slot);
  // Runs `send_to` for each of the slots that has a peer, on the control thread.
  [[nodiscard]] mep_result_t send_each(std::span<const uint32_t> slots,
                                       const std::function<mep_result_t(uint32_t)>& send_to);
  void unbind_event(uint32_t slot);
  void hold_network(bool is_held);

  WorldPeers& peers_;
  ControlThread& control_;
  const WorldView& view_;
  const WorldEnd& end_;
  const Admissions& admissions_;
  std::shared_ptr<Window> world_window_;
  WindowDirectory directory_;
  mutable std::mutex mutex_;  // guards the field below
  // (slot, window) in use here, and the note that came with it
  std::map<std::pair<uint32_t, uint64_t>, std::vector<std::byte>> imported_;
};

}  // namespace mep
