// One buffer of an EP object: a window, a channel, and the dispatch and combine that use them.
//
// A use is a dispatch and, if there is one, its combine. Uses are counted from 1 in each epoch of the
// comm; use 0 is what was dispatched in an earlier epoch and not combined before it ended. The words
// of a use and its counts lie at the parity of the use; rows have one place only.
//
// Why nothing is written while it is still read:
//   - A rank that starts use n has ended use n - 1 (else MEP_ERR_BUSY), and use n - 1 could end only after all
//     had started it. So ranks are at most one use apart, and what lies at a parity is two uses old
//     when it is written again: words and counts.
//   - Rows of use n are written to a rank after it gave those of use n - 1 back: packed, its counts of
//     use n say so; slotted, its combine word of use n - 1 (kNone if it started n without combine).
//   - combine_in of a rank is written in the combine of use n by ranks that hold its rows of use n, so
//     it has ended the combine of n - 1 which read it.
//   - combine_out of a rank is read by peers in the combine of use n until they start use n + 1; their
//     rows of use n + 1 tell the owner. So the caller may write it again once the next dispatch on the
//     buffer was received, and that is when there are rows to write it for. A dispatch that a view change cuts is
//     received without the rows of a peer that may still read. So the owner first says in its window of which
//     dispatch combine_out is from then on (y_of), and a reader that finds another one after it has summed leaves
//     that rank's terms out and fails.
//
// Two threads meet here as in a comm: the user's and the world's control thread. The latter touches only the
// channel, the words between freeze and install, and what is under the channel's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/comm.hpp"
#include "core/ep/ep_buffers.hpp"
#include "core/ep/ep_config.hpp"
#include "core/ep/host/ep_expansion.hpp"
#include "core/ep/host/ep_layout.hpp"
#include "core/ep/host/ep_waits.hpp"
#include "core/ep/routing.hpp"
#include "core/operation/operation_engine.hpp"
#include "core/operation/operation_record.hpp"
#include "core/operation/peer_windows.hpp"
#include "protocol/ep_call.hpp"
#include "protocol/signal_word.hpp"

namespace mep {

struct EpOperation : OperationState<EpOperation> {
  uint32_t phase = 0;      // of the step function
  uint32_t cursor = 0;     // of the step function
  bool sent = false;       // all that other ranks need from this one is with them
  bool agreed = false;     // see EpBuffer::agree_on_result()
  bool replays = false;    // a dispatch by the routing of an earlier one
  bool has_rows = true;    // false: a replay of the routing alone
  bool overtaken = false;  // by a view change: the call is to begin it again
  std::string text;        // of an error; outputs may still have to be delivered
  TimeLimit limit;         // of its last call
  EpWaits waits;           // of its last call
  // The change whose error it answers; null: it ended otherwise.
  std::shared_ptr<const CommChange> ended_by;
};

class EpBuffer {
 public:
  EpBuffer(Comm& comm, const EpShape& shape, const EpLayout& layout, uint64_t id);
  EpBuffer(const EpBuffer&) = delete;
  EpBuffer& operator=(const EpBuffer&) = delete;

  // --- Creation, in this order ---
  [[nodiscard]] mep_result_t offer();
  // The windows of those that are in `view`, the comm's.
  [[nodiscard]] mep_result_t receive(const CommView& view, const Deadline& deadline);
  // By rank: this rank reads that rank's window in place.
  std::span<const uint64_t> mapped_bits() const { return mapped_bits_; }
  void start(std::shared_ptr<const CommView> view);
  // Whether `rank` reads this rank's window in place.
  void set_pulls(uint32_t rank, bool pulls) { pulls_[rank] = pulls ? 1 : 0; }
  // The same without asking: mapping is mutual between a joiner and a member.
  void pull_where_mapped();

  // --- The user's thread ---
  // Null: not this half of it; one of them is not.
  [[nodiscard]] mep_result_t dispatch(EpHandle& handle, const DispatchInput* send,
                                      const DispatchOutput* receive, const ExpertMap* map);
  [[nodiscard]] mep_result_t combine(EpHandle& handle, const CombineInput* send,
                                     const CombineOutput* receive);
  [[nodiscard]] mep_result_t last_op(mep_op_info_t* info) const;
  void fill_view(mep_ep_view_t* view) const;
  // The memory that fill_view() showed; the buffer can only be destroyed then.
  std::shared_ptr<const void> take_memory();
  std::byte* combine_out() const { return windows_.data() + layout_.combine_out(0); }
  // An operation was sent and has not been received, also where all of it is here; the end of its epoch or world ends
  // it too.
  bool in_flight();
  bool uses(const EpHandle& handle) const { return use_.handle == &handle; }
  void forget(const EpHandle& handle) {
    if (use_.handle == &handle) use_.handle = nullptr;
  }
  // For tests, on all ranks alike before the first dispatch: the next use is `use` + 1.
  void set_use_for_test(uint64_t use) {
    use_.number = use;
    use_.first = use + 1;
  }

  // --- The control thread ---
  // How far this buffer is complete, for the orderly leave of a rank. Not the channel's count, which
  // differs between ranks if they chose differently to combine a dispatch that a failure had cut.
  membership::ChannelState state() const {
    // Acquire: the control thread sees an operation as complete after what it did.
    return {comm_.id(), engine_.id(), completed_.load(std::memory_order_acquire), 0};
  }
  void stop() { (void)engine_.freeze(); }
  bool is_still() const { return engine_.is_still(); }
  membership::ChannelState freeze();
  void close() { engine_.close(); }
  // Whether no operation that began before `epoch` may still touch memory of other ranks.
  bool quiesced(uint64_t epoch) const {
    // Sequentially consistent, as its writer: an operation that begins later meets the new epoch.
    return pending_epoch_.load(std::memory_order_seq_cst) >= epoch;
  }
  void prepare();
  void install(const std::shared_ptr<const CommChange>& change,
               const membership::Proposal* committed);

 private:
  using Engine = OperationEngine<EpBuffer, EpOperation>;
  friend Engine;
  static constexpr OperationClass kClass = OperationClass::kPersonal;
  static constexpr uint64_t kNoEpoch = UINT64_MAX;

  enum class Stage : uint8_t {
    kIdle,
    kDispatching,  // begun; not received
    kReceived,
    kCombining,  // begun; not received
  };

  // The words and counts that had arrived here when all ranks had stopped.
  struct Arrived {
    std::vector<uint64_t> words;   // all words of the window
    std::vector<uint32_t> counts;  // [2 parities][R][E_local]
  };

  // A dispatch and its combine are one use.
  struct Use {
    uint64_t number = 0;
    uint64_t first = 1;      // of the epoch
    bool carries = false;    // the epoch has a use 0
    bool given_back = true;  // the combine word of this use was sent
    Stage stage = Stage::kIdle;
    EpHandle* handle = nullptr;   // whose dispatch the buffer holds
    uint64_t dispatch_epoch = 0;  // of that dispatch
  };

  // The rows that this rank sends.
  struct Sent {
    explicit Sent(const EpShape& shape);
    Router router;
    Routing draft;                         // a dispatch that may still be refused
    std::vector<uint32_t> first_row;       // [places] of this rank's rows
    std::unique_ptr<std::byte[]> staging;  // quantised rows on their way
    uint32_t staging_rows = 1;
    uint32_t staged = 0;
    // High throughput: experts and weights of rows on their way, [M * row_k][K] each, by target.
    std::vector<int32_t> topk_idx;
    std::vector<float> topk_weights;
  };

  // The last dispatch's delivery.
  struct Received {
    explicit Received(const EpShape& shape);
    std::vector<uint8_t> complete;          // by source rank
    std::vector<int32_t> count;             // [E_local]
    std::vector<mep_range_t> layout_range;  // [G][R]
    std::vector<int32_t> src_info;          // [G][R * M]
    std::vector<uint32_t> row_entry;        // [G][R * M] token * row_k + k on the source
    std::vector<int32_t> topk_idx;          // [R * M][K], high throughput
    std::vector<int64_t> expert_rows;       // [E_local] of these; count is rounded up
    int64_t total = 0;
    EpExpansion expansion;   // of these rows
    bool compacted = false;  // rows do not lie where their sources think
  };

  // The running combine.
  struct Sums {
    explicit Sums(const EpShape& shape) : outputs(shape.ranks, CombineWord::kNone) {}
    std::vector<CombineWord> outputs;      // by rank, whose experts' terms this rank can read
    const std::byte* own_terms = nullptr;  // where its own experts' lie
    int32_t missing_place = kNoExpert;     // one such
  };

  // ep_buffer.cpp
  bool has_operation() const {
    return use_.stage == Stage::kDispatching || use_.stage == Stage::kCombining;
  }
  // call_ms: what the caller's struct says; 0: nothing.
  TimeLimit limit(uint32_t call_ms) const;
  void begin_operation(Stage stage, EpHandle* handle);
  void note_complete() {
    const uint64_t combined = use_.stage == Stage::kCombining ? 1 : 0;
    // Release: see state().
    completed_.store(op_.epoch << 40 | (use_.number * 2 + combined), std::memory_order_release);
  }
  // At the end of a call that sends, however it ends, nothing reads the caller's memory and the staged rows any more.
  class SourceRelease {
   public:
    SourceRelease(EpBuffer* buffer, bool sends) : buffer_(sends ? buffer : nullptr) {}
    ~SourceRelease() {
      if (buffer_ != nullptr) buffer_->release_sources();
    }
    SourceRelease(const SourceRelease&) = delete;
    SourceRelease& operator=(const SourceRelease&) = delete;

   private:
    EpBuffer* const buffer_;
  };
  void release_sources() {
    windows_.flush_puts();
    sent_.staged = 0;
  }
  void leave_peers_alone() { pending_epoch_.store(kNoEpoch, std::memory_order_seq_cst); }
  template <typename StepFunction>
  void drive(const Deadline& deadline, StepFunction&& step);
  mep_result_t begin_report(Stage stage, EpHandle* handle, mep_result_t report,
                            Reports::Report told);
  Step hard_failure(mep_result_t result);
  Step posting_failure(mep_result_t result);
  mep_result_t result_of_operation() const;
  // The places of a dispatch's rows follow without the counts of others.
  bool knows_places() const { return shape_.slotted() || op_.replays; }
  bool uniform() const { return shape_.uniform(); }
  void agree_on_result();
  mep_result_t agree(mep_result_t own, mep_result_t* gravest);
  void note_record(const std::vector<uint8_t>& contributed);
  void note_report(const CommChange& change);
  // Null: nobody wants it.
  void tell_status(mep_op_status_t* status, uint64_t bytes) const {
    if (status != nullptr) record_.fill_status(status, bytes);
  }
  bool arrived(EpWord kind, uint64_t use, uint32_t source, uint32_t* payload = nullptr) const;
  bool arrived_from_all(EpWord kind, uint64_t use);
  mep_result_t signal(EpWord kind, uint64_t use, uint32_t target, uint32_t payload = 0) const;
  // Whether rows of an earlier use may still have to be given back.
  bool follows_a_use() const { return use_.number != use_.first || use_.carries; }
  mep_result_t give_back_unused();

  // dispatch.cpp: the sender's side
  mep_result_t check_dispatch(const EpHandle& handle, const DispatchInput* send,
                              const DispatchOutput* receive) const;
  mep_result_t begin_dispatch(EpHandle& handle, const DispatchInput& input, const ExpertMap* map);
  Step step_send(const DispatchInput& input);
  mep_result_t post_counts();
  mep_result_t place_rows();
  mep_result_t send_token(const DispatchInput& input, uint32_t token);
  mep_result_t announce_rows();

  // arrival.cpp: the receiver's side
  Step step_receive();
  mep_result_t arrange(const uint32_t* kept_counts);
  void receive_nothing();
  mep_result_t read_entries(uint32_t local_expert, uint64_t begin, uint32_t count, uint32_t source);
  void move_rows(uint32_t local_expert, uint64_t from, uint64_t to, uint32_t count);
  mep_result_t deliver(const DispatchOutput& outputs);
  mep_result_t check_capacity(const DispatchOutput& outputs) const;
  void copy_rows(const DispatchOutput& outputs) const;

  // high_throughput.cpp
  void find_first_rows();
  mep_result_t put_topk(uint32_t target);
  mep_result_t read_topk(uint64_t row, uint32_t count, uint32_t source);
  void count_experts();
  void copy_topk(const DispatchOutput& outputs) const;
  void expand();
  void copy_expanded(const DispatchOutput& outputs);
  void tell_counts(const DispatchOutput& outputs) const;
  bool fold_rows(uint32_t target, const CombineInput& input, const PostingScope& posting);
  mep_result_t put_weights(uint32_t target, const float* weights) const;
  void sum_weights(float* out);

  // combine.cpp
  mep_result_t check_combine(const EpHandle& handle, const CombineInput* send,
                             const CombineOutput* receive) const;
  mep_result_t begin_combine(EpHandle& handle, const std::byte* y, bool receives);
  Step step_combine_send(const CombineInput& input);
  mep_result_t push_rows(uint32_t target, const std::byte* y, const PostingScope& posting,
                         bool* finished);
  Step step_combine_receive();
  void note_outputs(uint32_t source, bool word_arrived, uint32_t payload);
  // Null: the dispatch is of the combine's epoch.
  const char* carried_text() const {
    return op_.epoch == use_.dispatch_epoch
               ? nullptr
               : "had not received all of this dispatch when the view changed";
  }
  void judge_outputs(const char* change);
  mep_result_t finish_combine(const CombineOutput& sums);
  uint32_t gather_outputs(uint32_t token, const float* weights, bool renormalizes,
                          const void** rows, float* row_weights);
  const std::byte* term(const RouteEntry& entry, size_t at) const;
  void sum_terms(const CombineOutput& sums);
  void begin_y(const EpHandle& handle);
  bool needs(uint32_t owner) const;
  bool withdraw_overwritten();

  // ep_view.cpp: for the engine, and reports
  void note_number(const EpOperation&) {}
  bool in_step() const { return shape_.in_step(); }
  void begin_again(EpOperation& operation);
  void settle(EpOperation& operation, const Decision& decision);
  void end(EpOperation& operation, mep_result_t result);
  mep_result_t adopt(const Decision& decision);
  mep_result_t catch_up(Reports::Report* told);
  Reports& reports() { return uniform() ? reports_ : comm_.personal_reports(); }
  Arrived take_arrived();
  void settle_dispatch(const Arrived& arrived, const CommChange& change);
  void settle_combine(const Arrived& arrived, const CommChange& change);
  void conclude(const CommChange& change, bool complete, bool survivors_served);
  void note_members();

  Comm& comm_;
  const EpShape& shape_;
  const EpLayout& layout_;
  PeerWindows windows_;
  std::vector<uint64_t> mapped_bits_;  // by rank, as receive() found them
  std::vector<uint8_t> pulls_;         // by rank: it reads this rank's window in place
  Engine engine_;
  // The epoch of the operation that has begun and may still touch memory of other ranks, for quiesced().
  std::atomic<uint64_t> pending_epoch_{kNoEpoch};

  // (epoch, use, combined) of the last operation that was complete; see state().
  std::atomic<uint64_t> completed_{0};

  // The user's thread.
  std::vector<uint32_t> members_;   // live ranks that share this object, rising
  std::vector<uint8_t> is_member_;  // by rank
  Use use_;
  EpOperation op_;
  OperationRecord record_;
  Sent sent_;
  Received received_;
  Sums sums_;

  // With MEP_EP_LOSS_UNIFORM: changes that no operation of this buffer has reported. All ranks make the same calls
  // on it, so it reports each change by the same call on all, whatever other buffers do.
  Reports reports_;

  // Shared, under the channel's lock.
  std::optional<Arrived> prepared_;  // of the change under way
  std::optional<Arrived> arrived_;   // of the first change that the user's thread has not met
};

}  // namespace mep
