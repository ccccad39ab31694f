// The host's half of a CollPost: the channel of a comm's stream operations. The control thread freezes it and installs
// decisions, the watcher takes what kernels report, the user's thread their failures. None of them makes a CUDA call here.
//
// A view with ranks whose windows are not mapped yet is held back, and the channel stays frozen, until the user's thread
// has mapped them and takes the device into that view (begin_adoption()).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/comm/comm.hpp"
#include "kernels/cuda/coll/state.hpp"
#include "transport/cuda/device_memory.hpp"

namespace mep {

class GpuChannel {
 public:
  explicit GpuChannel(const Comm& comm) : comm_(comm), id_(comm.id() ^ 0x6465766963650000u) {}
  [[nodiscard]] mep_result_t open();
  // The view that operations begin in; before the control thread knows the channel.
  void begin(const std::shared_ptr<const CommView>& view);

  uint64_t id() const { return id_; }
  device::CollPost* post() const { return post_; }
  // The number of the latest operation that succeeded or found a mismatch. Any thread.
  uint64_t done() const;
  bool busy() const;

  // --- The user's thread ---
  // First failure since the last call.
  mep_result_t take_failure();
  // A view is held back. A hint: what is held is taken under the lock.
  bool holds_view() const { return holds_view_.load(std::memory_order_relaxed); }
  std::shared_ptr<const CommView> view() const;
  // A joiner: no kernel has run, and none will before it is in the view.
  void begin_joining();
  struct Adoption {
    device::CollDecision last;  // that is adopted: of a joiner, the one that lets it in
    uint64_t installed = 0;     // decisions with it
    uint64_t admitted = 0;      // decisions up to the last that lets joiners in
    bool joins = false;         // this rank comes by it
  };
  // Publishes what is held now and leads to a view that `reaches` says is mapped; for a joiner end_joining() does.
  // False: there is nothing to adopt.
  template <class Reaches>
  [[nodiscard]] bool begin_adoption(const Reaches& reaches, Adoption* adoption) {
    const std::lock_guard lock(mutex_);
    if (ended_ || held_.empty() || !reaches(*view_)) return false;
    const size_t admitted = to_admission();
    const size_t count = is_joining_ ? admitted : held_.size();
    *adoption = {held_[count - 1], post_->installed + count, post_->installed + admitted,
                 is_joining_};
    if (!is_joining_) publish(held_.size());
    return true;
  }
  // The state that kernels read says what the first `installed` decisions led to.
  template <class Reaches>
  void end_joining(const Reaches& reaches) {
    const std::lock_guard lock(mutex_);
    is_joining_ = false;
    if (!ended_ && reaches(*view_)) publish(held_.size());
  }
  // The failures of the library's own operations that decisions which only let joiners in have ended are told to nobody.
  void forget_overtaken();

  // --- The control thread ---
  void stop();
  // Whether the device has seen that, or has nothing to do.
  bool is_still() const;
  void freeze(std::vector<membership::ChannelState>* channels) const;
  // Nothing changed.
  void resume();
  // reaches: the windows of the view that follows are mapped.
  void install(const CommChange& change, const membership::Proposal& committed, bool reaches);

  // --- The watcher ---
  // The world has ended for this rank.
  void end(mep_result_t result);
  // An operation is over its time: evidence for membership.
  void tell_late();
  // Tells the flight recorder how far the device has come since the last call.
  void record();

 private:
  size_t to_admission() const;
  void publish(size_t count);
  void join_overtaken();

  const Comm& comm_;
  const uint64_t id_;
  std::shared_ptr<PinnedMemory> memory_;
  device::CollPost* post_ = nullptr;
  uint64_t failures_told_ = 0;  // the user's thread's
  uint64_t told_epoch_ = 0;     // the watcher's: whose late operation was told
  // The watcher's: the record of the latest operation that it has seen.
  struct Flight {
    uint64_t ticket = 0;
    uint64_t number = 0;
    bool has_ended = true;
    bool is_late = false;
  } flight_;

  mutable std::mutex mutex_;  // one writer of decisions at a time; guards the fields below
  uint64_t epoch_ = 1;
  bool ended_ = false;
  bool is_joining_ = false;  // what is held waits for the user's thread, come what may
  std::vector<device::CollDecision> held_;
  std::shared_ptr<const CommView> view_;  // after the last of them
  std::atomic<bool> holds_view_{false};   // relaxed: see holds_view()
};

}  // namespace mep
