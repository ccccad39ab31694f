#include "core/world/world_windows.hpp"

#include <fcntl.h>

#include <algorithm>
#include <new>
#include <string>

#include "base/log.hpp"
#include "base/status.hpp"
#include "core/world/admissions.hpp"
#include "core/world/control_thread.hpp"
#include "core/world/frames.hpp"
#include "core/world/world_end.hpp"
#include "core/world/world_peers.hpp"
#include "core/world/world_view.hpp"
#include "transport/memfd.hpp"
#include "transport/test_network.hpp"

namespace mep {

// --- The world's own window -----------------------------------------------------------------------

mep_result_t WorldWindows::open() {
  MEP_TRY(Window::create(kWorldWindowId, 4096, &world_window_));
  doorbell_open(doorbell());
  return MEP_SUCCESS;
}

mep_result_t WorldWindows::bind_event() {
  if (!peers_.network().is_open()) return MEP_SUCCESS;
  UniqueFd own(fcntl(peers_.network().event(), F_DUPFD_CLOEXEC, 0));
  if (!own.valid()) return fail(MEP_ERR_NO_MEMORY, "no descriptors left (ulimit -n): %m");
  doorbell_bind_event(doorbell(), std::move(own));
  return MEP_SUCCESS;
}

void WorldWindows::unbind_event(uint32_t slot) {
  const WorldPeer& peer = peers_[slot];
  if (!peers_.network().is_open() || slot == peers_.self_slot() || peer.transport == nullptr) {
    return;
  }
  Doorbell* const bell = peer.transport->doorbell(slot);
  // A rank of this process rings by its owner's own entry.
  if (bell == nullptr || peer.identity.process_token == peers_.identity().process_token) return;
  doorbell_unbind_event(bell);
}

void WorldWindows::unbind_events() {
  if (!peers_.network().is_open()) return;
  if (world_window_ != nullptr) doorbell_unbind_event(doorbell());
  for (uint32_t slot = 0; slot < peers_.count(); ++slot) unbind_event(slot);
}

// --- User threads ---------------------------------------------------------------------------------

mep_result_t WorldWindows::send_one(const Window& window, const WindowExport& exported,
                                    uint32_t slot) {
  // A peer that maps the doorbell can ring a thread that sleeps in epoll.
  const int descriptors[] = {exported.fd.get(), peers_.network().event()};
  const bool with_event = window.id() == kWorldWindowId && peers_.network().is_open();
  const size_t count = !exported.fd.valid() ? 0 : with_event ? 2 : 1;
  return send_frame(slot,
                    {window.id(), window.bytes(), window.generation(), exported.blob,
                     directory_.note(window.id(), slot)},
                    {descriptors, count});
}

mep_result_t WorldWindows::send_frame(uint32_t slot, const WindowFrame& frame,
                                      std::span<const int> fds) {
  const std::shared_ptr<ControlLink> link = peers_[slot].link;
  if (link == nullptr) return MEP_SUCCESS;
  const mep_result_t sent = link->send(kFrameWindow, encode_window_frame(frame), fds);
  // A broken link is the control thread's business.
  return sent == MEP_ERR_PEER_FAILED ? MEP_SUCCESS : sent;
}

mep_result_t WorldWindows::offer(const std::shared_ptr<Window>& window,
                                 std::span<const uint32_t> slots) {
  std::vector<uint32_t> sharing(slots.begin(), slots.end());
  if (window->id() == kWorldWindowId) {
    // Shared with whoever comes, too.
    sharing.resize(peers_.count());
    for (uint32_t slot = 0; slot < peers_.count(); ++slot) sharing[slot] = slot;
  }
  directory_.add_own(window, std::move(sharing));
  return send(window, slots);
}

void WorldWindows::add_own(const std::shared_ptr<Window>& window,
                           const std::vector<uint32_t>& slots) {
  directory_.add_own(window, slots);
}

void WorldWindows::remove_own(uint64_t id) {
  drop(id);
}

mep_result_t WorldWindows::send_memory(const KernelMemory& memory, uint32_t slot) {
  const int fd = memory.fd.get();
  return send_frame(slot, {memory.id, memory.bytes, 0, {}, {}, true}, {&fd, 1});
}

mep_result_t WorldWindows::offer_memory(std::shared_ptr<const KernelMemory> memory) {
  directory_.add_memory(memory);
  return send_each(memory->slots, [&](uint32_t slot) { return send_memory(*memory, slot); });
}

mep_result_t WorldWindows::take_memory(uint32_t slot, uint64_t incarnation, uint64_t id,
                                       const Deadline& deadline, WindowOffer* offer) {
  const auto is_needed = [](uint32_t) { return false; };
  // The slot may have its next process already, which need not offer this to a joiner.
  const auto is_gone = [&] {
    return !directory_.has(slot, id) && view_.snapshot().incarnation(slot) != incarnation;
  };
  MEP_TRY(await_offer(slot, id, is_needed, deadline, is_gone));
  if (!directory_.take(slot, id, offer, incarnation)) {
    return fail(MEP_ERR_PEER_FAILED, "rank %u went away while windows were exchanged", slot);
  }
  if (offer->result != MEP_SUCCESS) return fail(offer->result, "%s", offer->text.c_str());
  if (offer->fd.valid()) return MEP_SUCCESS;
  return fail(
      MEP_ERR_UNSUPPORTED,
      "rank %u is on another host, or its descriptors do not reach here: it cannot be mapped",
      slot);
}

mep_result_t WorldWindows::send(const std::shared_ptr<Window>& window,
                                std::span<const uint32_t> slots) {
  return send_each(slots, [&](uint32_t slot) -> mep_result_t {
    WindowExport exported;
    MEP_TRY(peers_[slot].transport->export_window(slot, window, &exported));
    return send_one(*window, exported, slot);
  });
}

mep_result_t WorldWindows::send_each(std::span<const uint32_t> slots,
                                     const std::function<mep_result_t(uint32_t)>& send_to) {
  mep_result_t result = MEP_SUCCESS;
  // On the control thread, which owns the links and their ends.
  const std::vector<uint32_t> targets(slots.begin(), slots.end());
  std::string text;
  const bool ran = control_.call_or_throw([&] {
    for (const uint32_t slot : targets) {
      if (slot == peers_.self_slot() || peers_[slot].transport == nullptr) continue;
      result = send_to(slot);
      if (result == MEP_SUCCESS) continue;
      text = last_error_text();
      return;
    }
  });
  if (!ran) return end_.fail_as_ended();
  if (result != MEP_SUCCESS) return fail(result, "%s", text.c_str());
  return MEP_SUCCESS;
}

Remote WorldWindows::remote_of(uint32_t slot, const Window& window) const {
  // Only tests have several hosts within one process.
  const auto host_of = [](const PeerIdentity& identity) {
    return TestNetwork::enabled() ? TestNetwork::host_of(identity.slot) : identity.host;
  };
  Remote remote;
  remote.slot = slot;
  remote.window = window.id();
  remote.host = host_of(peers_[slot].identity);
  remote.sharing = peers_[slot].sharing;
  remote.readable_pid = peers_[slot].readable_pid;
  if (slot == peers_.self_slot()) {
    remote.mapped = window.data();
    remote.doorbell = doorbell();
    return remote;
  }
  Transport* transport = peers_[slot].transport;
  remote.transport = transport;
  remote.network = peers_.network().is_open() ? &peers_.network() : nullptr;
  // Both or neither: who is not mapped is sent what who is mapped reads by itself.
  const bool both_map = remote.sharing != 0 && remote.sharing == peers_[peers_.self_slot()].sharing;
  if (both_map && remote.host == host_of(peers_.identity())) {
    remote.mapped = transport->map(slot, window.id());
  }
  if (remote.mapped != nullptr) {
    remote.doorbell = reinterpret_cast<Doorbell*>(transport->map(slot, kWorldWindowId));
  }
  return remote;
}

mep_result_t WorldWindows::receive(const std::shared_ptr<Window>& window,
                                   std::span<const uint32_t> slots,
                                   const std::function<bool(uint32_t)>& skip,
                                   const Deadline& deadline, std::vector<Remote>* remotes,
                                   const std::function<bool()>& has_changed) {
  remotes->clear();
  for (const uint32_t slot : slots) {
    remotes->emplace_back();
    if (slot == peers_.self_slot()) {
      remotes->back() = remote_of(slot, *window);
      continue;
    }
    if (skip(slot)) continue;
    // Its doorbell comes with the world's window; of two joiners neither has taken the other's.
    if (window->id() != kWorldWindowId && !is_imported(slot, kWorldWindowId)) {
      std::vector<Remote> doorbell;
      MEP_TRY(receive(world_window_, {&slot, 1}, skip, deadline, &doorbell));
    }
    MEP_TRY(await_offer(slot, window->id(), skip, deadline, has_changed));
    if (skip(slot)) continue;  // it left the view meanwhile
    MEP_TRY(reach(slot, *window, &remotes->back()));
  }
  return MEP_SUCCESS;
}

mep_result_t WorldWindows::await_offer(uint32_t slot, uint64_t id,
                                       const std::function<bool(uint32_t)>& skip,
                                       const Deadline& deadline,
                                       const std::function<bool()>& has_changed) {
  // A joiner asks for what another member told it of; this one may have destroyed it meanwhile.
  bool withheld = false;
  bool is_over = false;
  const auto settled = [&] {
    is_over = has_changed && has_changed();
    if (is_over) return true;
    const bool here = directory_.has(slot, id) || is_imported(slot, id);
    withheld = admissions_.joining() && !here && directory_.offered(slot);
    return here || withheld || end_.result() != MEP_SUCCESS ||
           view_.snapshot().incarnation(slot) == 0;
  };
  if (!directory_.wait(deadline, settled)) {
    return fail(MEP_ERR_TIMEOUT, "rank %u did not offer its part of a window in time", slot);
  }
  if (is_over) return fail(MEP_ERR_PEER_FAILED, "the membership changed meanwhile");
  if (!withheld || skip(slot)) return MEP_SUCCESS;
  return fail(MEP_ERR_NOT_FOUND, "rank %u has destroyed what the window is of", slot);
}

// Without waiting: the window is imported, or its offer is here, unless the peer has gone since.
mep_result_t WorldWindows::reach(uint32_t slot, const Window& window, Remote* remote) {
  const std::lock_guard lock(peers_.reaching_mutex());
  if (!is_imported(slot, window.id())) {
    WindowOffer offer;
    if (!directory_.take(slot, window.id(), &offer)) {
      return fail(MEP_ERR_PEER_FAILED, "rank %u went away while windows were exchanged", slot);
    }
    const mep_result_t taken = import_offer(slot, window, &offer);
    // A member drops a window that others still wait for once a view change has ended what it is of.
    if (taken == MEP_ERR_NOT_FOUND && !admissions_.entering()) {
      return fail(MEP_ERR_PEER_FAILED, "rank %u has given up what the window is of", slot);
    }
    MEP_TRY(taken);
  }
  *remote = remote_of(slot, window);
  return MEP_SUCCESS;
}

mep_result_t WorldWindows::await_note(uint32_t slot, uint64_t incarnation, uint64_t id,
                                      const Deadline& deadline, std::vector<std::byte>* note) {
  note->clear();
  const auto settled = [&] {
    {
      const std::lock_guard lock(mutex_);
      const auto it = imported_.find({slot, id});
      if (it != imported_.end()) *note = it->second;
    }
    return !note->empty() || end_.result() != MEP_SUCCESS ||
           view_.snapshot().incarnation(slot) != incarnation;
  };
  if (!directory_.wait(deadline, settled)) {
    return fail(MEP_ERR_TIMEOUT, "rank %u did not give the addresses of its queues in time", slot);
  }
  if (!note->empty()) return MEP_SUCCESS;
  if (end_.result() != MEP_SUCCESS) return end_.fail_as_ended();
  return fail(MEP_ERR_PEER_FAILED, "rank %u went away while queues were connected", slot);
}

bool WorldWindows::has_offered_all(uint32_t slot, uint64_t incarnation) const {
  // Acquire: its windows were taken before.
  return peers_[slot].ready_incarnation.load(std::memory_order_acquire) == incarnation;
}

void WorldWindows::drop(uint64_t id) {
  directory_.remove_own(id);
  // One by one: what frees needs no memory.
  for (uint32_t slot = 0; slot < peers_.count(); ++slot) {
    const std::lock_guard reaching(peers_.reaching_mutex());
    {
      const std::lock_guard lock(mutex_);
      imported_.erase({slot, id});
    }
    // Also one that was only held.
    if (peers_[slot].transport != nullptr) peers_[slot].transport->drop_window(slot, id);
  }
}

bool WorldWindows::is_imported(uint32_t slot, uint64_t window) const {
  const std::lock_guard lock(mutex_);
  return imported_.contains({slot, window});
}

mep_result_t WorldWindows::import_offer(uint32_t slot, const Window& window, WindowOffer* offer) {
  if (offer->result != MEP_SUCCESS) return fail(offer->result, "%s", offer->text.c_str());
  // Made before, so that nothing fails once the window is here.
  decltype(imported_) entry;
  entry[{slot, window.id()}] = std::move(offer->note);
  Transport& transport = *peers_[slot].transport;
  if (!offer->is_held) {
    MEP_TRY(transport.import_window(slot, window.id(), window.bytes(), offer->blob,
                                    std::move(offer->fd)));
  } else if (offer->bytes != window.bytes()) {
    transport.drop_window(slot, window.id());
    return fail(MEP_ERR_MISMATCH, "rank %u's part of a window has %llu bytes, this rank's %zu",
                slot, static_cast<unsigned long long>(offer->bytes), window.bytes());
  }
  if (window.id() == kWorldWindowId && offer->event.valid()) {
    try {
      doorbell_bind_event(transport.doorbell(slot), std::move(offer->event));
    } catch (const std::bad_alloc&) {
      transport.drop_window(slot, window.id());
      throw;
    }
  }
  const std::lock_guard lock(mutex_);
  imported_.erase({slot, window.id()});
  imported_.merge(entry);
  return MEP_SUCCESS;
}

mep_result_t WorldWindows::await_remote(uint32_t slot, const std::shared_ptr<Window>& window,
                                        const Deadline& deadline, Remote* remote) {
  const uint32_t slots[] = {slot};
  std::vector<Remote> remotes;
  const auto needed = [](uint32_t) { return false; };
  MEP_TRY(receive(world_window_, slots, needed, deadline, &remotes));
  MEP_TRY(receive(window, slots, needed, deadline, &remotes));
  *remote = remotes[0];
  return MEP_SUCCESS;
}

bool WorldWindows::has_offered(uint32_t slot, uint64_t id) {
  bool offered = is_imported(slot, id);
  (void)directory_.wait(Deadline::at(0), [&] {
    offered = offered || directory_.has(slot, id);
    return true;
  });
  return offered;
}

// --- The control thread ---------------------------------------------------------------------------

mep_result_t WorldWindows::take_now(uint32_t slot, uint64_t window, WindowOffer* offer) {
  const std::lock_guard lock(peers_.reaching_mutex());
  const std::shared_ptr<Window> own = directory_.own(window);
  if (own == nullptr) return MEP_ERR_NOT_FOUND;
  const mep_result_t taken = import_offer(slot, *own, offer);
  if (taken != MEP_SUCCESS) {
    log(LogLevel::kWarn, "cannot take a window of rank %u: %s", slot, last_error_text());
  }
  directory_.wake();
  return taken;
}

mep_result_t WorldWindows::take(uint32_t slot, uint64_t id, WindowOffer offer, bool at_once,
                                bool is_joining) {
  const bool is_renewed = is_imported(slot, id);
  if (is_renewed || at_once) {
    const mep_result_t taken = take_now(slot, id, &offer);
    if (taken == MEP_SUCCESS) return taken;
    if (taken != MEP_ERR_NOT_FOUND) {
      if (is_renewed || !is_joining) return taken;
      offer.result = taken;
      offer.text = last_error_text();
    }
  }
  hold(slot, id, &offer);
  directory_.file(slot, id, std::move(offer));
  return MEP_SUCCESS;
}

// Errors are told to the user's thread that wants the window.
void WorldWindows::hold(uint32_t slot, uint64_t window, WindowOffer* offer) {
  if (!offer->fd.valid() || offer->bytes > kMaxMemfdBytes) return;
  const std::lock_guard lock(peers_.reaching_mutex());
  if (peers_[slot].transport == nullptr) return;
  try {
    offer->result = peers_[slot].transport->import_window(slot, window, offer->bytes, offer->blob,
                                                          std::move(offer->fd));
    if (offer->result != MEP_SUCCESS) offer->text = last_error_text();
  } catch (const std::bad_alloc&) {
    offer->result = MEP_ERR_NO_MEMORY;
  }
  offer->is_held = offer->result == MEP_SUCCESS;
}

void WorldWindows::offer_all(uint32_t slot, membership::SlotSet* unreached) {
  for (const std::shared_ptr<Window>& window : directory_.own_for(slot)) {
    WindowExport exported;
    if (peers_[slot].transport->export_window(slot, window, &exported) != MEP_SUCCESS ||
        send_one(*window, exported, slot) != MEP_SUCCESS) {
      log(LogLevel::kWarn, "cannot offer a window to rank %u: %s", slot, last_error_text());
      unreached->add(slot);
    }
  }
  for (const auto& memory : directory_.memory_for(slot)) {
    if (send_memory(*memory, slot) != MEP_SUCCESS) unreached->add(slot);
  }
}

void WorldWindows::forget_peer(uint32_t slot) {
  const std::lock_guard reaching(peers_.reaching_mutex());
  WorldPeer& peer = peers_[slot];
  unbind_event(slot);
  if (peer.transport != nullptr) peer.transport->remove_peer(slot);
  peer.transport = nullptr;
  directory_.forget_slot(slot);
  const std::lock_guard lock(mutex_);
  std::erase_if(imported_, [slot](const auto& entry) { return entry.first.first == slot; });
}

void WorldWindows::hold_network(bool is_held) {
  TransportWait& network = peers_.network();
  for (uint32_t i = 0; i < network.count(); ++i) network.transport(i)->hold_windows(is_held);
}

bool WorldWindows::has_pages(uint32_t slot, const Window& window,
                             const membership::SlotSet& joiners) const {
  if (joiners.has(slot)) return directory_.shares(window.id(), slot);
  return window.id() == kWorldWindowId || is_imported(slot, window.id());
}

void WorldWindows::fence(uint32_t slot, uint64_t incarnation) const {
  if (directory_.fence(slot, incarnation) == MEP_SUCCESS) return;
  log(LogLevel::kError, "cannot fence rank %u out of a window: %s", slot, last_error_text());
  // It could go on writing there, so this rank must not agree.
  throw CannotFence();
}

void WorldWindows::renew(uint32_t excluded, const membership::SlotSet& joiners,
                         AwaitedWindows* awaited, membership::SlotSet* unreached) {
  for (const std::shared_ptr<Window>& window : directory_.own()) {
    if (!has_pages(excluded, *window, joiners) || directory_.has_fence(window->id())) continue;
    hold_network(true);
    const mep_result_t renewed = window->renew();
    hold_network(false);
    if (renewed != MEP_SUCCESS) {
      log(LogLevel::kError, "cannot renew a window: %s", last_error_text());
      // Without new pages who is excluded could write there, so this rank must not agree.
      throw std::bad_alloc();
    }
    for (uint32_t slot = 0; slot < peers_.count(); ++slot) {
      if (slot == peers_.self_slot() || slot == excluded || peers_[slot].link == nullptr) continue;
      if (!has_pages(slot, *window, joiners)) continue;
      WindowExport exported;
      awaited->insert({{slot, window->id()}, window->generation()});
      if (peers_[slot].transport->export_window(slot, window, &exported) == MEP_SUCCESS &&
          send_one(*window, exported, slot) == MEP_SUCCESS) {
        continue;
      }
      // A peer that has the old pages and cannot be told of the new ones writes where nobody reads.
      log(LogLevel::kWarn, "cannot give a renewed window to rank %u: %s", slot, last_error_text());
      unreached->add(slot);
    }
  }
}

}  // namespace mep
