// A world: the set of slots that share one membership, as one of its ranks sees it.
//
// It owns the mesh of control links, the transports, the control thread and the membership state
// machine; comms are its clients. User threads ask the control thread by post(); what they wait for
// themselves (windows of peers) they get from the window directory.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/function_ref.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "core/membership/membership.hpp"
#include "core/world/progress_thread.hpp"
#include "core/world/remote.hpp"
#include "core/world/request_bell.hpp"
#include "core/world/transport_wait.hpp"
#include "core/world/view_change_times.hpp"
#include "core/world/wait.hpp"
#include "core/world/window_directory.hpp"
#include "mep.h"
#include "transport/source_memory.hpp"
#include "transport/transport.hpp"

namespace mep {

class ControlThread;

// Receives one contribution of one operation for a rank that is behind.
using FlushSink =
    std::function<void(uint64_t seq, uint32_t source, std::span<const std::byte> bytes)>;

// ((peer slot, window id), generation) of renewed windows that a peer has not taken yet.
using AwaitedWindows = std::set<std::pair<std::pair<uint32_t, uint64_t>, uint32_t>>;

// What a newcomer must know to take its place in a comm.
struct CommDescription {
  uint64_t id = 0;
  std::string name;  // now; it may have been renamed
  uint64_t epoch = 0;
  std::vector<uint32_t> slots;
  // How many comms were split off and EP objects made from it: names follow from these.
  uint32_t child_number = 0;
  uint32_t ep_number = 0;
  // Its EP objects, in their own form (EpObject::describe_object).
  std::vector<std::vector<std::byte>> objects;
};

// Of whom a comm is made: its members at one moment, the same for all that make it.
struct CommBirth {
  uint64_t world_epoch = 1;
  std::vector<uint64_t> incarnations;  // by rank, 0: absent
  static CommBirth of(const membership::View& view, const std::vector<uint32_t>& slots);
};

// The view that answered a recover call.
struct Admission {
  std::vector<uint32_t> added;                   // slots that it let in
  std::shared_ptr<const membership::View> view;  // null: none has answered
};

// What takes part in view changes: a comm. All functions are called by the control thread.
class WorldClient {
 public:
  virtual ~WorldClient() = default;
  virtual uint64_t comm_id() const = 0;
  virtual const membership::SlotSet& member_slots() const = 0;
  // Whether the channel's operations are replicated, so that who is behind is given what it lacks.
  virtual bool is_replicated(uint64_t channel) const = 0;
  // Channels with what is done now; freezes nothing.
  virtual void describe(std::vector<membership::ChannelState>* channels) const = 0;
  // Freezes all channels and says what was done and entered.
  virtual void freeze(std::vector<membership::ChannelState>* channels) = 0;
  // While frozen: whether this rank holds all that operation seq needs.
  virtual bool holds(uint64_t channel, uint64_t seq) = 0;
  virtual void give_flush(uint64_t channel, uint64_t from_seq, uint64_t to_seq,
                          const FlushSink& sink) = 0;
  virtual void take_flush(uint64_t channel, uint64_t seq, uint32_t source,
                          std::span<const std::byte> bytes) = 0;
  virtual void prepare() = 0;
  // `affected` null: the comm goes on as it was, in its old epoch.
  virtual void install(const membership::InstallView& change,
                       const membership::AffectedComm* affected) = 0;
  // The world has ended for this rank (terminal_result()): wake everybody.
  virtual void terminate() = 0;
  // Whether no user thread is still inside a call that began before the latest view: only then may
  // memory of a rank that left the view be unmapped.
  virtual bool quiesced() const = 0;
  // For newcomers, see kFrameComms.
  virtual CommDescription description() const = 0;
};

// The transports that work here, in order of preference.
struct TransportSet {
  struct Opened {
    std::unique_ptr<Transport> transport;
    std::vector<std::byte> offer;
  };
  std::vector<Opened> all;
  bool puts_only = false;
  [[nodiscard]] mep_result_t open(const ResolvedConfig& config);
  // What a rank tells its peers when they connect: its cores and the transports' addresses.
  [[nodiscard]] mep_result_t make_offer(std::vector<std::byte>* offer) const;
};

class World : public std::enable_shared_from_this<World> {
 public:
  // Connects transports to all peers of the mesh and starts the control thread. Windows of peers come
  // later, see connect().
  [[nodiscard]] static mep_result_t open(const ResolvedConfig& config, Mesh mesh,
                                         TransportSet transports, std::shared_ptr<World>* out,
                                         const membership::View* joining = nullptr);
  // Two steps, so that one thread can start several ranks of a process: takes the peers' doorbells, by which
  // their transports learn how to connect; then waits until every member is connected. At the start all must
  // come; a newcomer goes on without a member that leaves the view meanwhile.
  [[nodiscard]] mep_result_t take_doorbells(const Deadline& deadline, bool is_newcomer = false);
  [[nodiscard]] mep_result_t await_connections(const Deadline& deadline, bool is_newcomer = false);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const ResolvedConfig& config() const { return config_; }
  uint32_t self_slot() const { return self_.identity.slot; }
  const PeerIdentity& identity() const { return self_.identity; }
  uint32_t max_slots() const { return static_cast<uint32_t>(peers_.size()); }
  const WaitPolicy& wait_policy() const { return wait_policy_; }
  Doorbell* doorbell() const { return reinterpret_cast<Doorbell*>(world_window_->data()); }

  // Descriptors that tell of progress; any thread.
  RequestBell& request_bell() { return *request_bell_; }
  // Null: pending operations go on within calls alone.
  ProgressThread* progress_thread() const { return progress_thread_.get(); }

  // How the world of a newcomer ends that has to begin again.
  static constexpr mep_result_t kMissedMember = MEP_ERR_PEER_FAILED;
  // MEP_SUCCESS while the world works; else what every call answers from now on. Relaxed: callers
  // that see it late wait on a frozen channel and look again.
  mep_result_t terminal_result() const { return terminal_.load(std::memory_order_relaxed); }
  // The child of a fork must not use the handle.
  bool forked() const;

  // MEP_PEER_* of a slot.
  uint32_t peer_state(uint32_t slot) const;
  const char* transport_text(uint32_t slot) const;
  Transport* transport(uint32_t slot) const { return peers_[slot].transport; }
  // For calls that look without waiting.
  void make_progress() {
    if (network_.active()) (void)network_.progress();
  }

  // --- Windows (user threads) ---
  // Offers `window` to `slots` (the own one is skipped).
  [[nodiscard]] mep_result_t offer_window(const std::shared_ptr<Window>& window,
                                          std::span<const uint32_t> slots);
  // The same of one that newcomers know of.
  [[nodiscard]] mep_result_t send_windows(const std::shared_ptr<Window>& window,
                                          std::span<const uint32_t> slots);
  // Waits for the windows of the same id of `slots`; remotes in the order of slots. A slot that leaves
  // the view meanwhile is MEP_ERR_PEER_FAILED; `skip` says which slots need not come (they stay empty).
  // A newcomer gets MEP_ERR_NOT_FOUND if a member has none, having destroyed what it belonged to.
  // `has_changed`, looked at when a view is installed: what the windows are for is not to be had any more,
  // MEP_ERR_PEER_FAILED.
  [[nodiscard]] mep_result_t receive_windows(const std::shared_ptr<Window>& window,
                                             std::span<const uint32_t> slots,
                                             const std::function<bool(uint32_t)>& skip,
                                             const Deadline& deadline, std::vector<Remote>* remotes,
                                             const std::function<bool()>& has_changed = {});
  void drop_window(uint64_t id);

  // --- Requests to the control thread (any thread) ---
  void post(std::function<void()> request);
  // Runs it there and waits; false: the control thread has ended.
  bool call(FunctionRef<void()> request);
  // The client is under view changes from here on, its window (null: none) known to newcomers. If one of
  // `slots` is not filled as `birth` (null: anyhow) says it is MEP_ERR_PEER_FAILED and nothing is done.
  [[nodiscard]] mep_result_t begin_client(WorldClient* client, uint64_t epoch,
                                          const std::shared_ptr<Window>& window,
                                          const std::vector<uint32_t>& slots,
                                          const CommBirth* birth);
  // After it returned, the control thread does not call the client any more.
  void remove_client(WorldClient* client);
  // Channels that this rank has closed, `members` share them.
  void note_closed(std::vector<membership::ChannelState> channels,
                   const membership::SlotSet& members);
  // If `may_go` says so on the control thread; true too if there is none any more.
  bool remove_client_if(WorldClient* client, FunctionRef<bool()> may_go);
  // Asks the client's other members whether they hold all up to `done` of a channel. *held becomes true, and
  // the doorbell rings, once each has said so, is dead or is out of the view.
  void ask_held(WorldClient* client, uint64_t channel, uint64_t done,
                std::shared_ptr<std::atomic<bool>> held);
  void report_deadline(uint64_t comm, uint64_t channel, uint64_t comm_epoch);
  void request_evict(uint32_t slot);
  // The collective recover call: waits until the view that answers it.
  [[nodiscard]] mep_result_t recover(const membership::SlotSet& wanted, const Deadline& deadline,
                                     Admission* admission);
  // Newcomers whose links to this rank are tested.
  uint32_t ready_newcomers() const { return ready_newcomers_.load(std::memory_order_relaxed); }
  // A newcomer: says that it is ready and waits until it is in the view.
  [[nodiscard]] mep_result_t enter(const Deadline& deadline, Admission* admission);
  // A peer's copy of an own window, if its offer was taken; false: not here.
  bool find_remote(uint32_t slot, const std::shared_ptr<Window>& window, Remote* remote) const;
  // The same, waiting for it and for the peer's doorbell.
  [[nodiscard]] mep_result_t await_remote(uint32_t slot, const std::shared_ptr<Window>& window,
                                          const Deadline& deadline, Remote* remote);
  // A newcomer that is not in the view yet.
  bool entering() const { return entering_; }
  // The process has said that it has offered all the windows that it came with.
  bool has_offered_all(uint32_t slot, uint64_t incarnation) const {
    // Acquire: its windows were taken before.
    return peers_[slot].ready_incarnation.load(std::memory_order_acquire) == incarnation;
  }
  bool has_offered(uint32_t slot, const Window& window);
  // False: some user thread is still in a call of an earlier view.
  bool idle();
  void request_revoke(uint64_t comm);
  // Orderly: waits until no member needs this rank, says LEFT. Not orderly: just stops. What is left of
  // the world answers MEP_ERR_ABORTED from then on.
  void leave(bool orderly, const Deadline& deadline);
  void abort();

  void set_view_callback(mep_view_callback_t callback, void* user);

  membership::View view_snapshot() const;
  ViewChangeTimes last_view_change() const;

  SourceMemory& source_memory() { return source_memory_; }
  void count_allocation(int change);
  uint32_t allocations() const { return allocations_.load(std::memory_order_relaxed); }

 private:
  friend class ControlThread;
  struct Peer {
    PeerIdentity identity;
    std::shared_ptr<ControlLink> link;  // null: none now
    UniqueFd pidfd;
    PeerSession session;
    Transport* transport = nullptr;
    uint64_t sharing = 0;      // see Remote
    bool is_newcomer = false;  // connected, not in the view yet; the control thread's
    // Of the newcomer that has said that it is ready; published by the control thread to users.
    std::atomic<uint64_t> ready_incarnation{0};
    // MEP_PEER_*: written by the control thread for users to read; orders nothing.
    std::atomic<uint32_t> state{MEP_PEER_ALIVE};
  };

  World(const ResolvedConfig& config, Mesh mesh, TransportSet transports);
  [[nodiscard]] mep_result_t choose_transport(Peer* peer, std::span<const std::byte> offer);
  [[nodiscard]] mep_result_t remote_of(uint32_t slot, const std::shared_ptr<Window>& window,
                                       Remote* remote) const;
  void decide_wait_policy(std::span<const PeerLink> peers);
  [[nodiscard]] mep_result_t open_network();
  mep_result_t fail_as_ended() const;
  void unbind_event(uint32_t slot);
  void hold_windows();
  void release_windows();

  bool is_imported(uint32_t slot, uint64_t window) const;
  [[nodiscard]] mep_result_t import_offer(uint32_t slot, const std::shared_ptr<Window>& window,
                                          WindowOffer* offer);

  // --- The control thread ---
  // Unmaps all that is left of an earlier incarnation in the slot.
  void forget_peer(uint32_t slot);
  // New pages for every own window that `excluded` could write; offers them to everybody else. Throws
  // std::bad_alloc if there are none. `unreached`: peers that could not be told.
  void renew_windows(uint32_t excluded, AwaitedWindows* awaited, membership::SlotSet* unreached);
  [[nodiscard]] mep_result_t send_window(const Window& window, const WindowExport& exported,
                                         uint32_t slot);
  void view_changed(const ViewChangeTimes& times, int32_t live);
  void leave_finished();
  void recover_answered(uint64_t seq, Admission admission, bool joined);
  // Takes an offered window now. MEP_ERR_NOT_FOUND: this rank has none of its own of that id, keep the
  // offer.
  [[nodiscard]] mep_result_t take_offer(uint32_t slot, uint64_t window, WindowOffer* offer);

  ResolvedConfig config_;
  SelfDescription self_;
  TransportSet transports_;
  std::vector<Peer> peers_;  // by slot; the own one has no link
  UniqueFd listener_;
  std::shared_ptr<Gate> gate_;  // how newcomers find this rank and are let in; null for threads
  TransportWait network_;
  YieldGauge yield_gauge_;
  WaitPolicy wait_policy_;
  std::shared_ptr<Window> world_window_;
  WindowDirectory directory_;
  SourceMemory source_memory_;
  std::atomic<uint32_t> allocations_{0};  // of source memory, not freed yet
  std::atomic<mep_result_t> terminal_{MEP_SUCCESS};
  uint64_t fork_generation_ = 0;

  mutable std::mutex state_mutex_;  // guards the fields below
  std::condition_variable state_changed_;
  bool left_ = false;
  uint64_t recover_calls_ = 0;
  uint64_t recover_answered_ = 0;
  bool joined_ = false;
  Admission admission_;                               // by the view that answered
  std::set<std::pair<uint32_t, uint64_t>> imported_;  // (slot, window) in use here
  ViewChangeTimes last_view_change_;
  mep_view_callback_t view_callback_ = nullptr;
  void* view_callback_user_ = nullptr;

  bool entering_ = false;  // a newcomer that is not in the view yet; the user's thread's

  // Written by the control thread; a hint for barriers that admit newcomers.
  std::atomic<uint32_t> ready_newcomers_{0};

  std::unique_ptr<ControlThread> control_;
  std::unique_ptr<RequestBell> request_bell_;
  std::unique_ptr<ProgressThread> progress_thread_;
};

// The count of forks seen by this process and its ancestors; for World::forked().
uint64_t fork_generation();

}  // namespace mep
