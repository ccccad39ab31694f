#include "core/world/transport_wait.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "base/status.hpp"
#include "base/system_error.hpp"
#include "transport/doorbell.hpp"

namespace mep {
namespace {

constexpr uint64_t kEventTag = UINT64_MAX;  // no slot

bool watch(int epoll, int fd, uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

mep_result_t TransportWait::open(bool any_network) {
  if (!any_network) return MEP_SUCCESS;
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return fail_call("waiting for transports", "epoll_create1", errno);
  MEP_TRY(open_eventfd("waiting for transports", 0, &event_));
  if (watch(epoll_.get(), event_.get(), kEventTag)) return MEP_SUCCESS;
  return fail_call("waiting for transports", "epoll_ctl", errno);
}

mep_result_t TransportWait::add(Transport* transport, Doorbell* doorbell) {
  const uint32_t count = count_.load(std::memory_order_relaxed);
  const auto end = transports_.begin() + count;
  if (std::find(transports_.begin(), end, transport) != end) return MEP_SUCCESS;
  if (count == kMaxTransports || !watch(epoll_.get(), transport->events().data, 0)) {
    return fail(result_of_errno(errno), "transport %s cannot be waited for: %m", transport->name());
  }
  transports_[count] = transport;
  transport->count_waits(&waiting_);
  // With a single transport, this rank sleeps on that one's own epoll: it spares an epoll within an epoll.
  const TransportEvents& events = transport->events();
  const bool direct =
      count == 0 && events.data_is_epoll && watch(events.data, event_.get(), kEventTag);
  // Relaxed: either epoll holds all that is waited for until a second transport comes.
  sleep_on_.store(direct ? events.data : epoll_.get(), std::memory_order_relaxed);
  count_.store(count + 1, std::memory_order_release);
  doorbell_sleeps_by_event(doorbell);
  active_.store(true, std::memory_order_release);
  return MEP_SUCCESS;
}

void TransportWait::hand_over() {
  const uint32_t transports = count();
  for (uint32_t i = 0; i < transports; ++i) transports_[i]->hand_over();
}

bool TransportWait::progress() {
  bool any = false;
  const uint32_t transports = count();
  for (uint32_t i = 0; i < transports; ++i) any = transports_[i]->progress(false) || any;
  return any;
}

void TransportWait::announce() {
  const uint32_t transports = count();
  for (uint32_t i = 0; i < transports; ++i) (void)transports_[i]->progress(true);
  const std::lock_guard lock(mutex_);
  ++announced_;
}

void TransportWait::sleep(uint64_t timeout_ns) {
  epoll_event events[16];
  const timespec timeout{static_cast<time_t>(timeout_ns / 1'000'000'000),
                         static_cast<long>(timeout_ns % 1'000'000'000)};
  const int epoll = sleep_on_.load(std::memory_order_relaxed);
  const int count = epoll_pwait2(epoll, events, 16, &timeout, nullptr);
  // A ring that did not fit in is found in the next round.
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kEventTag) rung_.store(true, std::memory_order_relaxed);
  }
}

void TransportWait::withdraw() {
  const std::lock_guard lock(mutex_);
  if (--announced_ != 0 || !rung_.load(std::memory_order_relaxed)) return;
  rung_.store(false, std::memory_order_relaxed);
  uint64_t rings = 0;
  (void)!read(event_.get(), &rings, sizeof rings);
}

}  // namespace mep
