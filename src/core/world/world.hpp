// A world: the set of slots that share one membership, as one of its ranks sees them.
//
// It binds what each answers for itself: the peers and their transports (WorldPeers), the windows (WorldWindows),
// the view (WorldView), who is let in (Admissions), its end (WorldEnd), and the control thread, which owns the mesh of
// control links and the membership state machine. Comms are its clients. User threads ask the control thread by
// post() and call().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <vector>

#include "base/clock.hpp"
#include "base/function_ref.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "core/membership/membership.hpp"
#include "core/world/admissions.hpp"
#include "core/world/flight_recorder.hpp"
#include "core/world/pending_comms.hpp"
#include "core/world/progress_thread.hpp"
#include "core/world/request_event.hpp"
#include "core/world/transport_set.hpp"
#include "core/world/wait.hpp"
#include "core/world/world_end.hpp"
#include "core/world/world_participant.hpp"
#include "core/world/world_peers.hpp"
#include "core/world/world_view.hpp"
#include "core/world/world_windows.hpp"
#include "mep.h"
#include "transport/host_memory.hpp"

namespace mep {

class ControlThread;

class World : public std::enable_shared_from_this<World> {
 public:
  // Connects transports to all peers of the mesh and starts the control thread. Windows of peers come
  // later, see take_doorbells() and Comm::begin().
  [[nodiscard]] static mep_result_t open(const ResolvedConfig& config, Mesh mesh,
                                         TransportSet transports, std::shared_ptr<World>* out,
                                         const membership::View* joining = nullptr);
  // Two steps, so that one thread can start several ranks of a process: takes the peers' doorbells, by which
  // their transports learn how to connect; then waits until every member is connected. At the start all must
  // come; a joiner goes on without a member that leaves the view meanwhile.
  [[nodiscard]] mep_result_t take_doorbells(const Deadline& deadline, bool is_joiner = false);
  [[nodiscard]] mep_result_t await_connections(const Deadline& deadline, bool is_joiner = false);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const ResolvedConfig& config() const { return config_; }
  uint32_t self_slot() const { return peers_.self_slot(); }
  const PeerIdentity& identity() const { return peers_.identity(); }
  uint32_t max_slots() const { return peers_.count(); }
  const WaitPolicy& wait_policy() const { return wait_policy_; }
  Doorbell* doorbell() const { return windows_.doorbell(); }
  // Wakes the threads of this rank that wait.
  void wake() const;

  // Descriptors that tell of progress; any thread.
  RequestEvent& request_event() { return *request_event_; }
  // Null: pending operations go on within calls alone.
  ProgressThread* progress_thread() const { return progress_thread_.get(); }
  PendingComms& pending_comms() { return pending_comms_; }
  // Null: operations are not recorded.
  FlightRecorder* recorder() const { return recorder_.get(); }

  // See WorldEnd::result().
  mep_result_t terminal_result() const { return end_.result(); }
  // For a call that finds it: the text says why it ended and what is left to do.
  mep_result_t fail_as_ended() const { return end_.fail_as_ended(); }
  // The child of a fork must not use the handle.
  bool forked() const;

  const WorldPeers& peers() const { return peers_; }
  // GPUs of this world write to each other's memory.
  void note_kernels() { peers_.note_kernels(); }
  // Until nothing that GPUs of lost ranks run can write here any more. Blocks; any thread.
  [[nodiscard]] mep_result_t await_torn_down(const Deadline& deadline) const;
  WorldWindows& windows() { return windows_; }
  WorldView& view() { return view_; }
  const WorldView& view() const { return view_; }
  Admissions& admissions() { return admissions_; }

  // For calls that look without waiting.
  void make_progress() {
    if (peers_.network().active()) (void)peers_.network().progress();
  }

  // --- Requests to the control thread (any thread) ---
  void post(std::function<void()> request);
  // Runs it there and waits; false: the control thread has ended.
  bool call(FunctionRef<void()> request);
  // An operation cannot go on for want of memory: this rank's part of the world ends, which the others see as its
  // loss. Takes no memory. Answers what calls answer from now on.
  mep_result_t run_out_of_memory();
  // Runs `body`, a part of an operation. False: memory ran out.
  template <typename Body>
  bool attempt(Body&& body) {
    try {
      body();
      return true;
    } catch (const std::bad_alloc&) {
      (void)run_out_of_memory();
      return false;
    }
  }
  // The client is under view changes from here on, its window (null: none) known to joiners. If one of
  // `slots` is not filled as `members` (null: anyhow) says it is MEP_ERR_PEER_FAILED and nothing is done.
  [[nodiscard]] mep_result_t begin_client(WorldParticipant* client, uint64_t epoch,
                                          const std::shared_ptr<Window>& window,
                                          const std::vector<uint32_t>& slots,
                                          const CommMembers* members);
  // After it returned, the control thread does not call the client any more.
  void remove_client(WorldParticipant* client);
  // Channels that this rank has closed, `members` share them.
  void note_closed(std::vector<membership::ChannelState> channels,
                   const membership::SlotSet& members);
  // If `may_go` says so on the control thread; true too if there is none any more.
  bool remove_client_if(WorldParticipant* client, FunctionRef<bool()> may_go);
  // Asks the client's other members whether they hold all up to `done` of a channel. *held becomes true, and
  // the doorbell rings, once each has said so, is dead or is out of the view.
  void ask_held(WorldParticipant* client, uint64_t channel, uint64_t done,
                std::shared_ptr<std::atomic<bool>> held);
  void report_deadline(uint64_t comm, uint64_t channel, uint64_t comm_epoch);
  void request_evict(uint32_t slot);
  // False: some user thread is still in a call of an earlier view.
  bool idle();
  void request_revoke(uint64_t comm);
  // Orderly: waits until no member needs this rank, says LEFT. Not orderly: just stops. The remains of the world
  // answer MEP_ERR_ABORTED from then on.
  void leave(bool orderly, const Deadline& deadline);
  // `reason`: for the others' errors; may be empty.
  void abort(const std::string& reason);
  // Tells the members why this joiner, which is not in the view, gives up: the latest error.
  void say_why(mep_result_t result);

  // Any thread. False: this rank has used that id for a comm already. Ids that all members make together need no
  // asking.
  bool take_comm_id(uint64_t id);

  HostMemory& host_memory() { return host_memory_; }
  void count_allocation(int change);
  uint32_t allocations() const { return allocations_.load(std::memory_order_relaxed); }

 private:
  World(const ResolvedConfig& config, SelfDescription self, TransportSet transports);

  ResolvedConfig config_;
  uint64_t fork_generation_ = 0;
  WorldPeers peers_;
  WorldView view_;
  WorldEnd end_;
  std::unique_ptr<ControlThread> control_;  // works on the others
  Admissions admissions_;
  WorldWindows windows_;
  YieldGauge yield_gauge_;
  WaitPolicy wait_policy_;
  HostMemory host_memory_;
  std::atomic<uint32_t> allocations_{0};  // of mep_mem_alloc, not freed yet
  std::unique_ptr<RequestEvent> request_event_;
  std::unique_ptr<ProgressThread> progress_thread_;
  PendingComms pending_comms_;
  const std::unique_ptr<FlightRecorder> recorder_;
  std::mutex comm_ids_mutex_;
  std::set<uint64_t> comm_ids_;  // see take_comm_id()
};

// The count of forks of this process and its ancestors since the first call.
uint64_t fork_generation();

}  // namespace mep
