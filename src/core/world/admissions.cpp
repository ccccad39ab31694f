#include "core/world/admissions.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/failpoint.hpp"
#include "base/guarded.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "core/world/control_thread.hpp"
#include "core/world/wait.hpp"

namespace mep {

mep_result_t Admissions::recover(const membership::SlotSet& wanted, const Deadline& deadline,
                                 const std::function<mep_result_t()>& prepare,
                                 Admission* admission) {
  uint64_t seq = 0;
  {
    const std::lock_guard lock(mutex_);
    seq = ++recover_calls_;
  }
  const uint64_t deadline_us = deadline.at_ns() / 1000;
  control_.call([&] {
    log(LogLevel::kDebug, "recover %llu: %u slots, %lld ms left",
        static_cast<unsigned long long>(seq), wanted.count(),
        (static_cast<long long>(deadline_us) - static_cast<long long>(now_ns() / 1000)) / 1000);
    control_.membership().on_recover(seq, wanted, deadline_us);
  });
  MEP_FAILPOINT("recover");
  mep_result_t prepared = MEP_SUCCESS;
  std::string text;
  std::unique_lock lock(mutex_);
  // Every member answers, or is removed by the same membership: the bound is for its bugs only.
  const Deadline limit = Deadline::at(deadline.at_ns() + kDecisionGraceMs * 1'000'000);
  while (recover_answered_ < seq && end_.result() == MEP_SUCCESS && !limit.expired()) {
    if (prepared == MEP_SUCCESS) {
      lock.unlock();
      prepared = guarded(prepare);
      if (prepared != MEP_SUCCESS) text = last_error_text();
      lock.lock();
      if (recover_answered_ >= seq) break;
    }
    answered_.wait_for(lock, std::chrono::milliseconds(limit.left_ms(100)));
  }
  if (recover_answered_ < seq) {
    if (end_.result() != MEP_SUCCESS) return end_.fail_as_ended();
    return fail(MEP_ERR_TIMEOUT, "not all members called this, or they did not answer");
  }
  *admission = admission_;
  return prepared == MEP_SUCCESS ? MEP_SUCCESS : fail(prepared, "%s", text.c_str());
}

void Admissions::begin() {
  control_.post([this] { control_.joiners().begin(); });
}

mep_result_t Admissions::enter(const Deadline& deadline, Admission* admission) {
  control_.post([this] { control_.joiners().say_ready(); });
  std::unique_lock lock(mutex_);
  while (!joined_ && end_.result() == MEP_SUCCESS && !deadline.expired()) {
    answered_.wait_for(lock, std::chrono::milliseconds(deadline.left_ms(100)));
  }
  if (joined_) {
    entering_ = false;
    *admission = admission_;
    return MEP_SUCCESS;
  }
  if (end_.result() != MEP_SUCCESS) return fail_outside();
  return fail(MEP_ERR_TIMEOUT,
              "rank %u is ready, but no mep_recover_ranks or mep_comm_grow of the "
              "members admitted it",
              self_slot_);
}

mep_result_t Admissions::fail_outside() {
  return fail(MEP_ERR_BOOTSTRAP,
              "the job ended, or filled this rank's place, before it was admitted");
}

void Admissions::note_refusal(uint32_t slot, const std::string& text) {
  const std::lock_guard lock(mutex_);
  refusals_[slot] = text;
}

std::string Admissions::refusal(uint32_t slot) const {
  const std::lock_guard lock(mutex_);
  const auto found = refusals_.find(slot);
  return found == refusals_.end() ? std::string() : found->second;
}

void Admissions::answer(uint64_t seq, Admission admission, bool joined) {
  const std::lock_guard lock(mutex_);
  if (joined) {
    joined_ = true;
    recover_calls_ = seq;
  }
  recover_answered_ = std::max(recover_answered_, seq);
  for (const uint32_t slot : admission.added) refusals_.erase(slot);
  admission_ = std::move(admission);
  answered_.notify_all();
}

}  // namespace mep
