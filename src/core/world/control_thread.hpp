// The one thread of a world in this process that talks with the peers' control threads.
//
// It waits on control links, pidfds, the listener's door and its own request queue; feeds what comes to
// the membership state machine and carries out its actions, by parts that own what they keep and that it alone
// calls. It blocks all signals, never waits for a user's thread, and never touches user buffers. Where the world ends it
// waits for the end of a copy (PostingGate::close()).
//
// Where memory runs out, here or in an operation on another thread (run_out_of_memory), the thread ends: all calls
// of this rank answer MEP_ERR_NO_MEMORY, and its links end. So it does, with MEP_ERR_SYSTEM, where an adapter cannot be kept
// from writing for a lost rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/function_ref.hpp"
#include "base/unique_fd.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "core/membership/membership.hpp"
#include "core/world/admissions.hpp"
#include "core/world/closings.hpp"
#include "core/world/control_links.hpp"
#include "core/world/control_requests.hpp"
#include "core/world/joiners.hpp"
#include "core/world/leaving.hpp"
#include "core/world/metrics_file.hpp"
#include "core/world/view_change.hpp"
#include "core/world/witness.hpp"
#include "core/world/world_end.hpp"
#include "core/world/world_participants.hpp"
#include "core/world/world_peers.hpp"
#include "core/world/world_view.hpp"
#include "core/world/world_windows.hpp"

namespace mep {

// Ends this rank's part: it must not agree on a view without a process that may still write to its windows.
class CannotFence : public std::bad_alloc {
 public:
  const char* what() const noexcept override { return "a lost rank may write to a window"; }
};

class ControlThread {
 public:
  // The parts of its world that it works on; they outlive it.
  struct Parts {
    const ResolvedConfig& config;
    WorldPeers& peers;
    WorldView& view;
    WorldEnd& end;
    Admissions& admissions;
    WorldWindows& windows;
  };

  explicit ControlThread(const Parts& parts);
  ~ControlThread();
  ControlThread(const ControlThread&) = delete;
  ControlThread& operator=(const ControlThread&) = delete;

  // `joining`: this rank is a joiner; the view that a member gave it. `listener`, `gate`: see Joiners::open_door().
  [[nodiscard]] mep_result_t start(const membership::View* joining, UniqueFd listener,
                                   std::shared_ptr<Gate> gate);
  void stop();

  // Any thread. Requests run on the control thread in their order; once it has ended they are dropped.
  template <typename Request>
  void post(Request&& request) {
    try {
      requests_.post(std::forward<Request>(request), [this] { links_.ring(); });
    } catch (const std::bad_alloc&) {
      run_out_of_memory();
    }
  }
  // False: it did not run, or not to its end.
  bool call(FunctionRef<void()> request);
  // Throws std::bad_alloc if the request does, which has left all as it was.
  bool call_or_throw(FunctionRef<void()> request);
  // Any thread; takes no memory.
  void run_out_of_memory();

  // --- On the control thread ---
  membership::Membership& membership() { return *membership_; }
  ControlLinks& links() { return links_; }
  const WorldParticipants& participants() const { return participants_; }
  Joiners& joiners() { return *joiners_; }
  Leaving& leaving() { return *leaving_; }
  Closings& closings() { return *closings_; }
  void add_participant(WorldParticipant* participant, uint64_t epoch);
  void remove_participant(WorldParticipant* participant);
  // Ends this rank's part now; the others see it fail.
  void abort(const std::string& reason);
  // For this rank's own end, when it has left: what it owes others may still be on its way.
  void close_world();

 private:
  // control_thread.cpp: the loop
  void make_membership(const membership::View* joining);
  void loop();
  void first_round();
  void round();
  void end_early(mep_result_t result);
  void tick();
  int wait_ms() const;
  // Every later call of this rank answers `result`.
  void end_world(mep_result_t result);
  void wake_all();

  // control_events.cpp: what comes from peers, and their ends
  void read_link(uint32_t slot);
  bool take_frame(uint32_t slot, Frame& frame);
  bool take_row(uint32_t slot, const Frame& frame);
  bool take_last_words(uint32_t slot, const Frame& frame);
  bool take_window(uint32_t slot, Frame& frame);
  bool take_window_taken(uint32_t slot, const Frame& frame);
  void end_link(uint32_t slot);
  void drop_link(uint32_t slot);
  void drop_broken_links();
  // No thread of it runs any more, and, if it is torn down, nothing of it at all.
  void process_ended(uint32_t slot, bool is_torn_down);
  void serve_transports();
  void take_failures();

  // control_actions.cpp: what the membership state machine asks for, but for the steps of a change (ViewChange)
  void carry_out();
  void act(const membership::PushRow& action);
  void act(const membership::SendHeartbeat& action);
  void act(const membership::SendView& action);
  void act(const membership::InstallView& action);
  void part_with(const membership::Removal& removal, uint64_t epoch);
  void note_unlinked(const membership::Member& member);
  void act(const membership::SelfEvicted& action);
  void act(const membership::NoQuorum& action);
  void act(const membership::JoinFailed& action);
  void act(const membership::PeerReport& action);
  void act(const membership::AskWitness& action);

  const ResolvedConfig& config_;
  WorldPeers& peers_;
  WorldView& view_;
  WorldEnd& end_;
  Admissions& admissions_;
  WorldWindows& windows_;
  ControlRequests requests_;
  ControlLinks links_;
  WorldParticipants participants_;
  // From start() on.
  std::unique_ptr<membership::Membership> membership_;
  std::optional<Joiners> joiners_;
  std::optional<ViewChange> change_;
  std::optional<Leaving> leaving_;
  std::optional<Closings> closings_;
  std::unique_ptr<Witness> witness_;  // null: the quorum rule needs none
  MetricsFile metrics_;
  std::thread thread_;
  // Tells the loop to end; what it must not miss it finds by the event of requests.
  std::atomic<bool> stopping_{false};
  bool again_ = false;  // a round was cut short: begin the next at once
  // Acquire, release: see run_out_of_memory().
  std::atomic<bool> is_out_of_memory_{false};
};

}  // namespace mep
