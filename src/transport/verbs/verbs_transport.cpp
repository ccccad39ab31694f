#include "transport/verbs/verbs_transport.hpp"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>

#include "base/log.hpp"
#include "base/status.hpp"
#include "base/system_error.hpp"
#include "transport/mapped_transport.hpp"

namespace mep::verbs {
namespace {

constexpr TransportTraits kTraits{.name = "verbs",
                                  .reach = Reach::kAnywhere,
                                  .has_events = true,
                                  .needs_registration = true,
                                  .renews_windows = true};

std::string memory_limit_text() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return " (the limit of locked memory is " + std::to_string(limit.rlim_cur >> 10) +
         " KiB: raise ulimit -l)";
}

}  // namespace

// --- Memory -----------------------------------------------------------------------------------------

mep_result_t HcaRegistrar::add(const void* memory, size_t bytes, bool writable, Registration* out) {
  Registration made;
  const int access =
      writable ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ : 0;
  for (size_t i = 0; i < hcas_->size(); ++i) {
    const Hca& hca = *(*hcas_)[i];
    ibv_mr* region = ibv_reg_mr(hca.protection_domain(), const_cast<void*>(memory), bytes,
                                writable ? access : int{IBV_ACCESS_LOCAL_WRITE});
    if (region == nullptr && !writable) {
      // Read-only memory can be a source all the same.
      region = ibv_reg_mr(hca.protection_domain(), const_cast<void*>(memory), bytes, 0);
    }
    if (region == nullptr) {
      const int error = errno;
      remove(&made);
      errno = error;
      return fail(MEP_ERR_NO_MEMORY, "HCA %s cannot register %zu bytes: %m%s", hca.name().c_str(),
                  bytes, memory_limit_text().c_str());
    }
    made.handles[i] = region;
    made.lkeys[i] = region->lkey;
    made.rkeys[i] = region->rkey;
  }
  *out = made;
  return MEP_SUCCESS;
}

void HcaRegistrar::remove(Registration* registration) {
  for (void*& handle : registration->handles) {
    if (handle != nullptr) (void)ibv_dereg_mr(static_cast<ibv_mr*>(handle));
    handle = nullptr;
  }
}

// --- Opening ----------------------------------------------------------------------------------------

VerbsTransport::VerbsTransport(const TransportOptions& options)
    : Transport(kTraits),
      options_(options),
      peers_(std::make_unique<std::atomic<Peer*>[]>(kMaxPeerSlots)) {}

VerbsTransport::~VerbsTransport() {
  for (uint32_t slot = 0; slot < kMaxPeerSlots; ++slot) VerbsTransport::remove_peer(slot);
  for (auto& [id, exported] : exports_) {
    for (Registration& earlier : exported.earlier) registrar_.remove(&earlier);
  }
  memory_.reset();
  bounce_.reset();
}

mep_result_t VerbsTransport::open(std::vector<std::byte>* offer) {
  MEP_TRY(open_hcas());
  memory_ = std::make_unique<RegistrationCache>(&registrar_, settings_.cache_bytes);
  bounce_ = std::make_unique<BouncePool>(&registrar_);
  MEP_TRY(bounce_->open());
  MEP_TRY(watch_events());
  events_ = {arrivals_.get(), false, control_events_.get()};
  std::vector<PortAddress> ports;
  for (const auto& hca : hcas_) ports.push_back(hca->address());
  *offer = encode_offer(ports);
  return MEP_SUCCESS;
}

mep_result_t VerbsTransport::open_hcas() {
  std::vector<PortName> names = active_ports();
  if (names.empty()) {
    const std::string ports = describe_ports();
    if (ports.empty()) return fail(MEP_ERR_UNSUPPORTED, "this machine has no RDMA devices");
    return fail(MEP_ERR_UNSUPPORTED, "no HCA has an active port: %s", ports.c_str());
  }
  MEP_TRY(read_settings(&settings_));
  (void)ibv_fork_init();  // where the kernel does not copy pinned pages at a fork
  size_t wanted = kMaxRails;
  if (options_.near_adapters) {
    NearAdapters near;
    MEP_TRY(options_.near_adapters(&near));
    if (near.names.empty()) return fail(MEP_ERR_UNSUPPORTED, "no HCA may or can be used");
    MEP_TRY(parse_port_list(near.names, &names));
    if (near.equals != 0) wanted = std::min<size_t>(wanted, near.equals);
  }
  std::string refusals;
  for (const PortName& name : names) {
    if (hcas_.size() == wanted) break;
    std::unique_ptr<Hca> hca;
    if (Hca::open(name, settings_, &hca) != MEP_SUCCESS) {
      refusals += std::string(refusals.empty() ? "" : "; ") + last_error_text();
      continue;
    }
    hcas_.push_back(std::move(hca));
  }
  if (hcas_.empty()) return fail(MEP_ERR_UNSUPPORTED, "%s", refusals.c_str());
  if (!refusals.empty()) log(LogLevel::kInfo, "verbs goes on without: %s", refusals.c_str());
  return MEP_SUCCESS;
}

mep_result_t VerbsTransport::watch_events() {
  arrivals_.reset(epoll_create1(EPOLL_CLOEXEC));
  control_events_.reset(epoll_create1(EPOLL_CLOEXEC));
  MEP_TRY(open_eventfd("verbs", 0, &failed_event_));
  check_timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  bool watched = arrivals_.valid() && control_events_.valid();
  const auto watch = [&](const UniqueFd& poll, int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    watched = watched && fd >= 0 && epoll_ctl(poll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  };
  watch(control_events_, failed_event_.get());
  watch(control_events_, check_timer_.get());
  for (const auto& hca : hcas_) {
    watch(arrivals_, hca->completion_fd());
    watch(control_events_, hca->async_fd());
  }
  return watched ? MEP_SUCCESS
                 : fail(result_of_errno(errno), "no descriptors for verbs' events: %m");
}

// --- Peers ------------------------------------------------------------------------------------------

mep_result_t VerbsTransport::add_peer(const PeerIdentity& self, const PeerIdentity& peer,
                                      std::span<const std::byte> offer,
                                      const PeerSession& /*session*/) {
  if (peer.slot >= kMaxPeerSlots) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "slot %u: verbs has room for slots below %u", peer.slot,
                kMaxPeerSlots);
  }
  if (!reaches(self, peer)) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "verbs does not reach slot %u", peer.slot);
  }
  if (peers_[peer.slot].load(std::memory_order_acquire) != nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "slot %u is a peer of verbs already", peer.slot);
  }
  std::vector<PortAddress> own;
  for (const auto& hca : hcas_) own.push_back(hca->address());
  std::vector<PortAddress> theirs;
  MEP_TRY(decode_offer(offer, &theirs));
  const bool is_lower = self.slot < peer.slot;
  const std::vector<RailPorts> pairs = is_lower ? pair_rails(own, theirs) : pair_rails(theirs, own);
  if (pairs.empty()) {
    return fail(MEP_ERR_UNSUPPORTED, "no HCA of this rank and none of slot %u share a fabric",
                peer.slot);
  }
  std::vector<Peer::Rail> rails(pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    rails[i].hca = is_lower ? pairs[i].lower : pairs[i].higher;
    rails[i].remote = theirs[is_lower ? pairs[i].higher : pairs[i].lower];
    MEP_TRY(Connection::create(hcas_[rails[i].hca].get(), settings_, &rails[i].connection));
  }
  auto added = std::make_unique<Peer>(static_cast<Fabric*>(this), peer, std::move(rails));
  const std::unique_lock lock(peers_mutex_);
  present_.push_back(peer.slot);
  peers_[peer.slot].store(added.release(), std::memory_order_release);
  return MEP_SUCCESS;
}

void VerbsTransport::remove_peer(uint32_t slot) {
  if (slot >= kMaxPeerSlots) return;
  if (peers_[slot].load(std::memory_order_acquire) == nullptr) return;
  std::unique_ptr<Peer> removed;
  {
    const std::unique_lock lock(peers_mutex_);
    removed.reset(peers_[slot].exchange(nullptr, std::memory_order_acq_rel));
    std::erase(present_, slot);
  }
  const std::lock_guard lock(failures_mutex_);
  std::erase_if(failures_, [slot](const PeerFailure& failure) { return failure.slot == slot; });
}

mep_result_t VerbsTransport::find_peer(uint32_t slot, Peer** out) const {
  *out = slot < kMaxPeerSlots ? peers_[slot].load(std::memory_order_acquire) : nullptr;
  if (*out == nullptr) return fail(MEP_ERR_INVALID_ARGUMENT, "slot %u is no peer of verbs", slot);
  return MEP_SUCCESS;
}

// --- Windows ----------------------------------------------------------------------------------------

mep_result_t VerbsTransport::register_window(const std::shared_ptr<Window>& window,
                                             Registration* out) {
  const std::lock_guard lock(exports_mutex_);
  forget_dead_exports();
  Export& entry = exports_[window->id()];
  if (entry.window.lock() == window && entry.generation == window->generation()) {
    *out = entry.current;
    return MEP_SUCCESS;
  }
  Registration made;
  Registration previous;
  MEP_TRY(memory_->adopt(window->data(), window->bytes(), window, &made, &previous));
  for (Registration& earlier : entry.earlier) registrar_.remove(&earlier);
  entry.earlier.clear();
  if (previous.handles[0] != nullptr) entry.earlier.push_back(previous);
  entry.window = window;
  entry.generation = window->generation();
  entry.current = made;
  if (window->id() == kWorldWindowId && window->bytes() >= sizeof(Doorbell)) {
    world_window_ = window;
    doorbell_.store(reinterpret_cast<Doorbell*>(window->data()), std::memory_order_release);
  }
  *out = made;
  return MEP_SUCCESS;
}

// Windows that were destroyed since: the HCAs need not hold their pages.
void VerbsTransport::forget_dead_exports() {
  memory_->sweep();
  for (auto entry = exports_.begin(); entry != exports_.end();) {
    if (!entry->second.window.expired()) {
      ++entry;
      continue;
    }
    for (Registration& earlier : entry->second.earlier) registrar_.remove(&earlier);
    entry = exports_.erase(entry);
  }
}

mep_result_t VerbsTransport::export_window(uint32_t slot, const std::shared_ptr<Window>& window,
                                           WindowExport* out) {
  Peer* peer = nullptr;
  MEP_TRY(find_peer(slot, &peer));
  Registration registration;
  MEP_TRY(register_window(window, &registration));
  WindowAddress address;
  address.window = window->id();
  address.bytes = window->bytes();
  address.address = reinterpret_cast<uintptr_t>(window->data());
  address.generation = window->generation();
  address.rails = peer->ends(registration);
  peer->offer(window);
  out->blob = encode_window(address);
  out->fd.reset();
  return MEP_SUCCESS;
}

mep_result_t VerbsTransport::import_window(uint32_t slot, uint64_t window, size_t bytes,
                                           std::span<const std::byte> blob, UniqueFd /*fd*/) {
  if (window == kNoWindow) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "no window has the id %llu",
                static_cast<unsigned long long>(window));
  }
  Peer* peer = nullptr;
  MEP_TRY(find_peer(slot, &peer));
  return peer->import(window, bytes, blob);
}

void VerbsTransport::drop_window(uint32_t slot, uint64_t window) {
  Peer* peer = nullptr;
  if (find_peer(slot, &peer) == MEP_SUCCESS) peer->drop(window);
}

// --- Data -------------------------------------------------------------------------------------------

mep_result_t VerbsTransport::post(uint32_t slot, Batch* batch) {
  Peer* peer = nullptr;
  MEP_TRY(find_peer(slot, &peer));
  return peer->post(batch);
}

mep_result_t VerbsTransport::completion(uint32_t slot, bool is_urgent, Completion* out) {
  // Also of a peer that is being removed: who flushes an operation that is over may not know yet.
  const std::shared_lock lock(peers_mutex_);
  Peer* peer = nullptr;
  MEP_TRY(find_peer(slot, &peer));
  return peer->completion(is_urgent, out);
}

mep_result_t VerbsTransport::fence_out(uint32_t slot) {
  Peer* peer = nullptr;
  MEP_TRY(find_peer(slot, &peer));
  peer->fence();
  return MEP_SUCCESS;
}

void VerbsTransport::give_up(uint32_t slot) {
  Peer* peer = nullptr;
  if (find_peer(slot, &peer) == MEP_SUCCESS) peer->give_up();
}

bool VerbsTransport::quiesced(uint32_t slot, uint64_t number) {
  Peer* peer = nullptr;
  return find_peer(slot, &peer) == MEP_SUCCESS && peer->quiesced(number);
}

PeerStatus VerbsTransport::status(uint32_t slot) const {
  Peer* peer = nullptr;
  if (find_peer(slot, &peer) != MEP_SUCCESS) return {};
  return {true, peer->description()};
}

// --- Progress ---------------------------------------------------------------------------------------

bool VerbsTransport::drain_all() {
  bool any = false;
  for (const auto& hca : hcas_) {
    const Hca::Drained drained = hca->drain();
    any = any || drained.any;
    if (drained.marks) wake_control();
  }
  if (any) {
    taken_since_asked_.store(true, std::memory_order_relaxed);
    Doorbell* doorbell = doorbell_.load(std::memory_order_acquire);
    if (doorbell != nullptr) doorbell_ring_sleepers(doorbell);  // other threads of this rank
  }
  return any;
}

void VerbsTransport::hold_windows(bool is_held) {
  for (const auto& hca : hcas_) {
    if (is_held) {
      hca->hold_windows();
    } else {
      hca->release_windows();
    }
  }
}

bool VerbsTransport::progress(bool before_sleep) {
  try {
    return make_progress(before_sleep);
  } catch (const std::bad_alloc&) {
    return false;  // what is not done here a later call does
  }
}

bool VerbsTransport::make_progress(bool before_sleep) {
  if (before_sleep) {
    return taken_since_asked_.load(std::memory_order_relaxed) && ask_for_notification();
  }
  bool active = drain_all();
  if (no_chunk_.load(std::memory_order_relaxed)) reclaim_chunks();
  // Threads that spin call this all the time; the rest can wait for a few rounds. Relaxed: only counts.
  constexpr uint32_t kRounds = 16;
  constexpr uint32_t kQuietRounds = 64;
  if (active) {
    quiet_rounds_.store(0, std::memory_order_relaxed);
  } else if (quiet_rounds_.fetch_add(1, std::memory_order_relaxed) % kQuietRounds ==
             kQuietRounds - 1) {
    epoll_event pending{};
    if (epoll_wait(arrivals_.get(), &pending, 1, 0) > 0) active = ask_for_notification();
  }
  if (rounds_.fetch_add(1, std::memory_order_relaxed) % kRounds != 0) return active;
  const std::shared_lock lock(peers_mutex_);
  for (const uint32_t slot : present_) {
    peers_[slot].load(std::memory_order_acquire)->progress();
  }
  return active;
}

// The last one stays pending, and events().data readable, until here: asking costs more than looking. True:
// something had come before.
bool VerbsTransport::ask_for_notification() {
  taken_since_asked_.store(false, std::memory_order_relaxed);
  for (const auto& hca : hcas_) hca->arm();
  return drain_all();
}

void VerbsTransport::serve() {
  uint64_t ignored = 0;
  (void)!read(failed_event_.get(), &ignored, sizeof ignored);
  take_device_events();
  for (const auto& hca : hcas_) {
    if (!hca->runs_low()) continue;
    (void)drain_all();
    hca->watch_low();
  }
  if (read(check_timer_.get(), &ignored, sizeof ignored) == sizeof ignored) check_sends();
}

// A posting that does not come through shows as an error, but somebody must look.
void VerbsTransport::check_sends() {
  check_is_due_.store(false, std::memory_order_relaxed);
  bool is_busy = false;
  {
    const std::shared_lock lock(peers_mutex_);
    for (const uint32_t slot : present_) {
      is_busy = peers_[slot].load(std::memory_order_acquire)->check() || is_busy;
    }
  }
  if (is_busy) note_posted();
}

void VerbsTransport::note_posted() {
  if (check_is_due_.load(std::memory_order_relaxed) ||
      check_is_due_.exchange(true, std::memory_order_relaxed)) {
    return;
  }
  constexpr long kCheckNs = 100'000'000;
  const itimerspec once{{0, 0}, {0, kCheckNs}};
  (void)timerfd_settime(check_timer_.get(), 0, &once, nullptr);
}

void VerbsTransport::wake_control() {
  const uint64_t one = 1;
  (void)!write(failed_event_.get(), &one, sizeof one);  // full only if it is readable already
}

void VerbsTransport::take_device_events() {
  const std::shared_lock lock(peers_mutex_);
  for (const auto& hca : hcas_) {
    std::vector<std::pair<uint32_t, std::string>> broken;
    std::string text;
    const bool is_lost = hca->take_events(
        [&](uint32_t number, const char* what) { broken.emplace_back(number, what); }, &text);
    for (const uint32_t slot : present_) {
      Peer* peer = peers_[slot].load(std::memory_order_acquire);
      if (is_lost) peer->break_rails_of(hca.get(), text);
      for (const auto& [number, what] : broken) {
        if (!peer->owns_queue_pair(number, hca.get())) continue;
        peer->break_rails_of(hca.get(), "HCA " + hca->name() + ": " + what);
      }
    }
  }
}

void VerbsTransport::note_no_chunk() {
  no_chunk_.store(true, std::memory_order_relaxed);
}

void VerbsTransport::reclaim_chunks() {
  no_chunk_.store(false, std::memory_order_relaxed);
  if (!bounce_->is_empty()) return;
  const std::shared_lock lock(peers_mutex_);
  for (const uint32_t slot : present_) {
    peers_[slot].load(std::memory_order_acquire)->reclaim();
  }
}

void VerbsTransport::note_failure(const PeerFailure& failure) {
  {
    const std::lock_guard lock(failures_mutex_);
    failures_.push_back(failure);
  }
  wake_control();
}

bool VerbsTransport::take_failure(PeerFailure* out) {
  const std::lock_guard lock(failures_mutex_);
  if (failures_.empty()) return false;
  *out = std::move(failures_.back());
  failures_.pop_back();
  return true;
}

void VerbsTransport::break_queue_pair(uint32_t slot) {
  Peer* peer = nullptr;
  if (find_peer(slot, &peer) == MEP_SUCCESS) peer->break_queue_pair();
}

bool VerbsTransport::is_acknowledged(uint32_t slot) const {
  Peer* peer = nullptr;
  return find_peer(slot, &peer) != MEP_SUCCESS || !peer->check();
}

void VerbsTransport::spoil_key(uint32_t slot, uint64_t window) {
  Peer* peer = nullptr;
  if (find_peer(slot, &peer) == MEP_SUCCESS) peer->spoil_key(window);
}

}  // namespace mep::verbs

namespace mep {

std::unique_ptr<Transport> make_verbs_transport(const TransportOptions& options) {
  return std::make_unique<verbs::VerbsTransport>(options);
}

}  // namespace mep
