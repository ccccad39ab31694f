#include "transport/tcp/tcp_transport.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <shared_mutex>

#include "base/log.hpp"
#include "base/status.hpp"
#include "transport/mapped_transport.hpp"

namespace mep::tcp {
namespace {

constexpr uint32_t kTicketMagic = 0x4d455054;
constexpr uint32_t kLanes = 1;
constexpr long kTimerNs = 10'000'000;
// With so many peers each socket is looked at; with more, epoll says which.
constexpr size_t kDirectPeers = 1;

// Data of the entries of control_epoll_; below them are the slots of sockets without room.
constexpr uint64_t kGreeterTag = uint64_t{1} << 32;
constexpr uint64_t kTimerTag = kGreeterTag + 1;
constexpr uint64_t kKickTag = kGreeterTag + 2;

using SharedLock = std::shared_lock<WriterFirstLock>;
using ExclusiveLock = std::unique_lock<WriterFirstLock>;

unsigned long long number(uint64_t value) {
  return value;
}

bool watch(int epoll, int fd, uint64_t data) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = data;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

TcpTransport::TcpTransport(const TransportOptions& options) : options_(options) {}

TcpTransport::~TcpTransport() = default;

mep_result_t TcpTransport::probe() {
  MEP_TRY(prepare_sodium());
  if (greeter_ != nullptr) return MEP_SUCCESS;
  std::vector<Address> addresses;
  MEP_TRY(local_addresses({options_.network_interface, options_.one_host}, &addresses));
  data_epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  control_epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  kick_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!data_epoll_.valid() || !control_epoll_.valid() || !timer_.valid() || !kick_.valid()) {
    return fail(MEP_ERR_NO_MEMORY, "no descriptors left (ulimit -n): %m");
  }
  if (!watch(control_epoll_.get(), timer_.get(), kTimerTag) ||
      !watch(control_epoll_.get(), kick_.get(), kKickTag)) {
    return fail(MEP_ERR_NO_MEMORY, "tcp cannot watch its descriptors: %m");
  }
  GreeterOptions greeting;
  greeting.filter = {options_.network_interface, options_.one_host};
  greeting.suspect_ms = options_.suspect_ms;
  greeting.connect_timeout_ms = options_.connect_timeout_ms;
  greeter_ = std::make_unique<Greeter>(std::move(greeting), control_epoll_.get(), kGreeterTag);
  return MEP_SUCCESS;
}

// --- Peers ----------------------------------------------------------------------------------------

mep_result_t TcpTransport::make_offer(std::vector<std::byte>* offer) {
  MEP_TRY(probe());
  const std::lock_guard lock(set_up_mutex_);
  MEP_TRY(greeter_->listen(&own_addresses_));
  *offer = encode_addresses(own_addresses_);
  return MEP_SUCCESS;
}

bool TcpTransport::reaches(const PeerIdentity& self, const PeerIdentity& peer) const {
  return self.slot != peer.slot;
}

mep_result_t TcpTransport::add_peer(const PeerIdentity& self, const PeerIdentity& peer,
                                    std::span<const std::byte> offer, const PeerSession& session) {
  MEP_TRY(probe());
  if (peer.slot >= kMaxPeerSlots) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "slot %u: tcp has room for slots below %u", peer.slot,
                kMaxPeerSlots);
  }
  if (!reaches(self, peer)) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "slot %u is this rank itself", peer.slot);
  }
  const std::lock_guard set_up(set_up_mutex_);
  {
    const SharedLock lock(windows_lock_);
    if (peer.slot < peers_.size() && peers_[peer.slot] != nullptr) {
      return fail(MEP_ERR_INVALID_ARGUMENT, "slot %u is a peer of tcp already", peer.slot);
    }
  }
  std::vector<Address> addresses;
  if (parse_addresses(offer, &addresses) != Parse::kComplete) {
    return fail(MEP_ERR_DENIED, "slot %u sent addresses for tcp that are none (%zu bytes)",
                peer.slot, offer.size());
  }
  // Between hosts nobody vouches for the wire; on one host the kernel carries the bytes.
  Protection wanted = Protection::kPlain;
  if (self.host != peer.host || options_.authenticate_data) wanted = Protection::kAuthenticated;
  if (options_.encrypt_data) wanted = Protection::kEncrypted;
  auto added = std::make_unique<TcpPeer>(self, peer, session, wanted, std::move(addresses),
                                         static_cast<PeerEvents*>(this));
  const ExclusiveLock lock(windows_lock_);
  if (peers_.size() <= peer.slot) peers_.resize(peer.slot + size_t{1});
  greeter_->add(added.get());  // the last that may fail
  peers_[peer.slot] = std::move(added);
  kick();
  return MEP_SUCCESS;
}

void TcpTransport::remove_peer(uint32_t slot) {
  const std::lock_guard set_up(set_up_mutex_);
  const ExclusiveLock lock(windows_lock_);
  if (slot >= peers_.size() || peers_[slot] == nullptr) return;
  if (greeter_ != nullptr) greeter_->remove(peers_[slot].get());
  std::erase(connected_, peers_[slot].get());
  peers_[slot].reset();
}

mep_result_t TcpTransport::find_peer(uint32_t slot, TcpPeer** out) const {
  *out = slot < peers_.size() ? peers_[slot].get() : nullptr;
  if (*out != nullptr) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT, "slot %u is no peer of tcp", slot);
}

// False: there is no memory for it now.
bool TcpTransport::connect_peer(TcpPeer* peer, UniqueFd* socket, const Hello& hello,
                                const Challenge& challenge) {
  const int fd = socket->get();
  const ExclusiveLock lock(windows_lock_);
  connected_.reserve(connected_.size() + 1);
  if (!watch(data_epoll_.get(), fd, peer->identity().slot)) return false;
  try {
    if (!peer->establish(socket, hello, challenge)) return true;  // its end closes the socket
  } catch (const std::bad_alloc&) {
    epoll_ctl(data_epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    return false;
  }
  connected_.push_back(peer);
  log(LogLevel::kDebug, "tcp: connected with rank %u", peer->identity().slot);
  return true;
}

mep_result_t TcpTransport::fence_out(uint32_t slot) {
  const std::lock_guard set_up(set_up_mutex_);
  const SharedLock lock(windows_lock_);
  TcpPeer* peer = nullptr;
  MEP_TRY(find_peer(slot, &peer));
  greeter_->remove(peer);
  peer->fence();
  return MEP_SUCCESS;
}

// --- Windows --------------------------------------------------------------------------------------

mep_result_t TcpTransport::export_window(const std::shared_ptr<Window>& window, WindowExport* out) {
  MEP_TRY(probe());
  const ExclusiveLock lock(windows_lock_);
  const uint64_t token = exports_.add(window);
  out->blob =
      encode_ticket({kTicketMagic, window->generation(), window->id(), window->bytes(), token});
  out->fd.reset();
  return MEP_SUCCESS;
}

mep_result_t TcpTransport::import_window(uint32_t slot, uint64_t window, size_t bytes,
                                         std::span<const std::byte> blob, UniqueFd /*fd*/) {
  if (window == UINT64_MAX) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "no window has the id %llu", number(window));
  }
  const ExclusiveLock lock(windows_lock_);
  TcpPeer* peer = nullptr;
  MEP_TRY(find_peer(slot, &peer));
  if (peer->state() == TcpPeer::State::kFenced) {
    return fail(MEP_ERR_PEER_FAILED, "slot %u is fenced out of tcp", slot);
  }
  WindowTicket ticket{};
  MEP_TRY(decode_ticket(blob, kTicketMagic, window, bytes, &ticket));
  const auto present = peer->imports().find(window);
  if (present != peer->imports().end()) {
    if (present->second.bytes != bytes) {
      return fail(MEP_ERR_MISMATCH, "window %llu was imported with %zu bytes, now with %zu",
                  number(window), present->second.bytes, bytes);
    }
    if (present->second.token == ticket.token && ticket.generation < present->second.generation) {
      return fail(MEP_ERR_MISMATCH, "window %llu of generation %u came after generation %u",
                  number(window), ticket.generation, present->second.generation);
    }
  }
  peer->imports()[window] = {ticket.token, bytes, ticket.generation};
  return MEP_SUCCESS;
}

void TcpTransport::drop_window(uint32_t slot, uint64_t window) {
  const ExclusiveLock lock(windows_lock_);
  if (slot < peers_.size() && peers_[slot] != nullptr) peers_[slot]->imports().erase(window);
}

// --- Data -----------------------------------------------------------------------------------------

uint32_t TcpTransport::lanes(uint32_t slot) const {
  const SharedLock lock(windows_lock_);
  return slot < peers_.size() && peers_[slot] != nullptr ? kLanes : 0;
}

mep_result_t TcpTransport::find_target(uint32_t slot, uint32_t lane, uint64_t window,
                                       uint64_t offset, size_t bytes, TcpPeer** peer,
                                       uint64_t* token) const {
  MEP_TRY(find_peer(slot, peer));
  if ((*peer)->state() == TcpPeer::State::kFenced) {
    return fail(MEP_ERR_PEER_FAILED, "slot %u is fenced out of tcp", slot);
  }
  if (lane >= kLanes) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "lane %u: tcp has %u", lane, kLanes);
  }
  const auto& imports = (*peer)->imports();
  const auto found = imports.find(window);
  if (found == imports.end()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "window %llu of slot %u is not imported", number(window),
                slot);
  }
  if (offset > found->second.bytes || bytes > found->second.bytes - offset) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "%zu bytes at offset %llu do not fit into the %zu bytes of window %llu", bytes,
                number(offset), found->second.bytes, number(window));
  }
  *token = found->second.token;
  return MEP_SUCCESS;
}

mep_result_t TcpTransport::put(uint32_t slot, uint32_t lane, uint64_t window, uint64_t offset,
                               const void* local, size_t bytes) {
  const SharedLock lock(windows_lock_);
  TcpPeer* peer = nullptr;
  uint64_t token = 0;
  MEP_TRY(find_target(slot, lane, window, offset, bytes, &peer, &token));
  if (bytes == 0) return MEP_SUCCESS;
  if (local == nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "a put of %zu bytes has no source", bytes);
  }
  return peer->put(token, offset, local, bytes);
}

mep_result_t TcpTransport::signal(uint32_t slot, uint32_t lane, uint64_t window, uint64_t offset,
                                  uint64_t word, bool wake) {
  const SharedLock lock(windows_lock_);
  TcpPeer* peer = nullptr;
  uint64_t token = 0;
  MEP_TRY(find_target(slot, lane, window, offset, sizeof word, &peer, &token));
  if (offset % sizeof word != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "a signal at offset %llu, which is no multiple of 8",
                number(offset));
  }
  if (wake && !peer->imports().contains(kWorldWindowId)) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "slot %u cannot be woken: its world window is not imported", slot);
  }
  return peer->signal(token, offset, word, wake);
}

mep_result_t TcpTransport::flush(uint32_t slot) {
  const SharedLock lock(windows_lock_);
  TcpPeer* peer = nullptr;
  MEP_TRY(find_peer(slot, &peer));
  peer->release_sources();
  return MEP_SUCCESS;
}

mep_result_t TcpTransport::mark(uint32_t slot, uint64_t number) {
  const SharedLock lock(windows_lock_);
  TcpPeer* peer = nullptr;
  MEP_TRY(find_peer(slot, &peer));
  return peer->mark(number);
}

uint64_t TcpTransport::marked(uint32_t slot) const {
  const SharedLock lock(windows_lock_);
  return slot < peers_.size() && peers_[slot] != nullptr ? peers_[slot]->marked() : 0;
}

bool TcpTransport::connected(uint32_t slot) const {
  const SharedLock lock(windows_lock_);
  return slot < peers_.size() && peers_[slot] != nullptr &&
         peers_[slot]->state() == TcpPeer::State::kUp;
}

int TcpTransport::sleep_epoll(int wake_fd, uint64_t tag) {
  return watch(data_epoll_.get(), wake_fd, tag) ? data_epoll_.get() : -1;
}

const char* TcpTransport::describe(uint32_t slot) const {
  const SharedLock lock(windows_lock_);
  if (slot >= peers_.size() || peers_[slot] == nullptr) return nullptr;
  const TcpPeer& peer = *peers_[slot];
  if (peer.state() != TcpPeer::State::kUp) return "tcp";
  switch (peer.protection()) {
    case Protection::kPlain:
      return "tcp";
    case Protection::kAuthenticated:
      return "tcp (authenticated)";
    case Protection::kEncrypted:
      return "tcp (encrypted)";
  }
  return "tcp";
}

mep_result_t TcpTransport::register_memory(const void* /*memory*/, size_t /*bytes*/) {
  return MEP_SUCCESS;
}

// --- Progress -------------------------------------------------------------------------------------

mep_result_t TcpTransport::progress(bool* active) {
  *active = false;
  const SharedLock lock(windows_lock_);
  for (TcpPeer* peer : connected_) {
    if (peer->blocked()) peer->send_left();
  }
  if (connected_.size() <= kDirectPeers) {
    for (TcpPeer* peer : connected_) *active = peer->receive(exports_) || *active;
    return MEP_SUCCESS;
  }
  std::array<epoll_event, 64> events;
  const int count =
      epoll_wait(data_epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const uint64_t slot = events[static_cast<size_t>(i)].data.u64;
    if (slot < peers_.size() && peers_[slot] != nullptr) {
      *active = peers_[slot]->receive(exports_) || *active;
    }
  }
  return MEP_SUCCESS;
}

void TcpTransport::control_progress() {
  if (greeter_ == nullptr) return;
  std::array<epoll_event, 64> events;
  const int count =
      epoll_wait(control_epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  bool greets = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t data = events[static_cast<size_t>(i)].data.u64;
    if (data == kTimerTag || data == kKickTag) {
      uint64_t times = 0;
      (void)!read(data == kTimerTag ? timer_.get() : kick_.get(), &times, sizeof times);
    }
    if (data >= kGreeterTag) {
      greets = true;
      continue;
    }
    const SharedLock lock(windows_lock_);
    if (data < peers_.size() && peers_[data] != nullptr) peers_[data]->send_left();
  }
  if (greets) advance_greetings();
}

void TcpTransport::advance_greetings() {
  const std::lock_guard set_up(set_up_mutex_);
  try {
    greeter_->advance(
        [this](TcpPeer* peer, UniqueFd* socket, const Hello& hello, const Challenge& challenge) {
          return connect_peer(peer, socket, hello, challenge);
        });
  } catch (const std::bad_alloc&) {
    log(LogLevel::kWarn, "tcp: no memory for a new connection; trying again");
  }
  set_timer();
}

// Runs while there is somebody whose time may be over, or who must be called again.
void TcpTransport::set_timer() {
  const bool runs = greeter_->needs_time();
  if (runs == timer_runs_) return;
  timer_runs_ = runs;
  itimerspec time{};
  if (runs) time.it_value.tv_nsec = time.it_interval.tv_nsec = kTimerNs;
  timerfd_settime(timer_.get(), 0, &time, nullptr);
}

void TcpTransport::kick() {
  const uint64_t one = 1;
  (void)!write(kick_.get(), &one, sizeof one);  // full means readable already
}

void TcpTransport::peer_failed() {
  any_failed_.store(true, std::memory_order_release);
  kick();
}

// A thread that sleeps in a wait is told, and the control thread in case there is none.
void TcpTransport::peer_blocked(uint32_t slot, int socket, bool again) {
  if (!again) watch_data(slot, socket, EPOLLIN | EPOLLOUT);
  epoll_event event{};
  event.events = EPOLLOUT | EPOLLONESHOT;
  event.data.u64 = slot;
  if (epoll_ctl(control_epoll_.get(), EPOLL_CTL_MOD, socket, &event) != 0 && errno == ENOENT) {
    epoll_ctl(control_epoll_.get(), EPOLL_CTL_ADD, socket, &event);
  }
}

void TcpTransport::peer_unblocked(uint32_t slot, int socket) {
  watch_data(slot, socket, EPOLLIN);
}

// Before the socket is in the epoll this changes nothing: what is left then is the control thread's.
void TcpTransport::watch_data(uint32_t slot, int socket, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = slot;
  epoll_ctl(data_epoll_.get(), EPOLL_CTL_MOD, socket, &event);
}

bool TcpTransport::take_failure(PeerFailure* out) {
  if (!any_failed_.exchange(false, std::memory_order_acquire)) return false;
  // Until all have been looked at in vain, which does not happen if there is no memory to tell of one.
  struct LookAgain {
    std::atomic<bool>* flag;
    ~LookAgain() {
      if (flag != nullptr) flag->store(true, std::memory_order_relaxed);
    }
  } again{&any_failed_};
  const SharedLock lock(windows_lock_);
  for (const std::unique_ptr<TcpPeer>& peer : peers_) {
    if (peer != nullptr && peer->take_failure(out)) return true;
  }
  again.flag = nullptr;
  return false;
}

size_t TcpTransport::half_open() {
  const std::lock_guard set_up(set_up_mutex_);
  return greeter_ == nullptr ? 0 : greeter_->half_open();
}

}  // namespace mep::tcp

namespace mep {

std::unique_ptr<Transport> make_tcp_transport(const TransportOptions& options) {
  return std::make_unique<tcp::TcpTransport>(options);
}

}  // namespace mep
