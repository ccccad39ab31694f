#include "core/cuda/gpu_channel.hpp"

#include <algorithm>
#include <thread>

#include "base/log.hpp"
#include "base/status.hpp"
#include "core/cuda/pinned_word.hpp"

namespace mep {
namespace {

using device::CollDecision;
using device::CollPost;

// How an operation ends by a decision that only lets joiners in.
constexpr mep_result_t kOvertaken = MEP_ERR_BUSY;

int32_t failure_at(const CollPost& post, uint64_t number) {
  return static_cast<const volatile int32_t*>(post.failed_results)[number % device::kCollFailures];
}

}  // namespace

mep_result_t GpuChannel::open() {
  MEP_TRY(PinnedMemory::create(sizeof(CollPost), &memory_));
  post_ = static_cast<CollPost*>(memory_->data());
  return MEP_SUCCESS;
}

void GpuChannel::begin(const std::shared_ptr<const CommView>& view) {
  epoch_ = view->epoch;
  view_ = view;
}

void GpuChannel::begin_joining() {
  is_joining_ = true;
}

uint64_t GpuChannel::done() const {
  return load_pinned(&post_->done);
}

bool GpuChannel::busy() const {
  return std::max(done(), load_pinned(&post_->closed)) < load_pinned(&post_->entered);
}

std::shared_ptr<const CommView> GpuChannel::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

mep_result_t GpuChannel::take_failure() {
  const uint64_t count = load_pinned(&post_->failures);
  if (count == failures_told_) return MEP_SUCCESS;
  // The ring keeps the latest failures; the oldest of them is told, those before are lost.
  const uint64_t first =
      std::max(failures_told_ + 1,
               count < device::kCollFailures ? uint64_t{1} : count - device::kCollFailures + 1);
  failures_told_ = count;
  const mep_result_t result = failure_at(*post_, first);
  return fail(result, "a stream operation of comm %s ended with %s", comm_.name().c_str(),
              mep_result_string(result));
}

void GpuChannel::forget_overtaken() {
  const uint64_t count = load_pinned(&post_->failures);
  const bool has_all = count - failures_told_ < device::kCollFailures;
  while (has_all && failures_told_ < count && failure_at(*post_, failures_told_ + 1) == kOvertaken)
    ++failures_told_;
}

// How many are held up to the last that lets joiners in; under the lock.
size_t GpuChannel::to_admission() const {
  size_t count = held_.size();
  while (count > 1 && held_[count - 1].result != kOvertaken) --count;
  return count;
}

// --- The control thread ---------------------------------------------------------------------------

void GpuChannel::stop() {
  if ((load_pinned(&post_->word) & 1) != 0) return;
  // Sequentially consistent: an operation that begins sees it, or `entered` shows the operation.
  __atomic_add_fetch(&post_->word, 1, __ATOMIC_SEQ_CST);
}

bool GpuChannel::is_still() const {
  const uint64_t entered = load_pinned(&post_->entered);
  return done() >= entered || load_pinned(&post_->failed) >= entered ||
         load_pinned(&post_->parked) == load_pinned(&post_->word);
}

void GpuChannel::freeze(std::vector<membership::ChannelState>* channels) const {
  const uint64_t finished = done();
  channels->push_back(
      {comm_.id(), id_, finished, std::max(load_pinned(&post_->entered), finished)});
}

void GpuChannel::resume() {
  const std::lock_guard lock(mutex_);
  const uint64_t word = load_pinned(&post_->word);
  if (!ended_ && held_.empty() && (word & 1) != 0) store_pinned(&post_->word, word + 1);
}

// The first `count` of what is held; under the lock.
void GpuChannel::publish(size_t count) {
  if (count == 0) return;
  uint64_t number = post_->installed;
  for (size_t i = 0; i < count; ++i) {
    post_->decisions[++number % device::kCollDecisions] = held_[i];
  }
  held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(count));
  holds_view_.store(!held_.empty(), std::memory_order_relaxed);
  // Sequentially consistent: the decisions, their count, then the word that makes kernels look.
  store_pinned(&post_->installed, number);
  const uint64_t word = load_pinned(&post_->word);
  store_pinned(&post_->word, word + ((word & 1) != 0 ? 1 : 2));
}

// An operation of the program ends by no decision that only lets joiners in: the next one stands for both.
void GpuChannel::join_overtaken() {
  for (size_t i = held_.size(); i-- > 1;) {
    if (held_[i - 1].result != kOvertaken) continue;
    held_[i].old_epoch = held_[i - 1].old_epoch;
    held_[i].last_completed = held_[i - 1].last_completed;
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i - 1));
  }
}

void GpuChannel::install(const CommChange& change, const membership::Proposal& committed,
                         bool reaches) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  CollDecision decision{};
  decision.old_epoch = change.epoch;
  decision.last_completed = done();
  decision.next = std::max(load_pinned(&post_->entered), decision.last_completed) + 1;
  if (const auto* decided = committed.decision(comm_.id(), id_)) {
    decision.last_completed = decided->last_completed;
    decision.next = decided->next;
  }
  decision.epoch = epoch_ = change.view->epoch;
  decision.live = change.view->live_bits.empty() ? 0 : change.view->live_bits[0];
  decision.result = change.is_reported ? change.result : kOvertaken;
  view_ = change.view;
  held_.push_back(decision);
  holds_view_.store(true, std::memory_order_relaxed);
  if (is_joining_ || !reaches) return;
  join_overtaken();
  publish(held_.size());
}

// --- The watcher ----------------------------------------------------------------------------------

void GpuChannel::end(mep_result_t result) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  ended_ = true;
  CollDecision last{};
  last.old_epoch = epoch_;
  last.result = result;
  held_.push_back(last);
  publish(held_.size());
}

// Operations that begin and end between two calls are one record, of the last of them. One that was late keeps its own.
void GpuChannel::record() {
  const FlightLog& log = comm_.identity().flight();
  if (!log.is_on()) return;
  const uint64_t entered = load_pinned(&post_->entered);
  if (entered != flight_.number) {
    const uint64_t epoch = view()->epoch;
    log.end(flight_.has_ended ? 0 : flight_.ticket, MEP_SUCCESS);
    if (flight_.is_late || !log.again(flight_.ticket, epoch, entered)) {
      flight_.ticket = log.begin(
          {.channel = id_, .epoch = epoch, .number = entered, .kind = flight::Kind::kOnStream});
    }
    flight_ = {flight_.ticket, entered, false, false};
  }
  if (flight_.has_ended) return;
  const uint64_t failed = load_pinned(&post_->failed);
  flight_.has_ended = std::max(done(), failed) >= entered;
  const bool is_late = load_pinned(&post_->late_seq) == entered;
  if (is_late && !flight_.is_late) {
    flight_.is_late = true;
    log.note_late(flight_.ticket, {load_pinned(&post_->late_missing)});
  }
  if (!flight_.has_ended) return;
  const bool has_failed = failed >= entered && load_pinned(&post_->failures) != 0;
  log.end(flight_.ticket,
          has_failed ? failure_at(*post_, load_pinned(&post_->failures)) : MEP_SUCCESS);
}

void GpuChannel::tell_late() {
  const uint64_t late = load_pinned(&post_->late_epoch);
  if (late == 0 || late == told_epoch_) return;
  told_epoch_ = late;
  log(LogLevel::kWarn, "comm %s: operation %llu on the GPU is over its time, missing ranks 0x%llx",
      comm_.name().c_str(), static_cast<unsigned long long>(load_pinned(&post_->late_seq)),
      static_cast<unsigned long long>(load_pinned(&post_->late_missing)));
  comm_.world().report_deadline(comm_.id(), id_, late);
}

}  // namespace mep
