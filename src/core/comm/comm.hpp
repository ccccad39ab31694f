// A communicator: an ordered subset of a world's slots, with its collectives and what else of it takes part
// in view changes.
//
// It answers for the comm's life (made by its members together, closed without loss for the others), for who
// is inside a call on it, and for handing the world's view changes to its collectives and its other clients.
// core/operation and core/coll say what an operation is and how it ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "core/coll/collectives.hpp"
#include "core/comm/call_gate.hpp"
#include "core/comm/losses.hpp"
#include "core/comm/view_participant.hpp"
#include "core/membership/membership.hpp"
#include "core/message/messages.hpp"
#include "core/operation/comm_identity.hpp"
#include "core/operation/reports.hpp"
#include "core/world/comm_counters.hpp"
#include "core/world/progress_thread.hpp"
#include "core/world/world.hpp"
#include "mep.h"

namespace mep {

class Comm : public WorldParticipant, public ProgressClient {
 public:
  // Two steps, so that one thread can make several ranks of a process: begin() sends this rank's
  // windows to its peers, finish() waits for theirs.
  // `id` 0: it follows from the name; a renamed comm keeps the one that it was made with.
  Comm(std::shared_ptr<World> world, const std::string& name, std::vector<uint32_t> slots,
       uint64_t id = 0);
  static uint64_t id_of(const std::string& name);
  // The id of a child of the `number`-th split of the comm `parent`: another for each, whatever comms are renamed to.
  static uint64_t child_id(uint64_t parent, uint32_t number, int32_t color);
  // The id of a comm that the ranks of `slots` make by themselves; a view with others in them gives another.
  static uint64_t listed_id(const std::string& name, const std::vector<uint32_t>& slots,
                            const std::vector<uint64_t>& incarnations);
  // The id of the world, and of comms over all of it that were made in a later view of it.
  static uint64_t spanning_id(const std::string& name, uint64_t world_epoch);
  static bool is_spanning(uint64_t id) { return (id & kSpanning) != 0; }
  ~Comm() override;
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  // From begin() on the comm takes part in view changes. MEP_ERR_PEER_FAILED, here or from finish(): the
  // membership is not that of its members any more. `members` null: whoever is in the view now; a
  // joiner's comms, of which it learns more with the view that lets it in.
  [[nodiscard]] mep_result_t begin(uint64_t epoch, uint64_t next_seq,
                                   const CommMembers* members = nullptr);
  [[nodiscard]] mep_result_t finish(const Deadline& deadline);
  // Before begin(): joiners make it together with an object of another comm, which describes it.
  void belong_to_another() { stands_alone_ = false; }
  // Before close() of a comm that this rank could not finish: the others' operations on it end.
  void give_up_making();
  void close();
  // The same while the world goes on, of a comm that was in use: what succeeded here will do so on all
  // others. Waits for them, and for a view change under way.
  void close_after_changes();
  // The members of a comm over `slots`, all of them this comm's, as the user's thread sees this one.
  CommMembers members_of(const std::vector<uint32_t>& slots) const;

  const CommIdentity& identity() const { return identity_; }
  World& world() const { return identity_.world(); }
  const std::shared_ptr<World>& world_ptr() const { return identity_.world_ptr(); }
  uint64_t id() const { return identity_.id(); }
  const std::string& name() const { return identity_.name(); }
  [[nodiscard]] mep_result_t rename(const char* name);
  uint32_t rank() const { return identity_.rank(); }
  uint32_t size() const { return identity_.size(); }
  const std::vector<uint32_t>& slots() const { return identity_.slots(); }
  uint32_t timeout_ms() const { return identity_.timeout_ms(); }
  void set_timeout_ms(uint32_t ms) { identity_.set_timeout_ms(ms); }

  // View in force for the next call. Any thread.
  std::shared_ptr<const CommView> latest_view() const {
    return collectives_.channel().latest_view();
  }

  // --- The user's thread ---

  // Around every call of the user that may touch windows or what belongs to the user's thread. False:
  // another thread is inside.
  bool enter_call() { return gate_.enter(); }
  // Within a call: for the life of the scope its thread waits for the control thread and uses no window,
  // so that views may come and joiners be connected. Afterwards it finds what has changed at its next
  // operation, as a new call does.
  class WaitingScope {
   public:
    explicit WaitingScope(Comm& comm) : comm_(comm) { comm_.gate_.begin_waiting(); }
    ~WaitingScope() { comm_.gate_.end_waiting(); }
    WaitingScope(const WaitingScope&) = delete;
    WaitingScope& operator=(const WaitingScope&) = delete;

   private:
    Comm& comm_;
  };
  // Pending operations are the progress thread's from then on, where there is one, else the next waiter's.
  void leave_call() {
    if (collectives_.idle() && !messages_.has_pending()) [[likely]]
      return gate_.leave();
    leave_pending();
  }

  Collectives& collectives() { return collectives_; }
  const Collectives& collectives() const { return collectives_; }
  Messages& messages() { return messages_; }
  // Runs one collective to its end.
  [[nodiscard]] mep_result_t run(Collective kind, const CollectiveArgs& args) {
    return collectives_.run(kind, args);
  }
  const CommView& adopted() const { return collectives_.adopted(); }

  // Changes that no call of this rank has reported yet: its next dispatch or combine does. Their results are
  // each rank's own, so these reports are too, apart from the decisions.
  Reports& personal_reports() { return personal_reports_; }
  // A change that a collective has ended by was gone over: the next call on this comm reports it.
  void defer_report(Reports::Report report);

  // The user's thread's part of it.
  Losses& losses() { return losses_; }
  // See Losses::move_to().
  void keep_losses_in(uint64_t* memory);

  CommCounters& counters() { return counters_; }
  const CommCounters& counters() const { return counters_; }

  // --- What belongs to it ---
  void add_client(ViewParticipant* client) { clients_.add(client); }
  void remove_client(ViewParticipant* client);
  ViewParticipants& clients() { return clients_; }
  // How many comms were split off and EP objects made from it. The control thread tells them to joiners,
  // relaxed: nothing else follows from them.
  uint32_t child_number() const { return child_number_.load(std::memory_order_relaxed); }
  void set_child_number(uint32_t number) { child_number_.store(number, std::memory_order_relaxed); }
  uint32_t next_ep_number() { return ep_number_.fetch_add(1, std::memory_order_relaxed); }
  void set_ep_number(uint32_t number) { ep_number_.store(number, std::memory_order_relaxed); }

  // --- The control thread (WorldParticipant) ---
  uint64_t comm_id() const override { return id(); }
  const membership::SlotSet& member_slots() const override { return identity_.member_slots(); }
  bool is_replicated(uint64_t channel) const override { return channel == collectives_.id(); }
  void describe(std::vector<membership::ChannelState>* channels) const override;
  void stop() override;
  bool is_still() const override;
  void freeze(std::vector<membership::ChannelState>* channels) override;
  bool holds(uint64_t channel, uint64_t seq) override;
  void give_catch_up(uint64_t channel, uint64_t from_seq, uint64_t to_seq,
                     const CatchUpSink& sink) override;
  void take_catch_up(uint64_t channel, uint64_t seq, uint32_t source,
                     std::span<const std::byte> bytes) override;
  void prepare() override;
  void install(const membership::InstallView& change, const membership::AffectedComm* affected,
               bool admits) override;
  void terminate() override;
  bool quiesced() const override;
  bool stands_alone() const override { return stands_alone_; }
  bool spans_world() const override { return is_spanning(id()); }
  CommDescription description() const override;
  CommMetrics metrics() const override;

  // --- The progress thread (ProgressClient) ---
  bool enter_look() override { return gate_.enter_look(); }
  bool try_look() override { return gate_.try_look(); }
  Progress look() override;
  void leave_look() override { gate_.leave_look(); }

 private:
  // A comm's window has the collectives' part, then the messages'.
  static size_t messages_offset(uint32_t size) {
    constexpr size_t kLine = MessageLayout::kLine;
    return (Collectives::window_bytes(size) + kLine - 1) / kLine * kLine;
  }
  static size_t window_bytes(uint32_t size) {
    return messages_offset(size) + Messages::window_bytes(size);
  }
  // In the id of a comm over the whole world.
  static constexpr uint64_t kSpanning = 2;
  void leave_pending();
  void note_change(const CommView& before, const CommView& after);
  void ring() const { doorbell_ring(world().doorbell()); }

  CommIdentity identity_;
  bool opened_ = false;  // the control thread knows it
  bool stands_alone_ = true;
  mutable CallGate gate_;
  Reports personal_reports_;
  Collectives collectives_;
  Messages messages_;
  ViewParticipants clients_;
  Losses losses_;
  std::atomic<uint32_t> child_number_{0};
  std::atomic<uint32_t> ep_number_{0};
  CommCounters counters_;
};

}  // namespace mep
