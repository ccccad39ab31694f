// The one thread of a world in this process that talks with the peers' control threads.
//
// It waits on control links, pidfds, the listener's door and its own request queue; feeds what comes to
// the membership state machine and carries out its actions. It blocks all signals, never waits for a
// user's thread except for the end of a copy (Comm::PostingScope), and never touches user buffers.
//
// Memory may run out. All that can be put off or refused is: a frame stays in its link, a joiner is sent
// away, a user's thread gets its request back as std::bad_alloc. An event that the membership state
// machine or a comm has taken in by half cannot: then this rank ends its part of the world, with words
// for which memory is kept, and its calls answer MEP_ERR_NO_MEMORY.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/unique_fd.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "core/membership/membership.hpp"
#include "core/world/admissions.hpp"
#include "core/world/closed_channels.hpp"
#include "core/world/control_requests.hpp"
#include "core/world/frames.hpp"
#include "core/world/view_change_times.hpp"
#include "core/world/witness.hpp"
#include "core/world/world_end.hpp"
#include "core/world/world_participant.hpp"
#include "core/world/world_peers.hpp"
#include "core/world/world_view.hpp"
#include "core/world/world_windows.hpp"

namespace mep {

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

  // `listener` invalid: no joiner comes. `gate`: how they find this rank and are let in; null for threads.
  ControlThread(const Parts& parts, UniqueFd listener, std::shared_ptr<Gate> gate);
  ~ControlThread();
  ControlThread(const ControlThread&) = delete;
  ControlThread& operator=(const ControlThread&) = delete;

  // `joining`: this rank is a joiner; the view that a member gave it.
  [[nodiscard]] mep_result_t start(const membership::View* joining);
  void stop();

  // Any thread. Requests run on the control thread in their order; after stop() they are dropped.
  void post(std::function<void()> request);
  // False: it did not run, or not to its end.
  bool call(FunctionRef<void()> request);
  // For a request that leaves all as it was if it throws std::bad_alloc; this throws it on.
  bool call_or_throw(FunctionRef<void()> request);

  // --- On the control thread ---
  membership::Membership& membership() { return *membership_; }
  void add_client(WorldParticipant* client, uint64_t epoch);
  void remove_client(WorldParticipant* client);
  // A change has ended operations of a comm that this rank has not begun to make: it will not be made.
  bool is_refused(uint64_t comm) const;
  // See World::ask_held().
  void ask_held(WorldParticipant* client, uint64_t channel, uint64_t done,
                std::shared_ptr<std::atomic<bool>> held);
  // This rank has closed them; `members` share them.
  void note_closed(std::vector<membership::ChannelState> channels,
                   const membership::SlotSet& members);
  // Starts the orderly leave; `left` is called when LEFT was said.
  void start_leaving();
  // Ends this rank's part now; the others see it fail.
  void abort(const std::string& reason);
  // Every later call of this rank answers `result`.
  void end_world(mep_result_t result);
  // The same for this rank's own end, when it has left: what it owes others may still be on its way.
  void close_world();
  bool has_left() const;
  bool quiesced() const;
  // A joiner tells all that it has their windows.
  void say_ready();
  // To whoever there is a link to.
  void tell_all(uint16_t type, std::span<const std::byte> payload);

 private:
  enum class Source : uint32_t { kRequests, kLink, kProcess, kJoinListener, kTransport };

  // control_thread.cpp: the loop
  void loop();
  void first_round();
  void round();
  void run_out_of_memory();
  void say_last_words();
  bool watch(int fd, Source source, uint32_t slot, uint32_t events);
  void unwatch(int fd);
  void handle(Source source, uint32_t slot, uint32_t events);
  void ring();
  void run_requests();
  void tick();
  int wait_ms() const;

  // control_links.cpp: frames in and out
  void read_link(uint32_t slot);
  bool take_frame(uint32_t slot, Frame& frame);
  bool take_last_words(uint32_t slot, const Frame& frame);
  bool take_window(uint32_t slot, Frame& frame);
  bool take_window_taken(uint32_t slot, const Frame& frame);
  bool take_catch_up(uint32_t slot, const Frame& frame);
  bool take_catch_up_end(uint32_t slot, const Frame& frame);
  bool take_leaving(uint32_t slot, const Frame& frame);
  void send(uint32_t slot, uint16_t type, std::span<const std::byte> payload,
            std::span<const int> fds = {});
  void flush_links();
  void end_link(uint32_t slot);
  void drop_link(uint32_t slot);
  void drop_broken_links();
  void process_ended(uint32_t slot);

  // control_actions.cpp: what the membership state machine asks for
  void carry_out();
  void act(const membership::PushRow& action);
  void act(const membership::SendHeartbeat& action);
  void act(const membership::Freeze& action);
  void act(const membership::CatchUpReceive& action);
  void act(const membership::CatchUpSend& action);
  void act(const membership::FenceOut& action);
  void act(const membership::Prepare& action);
  void act(const membership::SendView& action);
  void act(const membership::InstallView& action);
  void part_with(const membership::Removal& removal, uint64_t epoch);
  void take_in(uint32_t slot, uint64_t epoch);
  void tell_joiners_of(const membership::View& view);
  void act(const membership::SelfEvicted& action);
  void act(const membership::NoQuorum& action);
  void act(const membership::JoinFailed& action);
  void act(const membership::PeerReport& action);
  void act(const membership::AskWitness& action);

  void wake_all();
  void check_catch_up();
  void check_fences();
  void publish_view();
  void note_evidence();
  void note_agreed();
  void finish_times(uint64_t world_epoch);
  WorldParticipant* client(uint64_t comm) const;

  // control_joiners.cpp
  bool is_member(uint32_t slot) const;
  void serve_join_listener();
  void advance_joiners();
  bool take_joiner(PeerLink* joiner);
  bool connect_joiner(uint32_t slot);
  void offer_windows_to(uint32_t slot);
  bool take_view(uint32_t slot, const Frame& frame);
  struct Arrival;
  bool take_ready(uint32_t slot);
  void announce(uint32_t slot, Arrival& arrival);
  void joiner_ended(uint32_t slot, bool confirmed);
  void send_comm_epochs(uint32_t slot);
  bool take_comm_epochs(const Frame& frame);
  void send_peer_states(uint32_t slot);
  bool take_peer_states(const Frame& frame);
  void look_for_missed_members();

  // control_transports.cpp
  void watch_transports();
  void serve_transports();
  void take_failures();
  void take_what_has_come();
  void give_up_the_gone();
  // Marks behind all that this rank's threads have posted, once a view change has stopped them.
  void ask_for_quiet();
  bool drained() const;
  void check_prepare();

  // leaving
  void check_leaving();
  void answer_leaving();

  // control_closing.cpp: comms that are closed
  bool take_closing(uint32_t slot, const Frame& frame);
  bool take_closing_held(uint32_t slot, const Frame& frame);
  void note_refused(const membership::Proposal& committed);
  void check_closings();
  void answer_closings();
  // control_closed.cpp
  bool take_closed(uint32_t slot, const Frame& frame);
  bool take_closed_held(uint32_t slot, const Frame& frame);
  void answer_closed();
  // Takes out what this rank's user has, or can have without the peer that completed it.
  void drop_held(std::vector<membership::ChannelState>* channels);

  const ResolvedConfig& config_;
  WorldPeers& peers_;
  WorldView& view_;
  WorldEnd& end_;
  Admissions& admissions_;
  WorldWindows& windows_;
  UniqueFd listener_;
  std::shared_ptr<Gate> gate_;
  UniqueFd epoll_;
  UniqueFd request_event_;
  std::thread thread_;
  std::unique_ptr<membership::Membership> membership_;
  std::unique_ptr<Witness> witness_;  // null: the quorum rule needs none
  std::map<uint64_t, WorldParticipant*> clients_;
  // Tells the loop to end; what it must not miss it finds by request_event_.
  std::atomic<bool> stopping_{false};
  bool again_ = false;                    // a round was cut short: begin the next at once
  bool exhausted_ = false;                // memory ran out and this rank has ended its part
  std::unique_ptr<std::byte[]> reserve_;  // given back when memory runs out, for the last words
  membership::SlotSet waiting_links_;     // there was no memory for a frame: look again soon
  membership::SlotSet broken_links_;      // a frame could not be sent: the peer would miss it
  membership::SlotSet output_watched_;    // links that epoll also watches for room

  ControlRequests requests_;

  // Catch-up of the present change: what is asked, and which (comm, channel) have come up to which seq.
  std::vector<membership::CatchUpItem> catch_up_items_;
  uint64_t catch_up_plan_ = 0;
  bool catch_up_pending_ = false;
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> caught_up_;

  // Fences that wait for peers to have taken renewed windows.
  struct Fence {
    uint32_t slot = 0;
    uint64_t incarnation = 0;
    AwaitedWindows awaited;  // who has not yet taken which renewed window
    Deadline joiners_until = Deadline::never();
  };
  std::vector<Fence> fences_;

  // Data posted before the freeze may still be on its way here: no window is prepared for the next
  // epoch before the marks of all others that stay have come.
  uint64_t quiet_epoch_ = 0;  // of the change under way, once this rank is frozen; 0: none
  std::unique_ptr<membership::Prepare> preparing_;  // null: none is put off
  uint32_t watched_transports_ = 0;

  ViewChangeTimes times_;  // of the change under way

  // Joiners: who has knocked, and who of them is connected and exchanges windows.
  struct Arrival {
    bool is_ready = false;   // it has said so
    bool announced = false;  // to the membership state machine: ready, and nothing is untaken
    AwaitedWindows untaken;  // renewed windows that it has not taken yet
  };
  std::unique_ptr<JoinListener> join_listener_;
  std::vector<PeerLink> arriving_joiners_;
  bool said_ready_ = false;                    // this rank, as a joiner
  Deadline missed_until_ = Deadline::never();  // likewise: a member has no link to it
  std::map<uint32_t, Arrival> arrivals_;       // by slot, connected
  // On a joiner: epochs of comms after view changes that it has not taken part in.
  std::map<uint64_t, uint64_t> told_epochs_;

  // Leaving: what this rank has done, and who still has to say that it holds it.
  enum class Leave : uint8_t { kNo, kAsking, kLeft };
  Leave leave_ = Leave::kNo;
  membership::SlotSet leave_awaited_;
  ClosedChannels closed_;
  std::vector<ClosedByPeer> closed_by_peers_;
  struct LeavingPeer {
    uint32_t slot = 0;
    std::vector<membership::ChannelState> done;
  };
  std::vector<LeavingPeer> leaving_peers_;

  // Comms of this rank that are being closed: who still has to say that it holds what was done.
  struct Closing {
    uint64_t token = 0;
    const WorldParticipant* client = nullptr;
    std::vector<std::pair<uint32_t, uint64_t>> awaited;  // (slot, incarnation)
    std::shared_ptr<std::atomic<bool>> held;
  };
  std::vector<Closing> closings_;
  std::deque<uint64_t> refused_;  // comms, see is_refused(); the newest
  uint64_t next_closing_ = 1;
  // And those of others, of which this rank does not hold all yet.
  struct ClosingPeer {
    uint32_t slot = 0;
    uint64_t token = 0;
    membership::ChannelState done;
  };
  std::vector<ClosingPeer> closing_peers_;
};

}  // namespace mep
