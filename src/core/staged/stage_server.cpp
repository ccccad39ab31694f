#include "core/staged/stage_server.hpp"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <ctime>
#include <new>

#include "base/clock.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "base/test_delay.hpp"

namespace mep {
namespace {

using device::StageAnswer;
using device::StageRequest;

// A word of the mailbox has one writer, the device or the host, and is written whole. stage_mailbox.hpp says what each
// publishes.
uint64_t load(const uint64_t* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
void store(uint64_t* word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

// The device cannot wake the server's thread, so the thread polls: without a pause just after a request, later with
// pauses that grow with the idle time. So an idle channel costs next to nothing.
void pause_after(uint64_t idle_ns) {
  constexpr uint64_t kYieldNs = 50'000;
  constexpr uint64_t kShare = 4;  // a pause is 1/4 of the idle time
  constexpr uint64_t kLongestPauseNs = 1'000'000;
  if (idle_ns < kYieldNs) {
    (void)sched_yield();
    return;
  }
  const timespec pause{0, static_cast<long>(std::min(idle_ns / kShare, kLongestPauseNs))};
  (void)nanosleep(&pause, nullptr);
}

}  // namespace

StageServer::~StageServer() {
  close();
}

mep_result_t StageServer::open(device::StageMailbox* mailbox, std::string what, Serve serve) {
  mailbox_ = mailbox;
  what_ = std::move(what);
  serve_ = std::move(serve);
  return start_library_thread(
      "the thread of staged operations", [this] { run(); }, &thread_);
}

void StageServer::close() {
  if (mailbox_ != nullptr) {
    store(&mailbox_->closed, static_cast<uint64_t>(static_cast<uint32_t>(MEP_ERR_ABORTED)));
  }
  // Relaxed: join() orders the thread's work before what follows.
  stop_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

void StageServer::set_bound_ms(uint64_t ms) {
  store(&mailbox_->bound_ns, ms * 1'000'000);
}

bool StageServer::busy() const {
  return load(&mailbox_->posted) != load(&mailbox_->answered);
}

void StageServer::run() {
  (void)prctl(PR_SET_TIMERSLACK, 1'000UL);
  uint64_t idle_since = now_ns();
  uint64_t answered = 0;
  // Relaxed: stop_ publishes nothing else.
  while (!stop_.load(std::memory_order_relaxed)) {
    const uint64_t posted = load(&mailbox_->posted);
    if (posted == answered) {
      pause_after(now_ns() - idle_since);
      continue;
    }
    answer(posted);
    answered = posted;
    idle_since = now_ns();
  }
}

void StageServer::answer(uint64_t number) {
  MEP_TEST_DELAY_POINT("stage request");
  const StageRequest request = mailbox_->request;
  StageAnswer answer{};
  mep_result_t result = MEP_ERR_NO_MEMORY;
  try {
    result = serve_(request, &answer);
  } catch (const std::bad_alloc&) {
    result = fail(MEP_ERR_NO_MEMORY, "out of memory");
  }
  answer.result = result;
  if (is_error(result)) note_failure(result);
  MEP_TEST_DELAY_POINT("stage answer");
  mailbox_->answer = answer;
  store(&mailbox_->answered, number);
}

void StageServer::note_failure(mep_result_t result) {
  const char* const text = last_error_text();
  log(LogLevel::kDebug, "an operation of %s: %s", what_.c_str(), text);
  const std::lock_guard lock(failure_mutex_);
  if (failure_ != MEP_SUCCESS) return;
  failure_ = result;
  failure_text_ = what_ + ": " + text;
}

mep_result_t StageServer::take_failure() {
  const std::lock_guard lock(failure_mutex_);
  if (failure_ == MEP_SUCCESS && !left_told_ && load(&mailbox_->left) != 0) {
    left_told_ = true;
    return fail(
        MEP_ERR_TIMEOUT,
        "the GPU waited too long for the host to end an operation of %s, and uses it no more",
        what_.c_str());
  }
  if (failure_ == MEP_SUCCESS) return MEP_SUCCESS;
  const mep_result_t result = failure_;
  failure_ = MEP_SUCCESS;
  return fail(result, "a stream operation of %s", failure_text_.c_str());
}

}  // namespace mep
