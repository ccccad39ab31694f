// The latest view as the calls of an EP object on a GPU meet it, and in step (MEP_EP_LOSS_IN_STEP) the numbers of the calls:
// the control thread leaves both for the user's threads.
//
// In step each call that sends has a number. A freeze counts what was called, and calls wait until it is decided. A rank
// that is behind makes the calls that others had made in the old view, whose kernels leave at once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "core/comm/comm.hpp"

namespace mep {

class EpViews {
 public:
  struct View {
    std::shared_ptr<const CommView> view;
    uint64_t reported = 0;  // epoch after the last change that callers are told of
    mep_result_t result = MEP_ERR_PEER_FAILED;  // why it changed
    std::string text;
  };

  explicit EpViews(const Comm& comm) : comm_(comm) {}
  void begin(const std::shared_ptr<const CommView>& view) { latest_.view = view; }
  // In step: each buffer is a channel with its id.
  void add_channel(uint64_t id) { channels_.push_back({id}); }
  bool in_step() const { return !channels_.empty(); }

  // --- The users' threads ---
  View latest() const;
  // In step, for a call on a buffer that is in the view of `epoch`: *now is left empty and the call has its number there, or
  // the buffer is to be moved to *now, and the call to ask again. Waits while a view change is decided.
  [[nodiscard]] mep_result_t take_number(uint32_t buffer, uint64_t epoch, const Deadline& deadline,
                                         View* now);

  // --- The control thread ---
  void describe(std::vector<membership::ChannelState>* channels) const;
  void freeze(std::vector<membership::ChannelState>* channels);
  // See ViewParticipant::install().
  void install(const std::shared_ptr<const CommChange>& change,
               const membership::Proposal* committed);
  void terminate() { thawed_.notify_all(); }

 private:
  struct Channel {
    uint64_t id = 0;
    uint64_t made = 0;    // calls
    uint64_t called = 0;  // the most that a rank had made when a view changed
  };

  const Comm& comm_;
  mutable std::mutex mutex_;  // guards the fields below
  std::condition_variable thawed_;
  bool is_frozen_ = false;  // a view change is being decided
  View latest_;
  std::vector<Channel> channels_;  // by buffer; empty: not in step
};

}  // namespace mep
