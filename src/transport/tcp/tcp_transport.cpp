#include "transport/tcp/tcp_transport.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <shared_mutex>

#include "base/env.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "base/system_error.hpp"
#include "transport/mapped_transport.hpp"

namespace mep::tcp {
namespace {

constexpr uint32_t kTicketMagic = 0x4d455054;
constexpr TransportTraits kTraits{.name = "tcp", .reach = Reach::kAnywhere, .has_events = true};
constexpr long kTimerNs = 10'000'000;
// Data of the entries of data_epoll_: slot | number of the connection << 32.
constexpr unsigned kStreamShift = 32;

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

[[nodiscard]] mep_result_t read_options(Options* out) {
  bool is_set = false;
  MEP_TRY(env_string("MEP_NET_IF", &out->interfaces, &is_set));
  MEP_TRY(env_bool("MEP_ENCRYPT", &out->encrypts, &is_set));
  MEP_TRY(env_bool("MEP_AUTHENTICATE", &out->authenticates_all, &is_set));
  uint64_t streams = out->streams;
  MEP_TRY(env_number("MEP_TCP_STREAMS", &streams, &is_set));
  out->streams = static_cast<uint8_t>(streams);
  return MEP_SUCCESS;
}

}  // namespace

TcpTransport::TcpTransport(const TransportOptions& options, const Options* own)
    : Transport(kTraits),
      options_(options),
      own_options_(own != nullptr ? *own : Options{}),
      has_own_options_(own != nullptr) {}

TcpTransport::~TcpTransport() = default;

mep_result_t TcpTransport::open(std::vector<std::byte>* offer) {
  offer->clear();  // where this rank listens comes with the windows
  if (!has_own_options_) MEP_TRY(read_options(&own_options_));
  MEP_TRY(prepare_sodium());
  std::vector<Address> addresses;
  return local_addresses({own_options_.interfaces, options_.one_host}, &addresses);
}

mep_result_t TcpTransport::start() {
  if (greeter_ != nullptr) return MEP_SUCCESS;
  data_epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  control_epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  MEP_TRY(open_eventfd("tcp", 0, &kick_));
  if (!data_epoll_.valid() || !control_epoll_.valid() || !timer_.valid()) {
    return fail(MEP_ERR_NO_MEMORY, "no descriptors left (ulimit -n): %m");
  }
  if (!watch(control_epoll_.get(), timer_.get(), kTimerTag) ||
      !watch(control_epoll_.get(), kick_.get(), kKickTag)) {
    return fail(MEP_ERR_NO_MEMORY, "tcp cannot watch its descriptors: %m");
  }
  GreeterOptions greeting;
  greeting.interfaces = own_options_.interfaces;
  greeting.one_host = options_.one_host;
  greeting.suspect_ms = options_.suspect_ms;
  greeting.connect_timeout_ms = options_.connect_timeout_ms;
  greeter_ = std::make_unique<Greeter>(std::move(greeting), control_epoll_.get(), kGreeterTag);
  events_ = {data_epoll_.get(), true, control_epoll_.get()};
  return MEP_SUCCESS;
}

// --- Peers ----------------------------------------------------------------------------------------

mep_result_t TcpTransport::add_peer(const PeerIdentity& self, const PeerIdentity& peer,
                                    std::span<const std::byte> offer, const PeerSession& session) {
  if (peer.slot >= kMaxPeerSlots) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "slot %u: tcp has room for slots below %u", peer.slot,
                kMaxPeerSlots);
  }
  if (!reaches(self, peer)) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "slot %u is this rank itself", peer.slot);
  }
  if (!offer.empty()) {
    return fail(MEP_ERR_DENIED, "slot %u sent an offer of %zu bytes for tcp, which has none",
                peer.slot, offer.size());
  }
  const std::lock_guard set_up(set_up_mutex_);
  {
    const SharedLock lock(windows_lock_);
    if (peer_at(peer.slot) != nullptr) {
      return fail(MEP_ERR_INVALID_ARGUMENT, "slot %u is a peer of tcp already", peer.slot);
    }
  }
  MEP_TRY(start());
  // Between hosts nobody vouches for the wire; on one host the kernel carries the bytes.
  const bool beyond_host = self.host != peer.host;
  Wishes wishes{Protection::kPlain, own_options_.ciphers & own_ciphers(), own_options_.streams};
  if (beyond_host || own_options_.authenticates_all) wishes.protection = Protection::kAuthenticated;
  if (own_options_.encrypts) wishes.protection = Protection::kEncrypted;
  auto added =
      std::make_unique<TcpPeer>(self, peer, session, wishes, static_cast<PeerEvents*>(this));
  if (!added->connects()) MEP_TRY(greeter_->listen(beyond_host));
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
  if (peer_at(slot) == nullptr) return;
  greeter_->remove(peers_[slot].get());
  std::erase(connected_, peers_[slot].get());
  peers_[slot].reset();
}

mep_result_t TcpTransport::find_peer(uint32_t slot, TcpPeer** out) const {
  *out = peer_at(slot);
  if (*out != nullptr) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT, "slot %u is no peer of tcp", slot);
}

void TcpTransport::connect_peer(TcpPeer* peer, UniqueFd* socket, const Hello& hello,
                                const Challenge& challenge) {
  const ExclusiveLock lock(windows_lock_);
  if (!peer->add_stream(socket, hello, challenge)) return;  // its end closes the socket
  if (peer->next_stream() < challenge.streams) return;
  for (uint64_t i = 0; i < challenge.streams; ++i) {
    if (!watch(data_epoll_.get(), peer->socket(i), peer->identity().slot | i << kStreamShift)) {
      return peer->fail_connecting("its connection cannot be watched (epoll_ctl)");
    }
  }
  peer->establish();
  connected_.push_back(peer);
  log(LogLevel::kDebug, "tcp: connected with rank %u: %s, connections: %u", peer->identity().slot,
      peer->text(), challenge.streams);
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

mep_result_t TcpTransport::export_window(uint32_t slot, const std::shared_ptr<Window>& window,
                                         WindowExport* out) {
  const std::lock_guard set_up(set_up_mutex_);
  const ExclusiveLock lock(windows_lock_);
  TcpPeer* peer = nullptr;
  MEP_TRY(find_peer(slot, &peer));
  const uint64_t token = exports_.add(window);
  out->blob =
      encode_ticket({kTicketMagic, window->generation(), window->id(), window->bytes(), token});
  const std::vector<std::byte> addresses = encode_addresses(
      peer->connects() ? std::span<const Address>{} : std::span(greeter_->listening()));
  out->blob.insert(out->blob.end(), addresses.begin(), addresses.end());
  out->fd.reset();
  return MEP_SUCCESS;
}

// From the first of the peer's windows on.
mep_result_t TcpTransport::begin_connection(uint32_t slot, std::span<const std::byte> addresses) {
  TcpPeer* peer = nullptr;
  {
    const SharedLock lock(windows_lock_);
    MEP_TRY(find_peer(slot, &peer));
  }
  std::vector<Address> theirs;
  if (parse_addresses(addresses, &theirs) != Parse::kComplete) {
    return fail(MEP_ERR_DENIED, "slot %u sent addresses for tcp that are none (%zu bytes)", slot,
                addresses.size());
  }
  greeter_->want(peer, theirs);
  kick();
  return MEP_SUCCESS;
}

mep_result_t TcpTransport::import_window(uint32_t slot, uint64_t window, size_t bytes,
                                         std::span<const std::byte> blob, UniqueFd /*fd*/) {
  if (window == kNoWindow) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "no window has the id %llu", number(window));
  }
  const std::lock_guard set_up(set_up_mutex_);
  TcpPeer::Import import;
  {
    const SharedLock lock(windows_lock_);
    TcpPeer* peer = nullptr;
    MEP_TRY(find_peer(slot, &peer));
    if (peer->state() == TcpPeer::State::kFenced) {
      return fail(MEP_ERR_PEER_FAILED, "slot %u is fenced out of tcp", slot);
    }
    WindowTicket ticket{};
    MEP_TRY(decode_ticket(blob.first(std::min(blob.size(), sizeof ticket)), kTicketMagic, window,
                          bytes, &ticket));
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
    import = {ticket.token, bytes, ticket.generation};
  }
  MEP_TRY(begin_connection(slot, blob.subspan(sizeof(WindowTicket))));
  const ExclusiveLock lock(windows_lock_);
  TcpPeer* peer = nullptr;
  MEP_TRY(find_peer(slot, &peer));
  peer->imports()[window] = import;
  return MEP_SUCCESS;
}

void TcpTransport::drop_window(uint32_t slot, uint64_t window) {
  const ExclusiveLock lock(windows_lock_);
  if (TcpPeer* peer = peer_at(slot)) peer->imports().erase(window);
}

uint64_t TcpTransport::open_target(uint32_t slot, std::byte* memory, size_t bytes) {
  const SharedLock lock(windows_lock_);
  TcpPeer* const peer = peer_at(slot);
  if (peer == nullptr) return 0;
  const uint64_t number = last_target_.fetch_add(1, std::memory_order_relaxed) + 1;
  peer->open_target(number, memory, bytes);
  return number;
}

void TcpTransport::close_target(uint32_t slot, uint64_t target) {
  const SharedLock lock(windows_lock_);
  if (TcpPeer* const peer = peer_at(slot)) peer->close_target(target);
}

// --- Data -----------------------------------------------------------------------------------------

// Under windows_lock_.
mep_result_t TcpTransport::post_one(TcpPeer* peer, const Posting& posting) {
  const uint32_t slot = peer->identity().slot;
  if (posting.is_to_target) {
    return peer->put(FrameKind::kTarget, posting.window, posting.offset, posting.local,
                     posting.bytes);
  }
  const auto& imports = peer->imports();
  const auto found = imports.find(posting.window);
  if (found == imports.end()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "window %llu of slot %u is not imported",
                number(posting.window), slot);
  }
  const TcpPeer::Import& import = found->second;
  if (posting.offset > import.bytes || posting.bytes > import.bytes - posting.offset) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "%zu bytes at offset %llu do not fit into the %zu bytes of window %llu",
                posting.bytes, number(posting.offset), import.bytes, number(posting.window));
  }
  if (!posting.is_signal) {
    if (posting.bytes == 0) return MEP_SUCCESS;
    if (posting.local == nullptr) {
      return fail(MEP_ERR_INVALID_ARGUMENT, "a put of %zu bytes has no source", posting.bytes);
    }
    return peer->put(FrameKind::kPut, import.token, posting.offset, posting.local, posting.bytes);
  }
  if (posting.offset % sizeof posting.word != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "a signal at offset %llu, which is no multiple of 8",
                number(posting.offset));
  }
  if (posting.wake && !imports.contains(kWorldWindowId)) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "slot %u cannot be woken: its world window is not imported", slot);
  }
  return peer->signal(import.token, posting.offset, posting.word, posting.wake);
}

mep_result_t TcpTransport::post(uint32_t slot, Batch* batch) {
  const SharedLock lock(windows_lock_);
  TcpPeer* peer = nullptr;
  MEP_TRY(find_peer(slot, &peer));
  if (peer->state() == TcpPeer::State::kFenced) {
    return fail(MEP_ERR_PEER_FAILED, "slot %u is fenced out of tcp", slot);
  }
  for (; batch->next < batch->postings.size(); ++batch->next) {
    MEP_TRY(post_one(peer, batch->postings[batch->next]));
  }
  return MEP_SUCCESS;
}

mep_result_t TcpTransport::completion(uint32_t slot, bool is_urgent, Completion* out) {
  const SharedLock lock(windows_lock_);
  TcpPeer* peer = nullptr;
  MEP_TRY(find_peer(slot, &peer));
  *out = peer->completion(is_urgent);
  return MEP_SUCCESS;
}

void TcpTransport::give_up(uint32_t slot) {
  const SharedLock lock(windows_lock_);
  if (TcpPeer* peer = peer_at(slot)) peer->give_up();
}

bool TcpTransport::quiesced(uint32_t slot, uint64_t number) {
  const SharedLock lock(windows_lock_);
  TcpPeer* peer = peer_at(slot);
  return peer != nullptr && peer->quiesced(number);
}

void TcpTransport::hold_windows(bool is_held) {
  if (is_held) {
    windows_lock_.lock();
  } else {
    windows_lock_.unlock();
  }
}

PeerStatus TcpTransport::status(uint32_t slot) const {
  const SharedLock lock(windows_lock_);
  const TcpPeer* peer = peer_at(slot);
  if (peer == nullptr) return {};
  return {peer->state() == TcpPeer::State::kUp, peer->text()};
}

// --- Progress -------------------------------------------------------------------------------------

bool TcpTransport::progress(bool before_sleep) {
  if (before_sleep) return false;  // the descriptor is readable as long as something is there
  bool active = false;
  const SharedLock lock(windows_lock_);
  for (TcpPeer* peer : connected_) {
    if (peer->blocked()) peer->send_left();
  }
  // A single socket is looked at; of more, epoll says which.
  if (connected_.empty()) return active;
  if (connected_.size() == 1 && connected_.front()->streams() == 1) {
    return connected_.front()->receive(exports_, 0) || active;
  }
  std::array<epoll_event, 64> events;
  const int count =
      epoll_wait(data_epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const uint64_t tag = events[static_cast<size_t>(i)].data.u64;
    TcpPeer* const peer = peer_at(static_cast<uint32_t>(tag));
    if (peer != nullptr) active = peer->receive(exports_, tag >> kStreamShift) || active;
  }
  return active;
}

void TcpTransport::serve() {
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
    if (is_waited_for()) continue;  // hand_over() asks for the event again
    const SharedLock lock(windows_lock_);
    if (data < peers_.size() && peers_[data] != nullptr) peers_[data]->send_left();
  }
  if (greets) advance_greetings();
}

void TcpTransport::advance_greetings() {
  const std::lock_guard set_up(set_up_mutex_);
  greeter_->advance(
      [this](TcpPeer* peer, UniqueFd* socket, const Hello& hello, const Challenge& challenge) {
        connect_peer(peer, socket, hello, challenge);
      });
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

// A thread that sleeps in a wait is told, and the control thread if there is none.
void TcpTransport::peer_blocked(uint32_t slot, int socket) {
  any_blocked_.store(true);
  if (!is_waited_for()) watch_left(slot, socket);
}

void TcpTransport::hand_over() {
  if (!any_blocked_.load() || !any_blocked_.exchange(false)) return;
  const SharedLock lock(windows_lock_);
  for (TcpPeer* peer : connected_) {
    if (peer->watch_left()) any_blocked_.store(true);
  }
}

void TcpTransport::watch_left(uint32_t slot, int socket) {
  epoll_event event{};
  event.events = EPOLLOUT | EPOLLONESHOT;
  event.data.u64 = slot;
  if (epoll_ctl(control_epoll_.get(), EPOLL_CTL_MOD, socket, &event) != 0 && errno == ENOENT) {
    epoll_ctl(control_epoll_.get(), EPOLL_CTL_ADD, socket, &event);
  }
}

void TcpTransport::watch_data(uint32_t slot, const Stream& stream, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = slot | uint64_t{stream.number} << kStreamShift;
  epoll_ctl(data_epoll_.get(), EPOLL_CTL_MOD, stream.socket.get(), &event);
}

void TcpTransport::ignore_data(const Stream& stream) {
  epoll_ctl(data_epoll_.get(), EPOLL_CTL_DEL, stream.socket.get(), nullptr);
}

bool TcpTransport::take_failure(PeerFailure* out) {
  if (!any_failed_.exchange(false, std::memory_order_acquire)) return false;
  const SharedLock lock(windows_lock_);
  for (const std::unique_ptr<TcpPeer>& peer : peers_) {
    if (peer == nullptr || !peer->take_failure(out)) continue;
    any_failed_.store(true, std::memory_order_relaxed);  // until all have been looked at in vain
    return true;
  }
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
