// The messages of a comm: sends and receives, each a personal operation that ends by what has happened to it.
//
// A message that fits a cell is posted whole (eager), as long as the ring to its receiver has room. A larger one is
// announced to the receiver (request); once a receive takes it, that answers (clear), and the data follows (data). Each
// step is one cell, and the cells of a sender are taken in their order, so messages are matched in the order in
// which they were sent:
//
//   sender                          receiver
//   kWaiting    -- eager -->        a receive that fits, or arrived_
//   kWaiting    -- request -->      the same
//   kAnnounced  <-- clear --        kWaiting becomes kMoving
//   kMoving     -- data ... -->     until all is there
//
// A message of kLeastPulled bytes on between ranks that map each other is read by the receiver, where its request says
// (message_pulls.cpp):
//
//   kAnnounced  <-- pulled --       kMoving, all is read
//   kEnded      -- confirmed -->    for a receive that has found the sender's word changed
//
// Over a network that has targets the data of a message is put straight into the receive's buffer (message_targets.cpp).
//
// A sender whose time is over withdraws what it has announced (gone): the receive that had taken it waits on. A
// receive whose time is over is forgotten, and data that comes for it is dropped.
//
// View changes touch no pair of ranks that both stay: their cells, counts and operations go on. The control thread
// leaves the changes in a list, and the user's thread goes through it, in order, at its next look (adopt).
//
// The user's thread, or the progress thread in its place, does all but install().
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <type_traits>
#include <vector>

#include "core/message/cell_rings.hpp"
#include "core/message/message_operation.hpp"
#include "core/message/offered_memory.hpp"
#include "core/message/request_blocks.hpp"
#include "core/operation/operation_channel.hpp"
#include "core/operation/peer_windows.hpp"
#include "core/operation/side_progress.hpp"
#include "core/world/progress_thread.hpp"

namespace mep {

class Messages : public SideProgress {
 public:
  // `channel` and `windows` are the comm's; the windows have the cells from `offset` on.
  Messages(const CommIdentity& comm, OperationChannel& channel, PeerWindows& windows,
           uint64_t offset);
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;
  // A message of so many bytes is read in one copy.
  static constexpr size_t kLeastPulled = size_t{32} << 10;
  static size_t window_bytes(uint32_t ranks) { return MessageLayout::of(ranks).window_bytes(); }
  // All windows are there; `view` is the first that this rank calls in.
  void open(const CommView& view);
  // A call of this comm steps `other` while it waits for a message; `own` is the comm itself, which others step.
  void set_side_progress(SideProgress* other, const ProgressClient* own) {
    side_progress_ = other;
    own_ = own;
  }

  // --- The user's thread ---
  // The operation lives until it has ended or withdraw_receive() has returned true. A look follows: it is what
  // takes cells.
  void begin(MessageOperation* operation);
  // One look at everything of this comm, as calls make it that begin an operation.
  void step_own() {
    (void)step();
    if (side_progress_ != nullptr && side_progress_->is_pending())
      side_progress_->step_from_other();
  }
  // One look at everything; whether this operation has ended. One whose time is over ends now.
  bool test(MessageOperation* operation);
  // One look at everything; whether all of these have ended.
  bool look(std::span<MessageOperation* const> operations);
  // Waits until all have ended, at most until the deadline.
  bool wait(std::span<MessageOperation* const> operations, const Deadline& deadline);
  // Runs them to their end.
  void run(std::span<MessageOperation* const> operations);
  // False: a message has come for it, or it has ended.
  bool withdraw_receive(MessageOperation* operation);
  // Whether a message has come, or is known of, that a receive would take now; where none can come any more, an
  // error.
  [[nodiscard]] mep_result_t probe(int32_t source, int32_t tag, mep_message_t* message,
                                   bool* found);
  // How often the comm was revoked, as far as looks have seen it.
  uint64_t revocations() const { return revocations_; }
  // A look at everything that is pending; whether something moved.
  bool step();
  // Before this rank leaves the world: waits until peers over a network have taken what was posted, for what is on
  // its way then is lost. Not for long.
  void leave_world();
  // Before the comm's windows go: nothing is sent from this object's memory any more.
  void close();

  // For people who ask about a request.
  [[nodiscard]] mep_result_t describe(const MessageOperation& operation, mep_op_info_t* info) const;

  // For the requests of this comm's messages.
  RequestBlocks& request_blocks() { return request_blocks_; }

  // Operations have begun and not ended.
  bool has_pending() const { return pending_ != 0; }
  // Also a peer that leaves may wait to be told what was taken, or a receiver for a verdict.
  bool is_pending() const override { return has_pending() || may_be_asked_ || may_post_; }
  void step_from_other() override { (void)step(); }
  // The progress thread.
  Progress progress();

  // --- The control thread ---
  void install(std::shared_ptr<const CommChange> change);

 private:
  // A message that no receive has taken yet.
  struct Arrived {
    int32_t source = 0;
    MessageHeader header;
    std::vector<std::byte> data;  // of an eager one
  };
  // The last that the receiver of a known send is told.
  struct Verdict {
    CellKind kind{};  // kGone or kConfirmed
    uint64_t sender = 0;
    uint64_t receiver = 0;
  };
  struct Peer {
    uint64_t incarnation = 0;  // 0: absent
    mep_result_t absence = MEP_ERR_PEER_FAILED;
    // Sends to it, by state.
    MessageList waiting;
    MessageList announced;
    MessageList moving;
    MessageList incoming;  // receives that have taken a message of it
    uint32_t owed_answers = 0;
    uint32_t reading = 0;    // of these, messages that are being read
    bool is_barred = false;  // the system does not let this rank read its memory
    std::vector<Verdict> verdicts;
    // Numbers of its sends whose receives have ended before all was read.
    std::vector<uint64_t> dropped;
    uint32_t known_sends = 0;  // announced or moving
    bool owes_leaving = false;
    bool has_posts() const {
      return owed_answers != 0 || !verdicts.empty() || !dropped.empty() || owes_leaving ||
             !waiting.empty() || !moving.empty();
    }
  };

  // A look has turns: of each peer so many cells are taken, and so many are posted to each. So data that two ranks
  // send each other moves in both directions at one time, and a look still moves as many as a ring has.
  static constexpr uint32_t kCellsInTurn = 8;
  static constexpr uint32_t kTurns = 8;
  // So many bytes of the messages that are read.
  static constexpr size_t kReadInTurn = size_t{256} << 10;
  // A part that is put to a target.
  static constexpr size_t kPutInTurn = size_t{256} << 10;

  // Calls (messages.cpp).
  void step_all();
  bool take_turn();
  void queue(MessageOperation* operation);
  void record(MessageOperation* operation) const;
  MessageList& list_of(const MessageOperation& operation);
  void move_to(MessageOperation* operation, MessageOperation::State state);
  static bool is_known_send(const MessageOperation& operation) {
    return operation.is_send && operation.state != MessageOperation::State::kWaiting;
  }
  // Notes something that a peer is to be told.
  template <typename Item>
  void owe(std::vector<Item>* list, const std::type_identity_t<Item>& item) {
    (void)comm_.world().attempt([&] { list->push_back(item); });
    may_post_ = true;
  }
  void owe_answer(MessageOperation* operation);
  void forget_answer(MessageOperation* operation);
  void end(MessageOperation* operation, mep_result_t result, const char* text);
  void end_early(MessageOperation* operation, mep_result_t result, const char* text);
  void end_overdue(MessageOperation* operation);
  void end_absent(MessageOperation* operation);
  void end_all(mep_result_t result, const char* text);
  template <typename Function>
  void for_each_pending(Function&& function);
  bool can_move(const MessageOperation& operation) const;
  bool others_live() const;
  [[nodiscard]] mep_result_t fail_absent(const MessageOperation& operation) const;
  static void describe(int32_t source, const MessageHeader& header, mep_message_t* message);

  // Matching (message_matching.cpp).
  bool match_arrived(MessageOperation* operation);
  bool offer(int32_t source, const MessageHeader& header, const std::byte* data);
  bool accept(MessageOperation* operation, int32_t source, const MessageHeader& header,
              const std::byte* data);
  bool take_from(uint32_t peer);
  void take_cell(uint32_t peer, const MessageHeader& header);
  void take_message(uint32_t peer, const MessageHeader& header);
  void take_clear(uint32_t peer, const MessageHeader& header);
  void take_data(uint32_t peer, const MessageHeader& header);
  void take_gone(uint32_t peer, const MessageHeader& header);
  void wait_again(MessageOperation* operation);

  // Posting (message_posting.cpp).
  bool owes_posts(uint32_t peer) const {
    return peers_[peer].has_posts() || rings_.owes_taken(peer);
  }
  bool post_at_once(MessageOperation* operation);
  bool post_all();
  bool post_to(uint32_t peer);
  bool post_next(uint32_t rank);
  bool post_answer(uint32_t rank);
  bool post_verdict(uint32_t rank);
  bool post_dropped(uint32_t rank);
  bool post_leaving(uint32_t rank);
  bool post_eager(uint32_t rank, const MessageOperation& operation);
  bool post_waiting(uint32_t rank);
  bool post_part(uint32_t rank);

  // One copy (message_pulls.cpp).
  bool reads(uint32_t rank) const;
  bool offer_memory(const MessageOperation& operation, MessageMemory* memory);
  bool begin_reading(MessageOperation* operation, const MessageHeader& header,
                     const std::byte* data);
  void stop_reading(MessageOperation* operation);
  // A receive whose message is read, and whose sender was not told of it.
  static bool owes_pulled(const MessageOperation& operation) {
    using Pull = MessageOperation::Pull;
    return operation.pull == Pull::kReading ||
           (operation.pull == Pull::kRead && operation.owes_answer);
  }
  bool read_turn();
  void read_part(uint32_t rank);
  void copy_own_part(MessageOperation* operation, size_t bytes);
  void settle(uint32_t rank, MessageOperation* operation);
  bool was_pulled(MessageOperation* operation);
  void end_pulled(MessageOperation* operation, uint64_t receiver);
  void take_pulled(uint32_t peer, const MessageHeader& header);
  void take_confirmed(uint32_t peer, const MessageHeader& header);

  // Straight into the receiver's buffer (message_targets.cpp).
  bool open_target(uint32_t rank, MessageOperation* operation);
  void close_target(MessageOperation* operation);
  bool is_sent(MessageOperation* operation) const;
  bool put_part(uint32_t rank, MessageOperation* operation);
  void stop_sending(MessageOperation* operation);

  // View changes (message_changes.cpp).
  bool adopt();
  std::shared_ptr<const CommChange> next_change() const;
  bool adopt(const CommChange& change);
  void lose(uint32_t rank, const CommView& view);
  void end_lost(MessageOperation* operation, uint32_t rank);

  const CommIdentity& comm_;
  OperationChannel& channel_;
  PeerWindows& windows_;
  SideProgress* side_progress_ = nullptr;
  const ProgressClient* own_ = nullptr;

  CellRings rings_;
  OfferedMemory offered_;
  RequestBlocks request_blocks_;
  uint64_t epoch_ = 0;  // adopted
  std::vector<Peer> peers_;
  MessageList receives_;        // that no message has come for
  std::list<Arrived> arrived_;  // in the order in which they came
  uint64_t revocations_ = 0;
  uint64_t number_ = 0;   // of the last call
  uint32_t pending_ = 0;  // operations that have begun and not ended
  struct Reading {
    uint32_t messages = 0;  // of all peers
    uint32_t next = 0;      // the peer whose turn it is
  } reading_;
  bool may_post_ = false;  // there may be something to post, or to tell of what was taken
  bool is_cut_ = false;    // a turn ended before all had moved that could
  bool is_closed_ = false;
  bool may_be_asked_ = false;  // cells of a peer over a network were taken

  struct Changes {
    std::mutex mutex;
    std::deque<std::shared_ptr<const CommChange>> list;  // not adopted yet, oldest first
  };
  mutable Changes changes_;
};

// `function` may end the operation that it is given.
template <typename Function>
void Messages::for_each_pending(Function&& function) {
  const auto visit = [&](MessageList& list) {
    for (MessageOperation* each = list.first(); each != nullptr;) {
      MessageOperation* const behind = each->behind;
      function(each);
      each = behind;
    }
  };
  visit(receives_);
  for (Peer& peer : peers_) {
    visit(peer.waiting);
    visit(peer.announced);
    visit(peer.moving);
    visit(peer.incoming);
  }
}

}  // namespace mep
