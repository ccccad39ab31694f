// A communicator: an ordered subset of a world's slots, with one channel for its collectives.
//
// Two threads meet here: the user's (one at a time) and the world's control thread. What the user's
// thread works with (adopted_, cells_, bulk_, seq_) is its own; the control thread changes it never,
// but leaves a new view and verdicts under mutex_ and restarts the channel's word. The user's thread
// sees at its next look that the word is not what it was, and adopts them. Only between wedge and
// restart, when the user's thread touches no window, does the control thread read cells and zero words.
//
// What a view change decides is a verdict on numbered calls, the same on all survivors: those up to n_star
// succeed, those from there up to `next` end by its result, also if their rank makes them only later, and
// `next` is the first call of the new epoch. So the k-th call of a comm ends alike everywhere.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "core/coll/bulk.hpp"
#include "core/coll/cells.hpp"
#include "core/coll/operation.hpp"
#include "core/comm/channel.hpp"
#include "core/comm/kept_name.hpp"
#include "core/membership/membership.hpp"
#include "core/world/world.hpp"
#include "mep.h"

namespace mep {

// What a comm's members are, at one epoch. Never changes once it is published.
struct CommView {
  uint64_t epoch = 1;
  uint64_t world_epoch = 1;
  std::vector<uint32_t> live;  // ranks, rising
  std::vector<uint64_t> live_bits;
  std::vector<uint64_t> left_bits;     // absent ones that left in order, as far as this rank knows
  std::vector<uint64_t> incarnations;  // by rank, 0: absent
  bool is_live(uint32_t rank) const {
    return rank / 64 < live_bits.size() && ((live_bits[rank / 64] >> (rank % 64)) & 1u) != 0;
  }
};

// What a view change decided of the operations of one epoch.
struct Verdict {
  uint64_t epoch = 0;  // of the operations
  uint64_t n_star = 0;
  uint64_t next = 0;                          // first of the next epoch
  mep_result_t result = MEP_ERR_PEER_FAILED;  // of those between
  bool is_reported = false;                   // also by calls that are made later
  std::string text;
  std::vector<uint64_t> missing;         // ranks that the change took away
  std::shared_ptr<const CommView> view;  // that follows
};

// About the last finished operation, for mep_comm_last_op and friends.
struct OperationRecord {
  bool any = false;
  uint64_t epoch = 0;
  uint64_t seq = 0;
  mep_result_t result = MEP_SUCCESS;
  bool input_intact = true;
  std::vector<uint64_t> contributors;  // filled by note_record only when the set changed
  std::vector<uint64_t> failed;
  // From then on a record of a comm of that size is kept without allocating.
  void reserve(uint32_t ranks) {
    contributors.reserve((size_t{ranks} + 63) / 64);
    failed.reserve((size_t{ranks} + 63) / 64);
  }
};

// What else of a comm takes part in view changes: EP objects. Called by the control thread under the
// comm's mutex.
class ViewClient {
 public:
  virtual ~ViewClient() = default;
  // Channels with what is done now; freezes nothing.
  virtual void describe(std::vector<membership::ChannelState>* channels) const = 0;
  // Whether this rank needs nothing more for `seq` of `channel` or knows no such channel.
  virtual bool holds(uint64_t channel, uint64_t seq) const = 0;
  virtual void wedge(std::vector<membership::ChannelState>* channels) = 0;
  // For newcomers: its name, and all that they must know to make their part of it.
  virtual const std::string& name() const = 0;
  virtual void describe_object(std::vector<std::byte>* out) const = 0;
  // See WorldClient::quiesced().
  virtual bool quiesced() const { return true; }
  virtual void prepare() = 0;
  // verdict->view follows, and `decision` says of each channel what is done and where it goes on; both
  // null: nothing changed, go on.
  virtual void install(const Verdict* verdict, const membership::Proposal* decision) = 0;
  // The world has ended for this rank: when it returns, no thread posts anything more.
  virtual void terminate() {}
};

class Comm : public WorldClient {
 public:
  // Two steps, so that one thread can make several ranks of a process: begin() sends this rank's
  // windows to its peers, finish() waits for theirs.
  // `id` 0: it follows from the name; a renamed comm keeps the one that it was made with.
  Comm(std::shared_ptr<World> world, std::string name, std::vector<uint32_t> slots,
       uint64_t id = 0);
  static uint64_t id_of(const std::string& name);
  // Of the `number`-th split of the comm `parent`: another one for each, whatever comms are renamed to.
  static uint64_t child_id(uint64_t parent, uint32_t number, int32_t color);
  // Of the world, and of comms over all of it that were made in a later view of it.
  static uint64_t spanning_id(const std::string& name, uint64_t world_epoch);
  static bool is_spanning(uint64_t id) { return (id & kSpanning) != 0; }
  ~Comm() override;
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  // From begin() on the comm takes part in view changes. MEP_ERR_PEER_FAILED, here or from finish(): the
  // membership is not that of its birth any more. `birth` null: whoever is in the view now; a
  // newcomer's comms, of which it learns more with the view that lets it in.
  [[nodiscard]] mep_result_t begin(uint64_t epoch, uint64_t next_seq,
                                   const CommBirth* birth = nullptr);
  [[nodiscard]] mep_result_t finish(const Deadline& deadline);
  // Before close() of a comm that this rank could not finish: the others' operations on it end.
  void give_up_making();
  void close();
  // The same while the world goes on, of a comm that was in use: what succeeded here will do so on all
  // others. Waits for them, and for a view change under way.
  void close_after_changes();
  // Of a comm over `slots`, all of them this comm's: as the user's thread sees this one.
  CommBirth birth_of(const std::vector<uint32_t>& slots) const;

  World& world() const { return *world_; }
  const std::shared_ptr<World>& world_ptr() const { return world_; }
  uint64_t id() const { return id_; }
  // Any thread; valid as long as this object, whatever it is renamed to.
  const std::string& name() const { return name_.get(); }
  [[nodiscard]] mep_result_t rename(const char* name);
  uint32_t rank() const { return rank_; }
  uint32_t size() const { return static_cast<uint32_t>(slots_.size()); }
  const std::vector<uint32_t>& slots() const { return slots_; }
  uint32_t timeout_ms() const { return timeout_ms_.load(std::memory_order_relaxed); }
  // Relaxed: a value for later calls, it orders nothing.
  void set_timeout_ms(uint32_t ms) { timeout_ms_.store(ms, std::memory_order_relaxed); }

  // --- The user's thread ---

  // Around every call of the user that may touch windows or what belongs to the user's thread. False:
  // another thread is inside.
  // Acquire: publishes what the call before it left, on whichever thread, and what the control thread
  // had done when it found nobody inside; see quiesced().
  bool enter_call() {
    uint32_t nobody = 0;
    return in_call_.compare_exchange_strong(nobody, kUsesWindows, std::memory_order_acquire,
                                            std::memory_order_relaxed);
  }
  // Within a call: for the life of the scope its thread waits for the control thread and uses no window,
  // so that views may come and newcomers be connected. Afterwards it finds what has changed at its next
  // operation, as a new call does.
  class WaitingScope {
   public:
    // Release: what the call did to windows so far is over for who sees it.
    explicit WaitingScope(Comm& comm) : comm_(comm) {
      comm_.in_call_.store(kWaits, std::memory_order_release);
    }
    // Acquire: as enter_call().
    ~WaitingScope() { (void)comm_.in_call_.exchange(kUsesWindows, std::memory_order_acquire); }
    WaitingScope(const WaitingScope&) = delete;
    WaitingScope& operator=(const WaitingScope&) = delete;

   private:
    Comm& comm_;
  };
  // Release: publishes what the call did to windows and to this object to the next call and to
  // quiesced().
  void leave_call() { in_call_.store(0, std::memory_order_release); }

  // Runs one operation to its end.
  [[nodiscard]] mep_result_t run(Collective kind, const CollectiveArgs& args);
  // Checks and queues; `operation` must live until it is finished or failed.
  [[nodiscard]] mep_result_t start(Collective kind, const CollectiveArgs& args,
                                   Operation* operation);
  // The largest of what the ranks give: one operation of this channel, no call of the user's.
  [[nodiscard]] mep_result_t agree_largest(uint64_t own, uint64_t* largest);
  // Steps queued operations; true once `operation` has its final result.
  bool test(Operation* operation);
  [[nodiscard]] bool wait(Operation* operation, const Deadline& deadline);
  // The operation's time is over: asks for a verdict that all ranks share, once. The operation ends by
  // it, in wait() or test().
  void ask_verdict(Operation* operation);
  // Asks for the verdict and waits for it.
  mep_result_t end_of_wait(Operation* operation);
  bool idle() const { return first_ == nullptr; }
  void drop_dormant() { dormant_.clear(); }
  // They are clients too.
  size_t dormant_objects() const { return dormant_.size(); }

  // View in force for the next call; adopts what the control thread has left. Any thread.
  std::shared_ptr<const CommView> latest_view() const;
  // Fills info from the record; MEP_ERR_CAPACITY if a bitmap is too short.
  [[nodiscard]] mep_result_t last_op(mep_op_info_t* info) const;
  [[nodiscard]] mep_result_t describe(const Operation& operation, mep_op_info_t* info) const;

  // The view change that ended an operation last. Who goes on all the same defers its report: the next call on
  // this comm gives it.
  std::shared_ptr<const Verdict> last_report() const { return last_verdict_; }
  void defer_report(std::shared_ptr<const Verdict> report);

  // --- For step functions (the user's thread) ---
  Cells& cells() { return cells_; }
  Bulk& bulk() { return bulk_; }
  const CommView& adopted() const { return *adopted_; }
  // Bytes that `source` contributed: in its cell, or retained.
  const std::byte* contribution(const Operation& operation, uint32_t source) const;
  std::vector<const void*>& scratch_pointers() { return scratch_pointers_; }

  // Large puts are made inside a PostingScope: a view change waits until no thread is in one, so that no
  // byte of an old epoch lands in memory that the next one uses.
  class PostingScope {
   public:
    explicit PostingScope(Comm& comm) : comm_(comm) {
      // Sequentially consistent, as the wedge: either it sees this flag, or allowed() sees the wedge.
      comm_.posting_.fetch_add(1, std::memory_order_seq_cst);
      allowed_ = comm_.channel_.undisturbed(comm_.adopted_->epoch);
    }
    // Release: what was put is there before the control thread goes on.
    ~PostingScope() { comm_.posting_.fetch_sub(1, std::memory_order_release); }
    PostingScope(const PostingScope&) = delete;
    PostingScope& operator=(const PostingScope&) = delete;
    bool allowed() const { return allowed_; }

   private:
    Comm& comm_;
    bool allowed_;
  };

  // --- Windows of EP objects ---
  // Remotes by comm rank for a window that all members share under the same id.
  void add_client(ViewClient* client);
  void remove_client(ViewClient* client);
  // More than `own`, those that go with the comm itself.
  bool has_clients(size_t own = 0) const;
  uint32_t child_number() const { return child_number_.load(std::memory_order_relaxed); }
  void set_child_number(uint32_t number) { child_number_.store(number, std::memory_order_relaxed); }
  uint32_t next_ep_number() { return ep_number_.fetch_add(1, std::memory_order_relaxed); }
  void set_ep_number(uint32_t number) { ep_number_.store(number, std::memory_order_relaxed); }
  // Changes that no call of this rank has reported yet, the oldest first: its next dispatch or combine does.
  // Their results are each rank's own, so these reports are too, apart from the verdicts.
  bool has_personal_report() const {
    // Relaxed: a hint; the reports themselves are under the mutex.
    return personal_report_count_.load(std::memory_order_relaxed) != 0;
  }
  // Null: there is none.
  std::shared_ptr<const Verdict> take_personal_report();
  // Of that epoch and before: a call has reported them.
  void drop_personal_reports(uint64_t epoch);
  // A newcomer's objects that nobody has attached to yet.
  void keep_dormant(std::unique_ptr<ViewClient> object) { dormant_.push_back(std::move(object)); }
  // Null: there is none of that name.
  std::unique_ptr<ViewClient> take_dormant(const std::string& name);

  // --- The control thread (WorldClient) ---
  uint64_t comm_id() const override { return id_; }
  const membership::SlotSet& member_slots() const override { return member_slots_; }
  bool is_replicated(uint64_t channel) const override { return channel == channel_.id(); }
  void describe(std::vector<membership::ChannelState>* channels) const override;
  void wedge(std::vector<membership::ChannelState>* channels) override;
  bool holds(uint64_t channel, uint64_t seq) override;
  void give_flush(uint64_t channel, uint64_t from_seq, uint64_t to_seq,
                  const FlushSink& sink) override;
  void take_flush(uint64_t channel, uint64_t seq, uint32_t source,
                  std::span<const std::byte> bytes) override;
  void prepare() override;
  void install(const membership::InstallView& change,
               const membership::AffectedComm* affected) override;
  void terminate() override;
  bool quiesced() const override;
  CommDescription description() const override;

 private:
  // In the id of a comm over the whole world.
  static constexpr uint64_t kSpanning = 2;

  mep_result_t begin_operation(Operation* operation);
  void take_next_number(Operation* operation);
  mep_result_t take_place(Operation* operation);
  void stamp(Operation* operation);
  void push_back(Operation* operation);
  void pop_front();
  void replace_queue();
  void drop(Operation* operation);
  bool advance_if_possible(Operation* operation);
  bool advance(Operation* operation);
  bool advance_undisturbed(Operation* operation);
  bool settle(Operation* operation);
  std::shared_ptr<const Verdict> find_verdict(const Operation& operation) const;
  bool succeed_settled(Operation* operation);
  mep_result_t settle_result(Operation* operation);
  static void restore_input(Operation* operation);
  bool fail_settled(Operation* operation, std::shared_ptr<const Verdict> verdict);
  mep_result_t check_root_lives(const Operation& operation) const;
  // No view change is under way; or none will end any more.
  bool changes_are_over() const;
  mep_result_t settle_changes();
  mep_result_t adopt(const Verdict& verdict);
  mep_result_t reach_newcomers(const CommView& view);
  bool finish_operation(Operation* operation, mep_result_t result);
  void drain(const Deadline& deadline);
  void note_record(const Operation& operation);
  void note_missing(const Operation& operation);
  mep_result_t fill_info(const OperationRecord& record, mep_op_info_t* info) const;
  std::shared_ptr<const CommView> first_view(const CommBirth& birth, uint64_t epoch) const;
  void drop_unreached();
  std::shared_ptr<CommView> make_view(const membership::View& view, uint64_t epoch) const;
  bool cells_are_of_the_view() const { return adopted_->epoch == view_->epoch; }
  void gather_held(uint64_t done);
  void keep_for_others();
  void wait_for_posters() const;

  const std::shared_ptr<World> world_;
  KeptName name_;  // set under mutex_
  const uint64_t id_;
  const std::vector<uint32_t> slots_;  // rank -> slot
  uint32_t rank_ = 0;
  membership::SlotSet member_slots_;
  std::atomic<uint32_t> timeout_ms_;
  bool opened_ = false;  // the control thread knows it

  std::shared_ptr<Window> window_;
  std::vector<Remote> remotes_;  // by rank

  // The user's thread.
  Channel channel_;
  std::atomic<uint32_t> posting_{0};  // threads inside a PostingScope
  // In no call, in one that may use windows, or in a WaitingScope.
  static constexpr uint32_t kUsesWindows = 1;
  static constexpr uint32_t kWaits = 2;
  mutable std::atomic<uint32_t> in_call_{0};
  std::atomic<uint64_t> adopted_epoch_{0};  // of adopted_, for the control thread
  std::shared_ptr<const CommView> adopted_;
  std::vector<uint64_t> remote_incarnations_;    // by rank: whose windows remotes_ reaches
  uint64_t seq_ = 0;                             // of the last call
  uint64_t verdict_asked_seq_ = 0;               // of the adopted epoch
  std::shared_ptr<const Verdict> last_verdict_;  // that ended an operation
  std::shared_ptr<const Verdict> deferred_;      // see defer_report()
  uint32_t rooted_calls_ = 0;  // hash of the small rooted calls since the last that waited for all
  Cells cells_;
  Bulk bulk_;
  Operation* first_ = nullptr;  // the queue, in the order of the calls; linked by Operation::behind
  Operation* last_ = nullptr;
  OperationRecord record_;
  std::vector<const void*> scratch_pointers_;
  // Counts; the control thread tells them to newcomers, relaxed: nothing else follows from them.
  std::atomic<uint32_t> child_number_{0};
  std::atomic<uint32_t> ep_number_{0};
  std::vector<std::unique_ptr<ViewClient>> dormant_;

  // Shared, under mutex_.
  mutable std::mutex mutex_;
  std::shared_ptr<const CommView> view_;                 // the latest
  std::deque<std::shared_ptr<const Verdict>> verdicts_;  // not adopted yet, oldest first
  std::map<uint64_t, RetainedOperation> retained_;       // by seq, until answered
  std::vector<ViewClient*> clients_;
  std::unordered_map<uint64_t, ViewClient*> channel_clients_;  // by channel
  std::deque<std::shared_ptr<const Verdict>> personal_reports_;
  std::atomic<size_t> personal_report_count_{0};
  uint64_t held_ = 0;  // while wedged: up to where this rank holds all contributions
  // While wedged: what is done here and may be lacking elsewhere, kept before the cells are zeroed.
  std::map<uint64_t, RetainedOperation> given_;
};

}  // namespace mep
