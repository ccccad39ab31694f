#include "core/world/control_links.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include "base/log.hpp"
#include "base/status.hpp"
#include "base/system_error.hpp"

namespace mep {
namespace {

// EBADF is a descriptor that could not be made; the limit of watches is a limit of memory, too.
mep_result_t fail_for_watch() {
  if (errno == EBADF || errno == EMFILE || errno == ENFILE) {
    return fail(MEP_ERR_NO_MEMORY,
                "no descriptors are left for the control thread; raise ulimit -n");
  }
  return fail(result_of_errno(errno), "the control thread cannot watch its descriptors: %m");
}

uint64_t pack(uint32_t source, uint32_t slot) {
  return uint64_t{source} << 32 | slot;
}

}  // namespace

mep_result_t ControlLinks::open() {
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return fail_call("the control thread", "epoll_create1", errno);
  MEP_TRY(open_eventfd("the control thread", 0, &request_event_));
  return watch(request_event_.get(), Source::kRequests, 0) ? MEP_SUCCESS : fail_for_watch();
}

void ControlLinks::ring() {
  const uint64_t one = 1;
  // Cannot fail in a way that matters: the counter is full only if it is readable already.
  (void)!write(request_event_.get(), &one, sizeof one);
}

bool ControlLinks::watch(int fd, Source source, uint32_t slot) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = pack(static_cast<uint32_t>(source), slot);
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void ControlLinks::unwatch(int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

mep_result_t ControlLinks::watch_peer(uint32_t slot) {
  const WorldPeer& peer = peers_[slot];
  if (peer.link != nullptr && !watch(peer.link->fd(), Source::kLink, slot)) return fail_for_watch();
  if (!peer.pidfd.valid() || watch(peer.pidfd.get(), Source::kProcess, slot)) return MEP_SUCCESS;
  return fail_for_watch();
}

mep_result_t ControlLinks::watch_door(int fd) {
  return watch(fd, Source::kDoor, 0) ? MEP_SUCCESS : fail_for_watch();
}

void ControlLinks::watch_transports() {
  for (; watched_transports_ < peers_.network().count(); ++watched_transports_) {
    const int fd = peers_.network().transport(watched_transports_)->events().control;
    if (fd >= 0 && !watch(fd, Source::kTransport, watched_transports_)) {
      log(LogLevel::kError, "a transport cannot be watched: %m");
    }
  }
}

void ControlLinks::unwatch_process(uint32_t slot) {
  if (peers_[slot].pidfd.valid()) unwatch(peers_[slot].pidfd.get());
}

void ControlLinks::wait(int wait_ms, FunctionRef<void(uint32_t)> readable,
                        FunctionRef<void(uint32_t)> ended) {
  std::array<epoll_event, 64> events;
  const int count =
      epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_ms);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    const auto slot = static_cast<uint32_t>(event.data.u64);
    switch (static_cast<Source>(event.data.u64 >> 32)) {
      case Source::kRequests: {
        uint64_t rings = 0;
        (void)!::read(request_event_.get(), &rings, sizeof rings);
        break;
      }
      case Source::kLink:
        if ((event.events & EPOLLOUT) != 0) flush();
        if ((event.events & ~uint32_t{EPOLLOUT}) != 0) readable(slot);
        break;
      case Source::kProcess:
        ended(slot);
        break;
      case Source::kDoor:
      case Source::kTransport:
        break;  // served in every round
    }
  }
}

bool ControlLinks::read(uint32_t slot, FunctionRef<bool(Frame&)> take) {
  const std::shared_ptr<ControlLink> link = peers_[slot].link;
  if (link == nullptr) return true;
  bool good = true;
  const mep_result_t result = link->receive([&](Frame& frame) {
    good = take(frame);
    return good && peers_[slot].link == link;
  });
  if (!good || result == MEP_ERR_DENIED) {
    log(LogLevel::kWarn, "rank %u sent something that is no valid frame: %s", slot,
        last_error_text());
  }
  return good && result == MEP_SUCCESS;
}

void ControlLinks::send(uint32_t slot, uint16_t type, std::span<const std::byte> payload) {
  const std::shared_ptr<ControlLink> link = peers_[slot].link;
  if (link == nullptr) return;
  // A link that broke swallows it; its end is seen when it is read. But who misses a frame for another
  // reason, because it reads too slowly perhaps, knows nothing of it: for this rank it is gone.
  const mep_result_t sent = link->send(type, payload, {});
  if (sent == MEP_SUCCESS || sent == MEP_ERR_PEER_FAILED) return;
  log(LogLevel::kWarn, "rank %u cannot be written to any more: %s", slot, last_error_text());
  broken_.add(slot);
}

void ControlLinks::tell_all(uint16_t type, std::span<const std::byte> payload) {
  for (uint32_t slot = 0; slot < peers_.count(); ++slot) send(slot, type, payload);
}

membership::SlotSet ControlLinks::take_broken() {
  return std::exchange(broken_, {});
}

void ControlLinks::flush() {
  for (uint32_t slot = 0; slot < peers_.count(); ++slot) {
    const std::shared_ptr<ControlLink> link = peers_[slot].link;
    if (link == nullptr) continue;
    if (link->has_queued_output()) (void)link->flush_output();
    epoll_event event{};
    event.events = EPOLLIN | (link->has_queued_output() ? uint32_t{EPOLLOUT} : 0u);
    event.data.u64 = pack(static_cast<uint32_t>(Source::kLink), slot);
    if (event.events != EPOLLIN || output_watched_.has(slot)) {
      epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, link->fd(), &event);
      if (event.events == EPOLLIN) {
        output_watched_.remove(slot);
      } else {
        output_watched_.add(slot);
      }
    }
  }
}

void ControlLinks::end(uint32_t slot) {
  WorldPeer& peer = peers_[slot];
  if (peer.link == nullptr) return;
  unwatch(peer.link->fd());
  peer.link->shutdown();
  peer.link = nullptr;
  output_watched_.remove(slot);
}

void ControlLinks::end_all() {
  for (uint32_t slot = 0; slot < peers_.count(); ++slot) {
    unwatch_process(slot);
    end(slot);
  }
}

}  // namespace mep
