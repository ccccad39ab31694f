// Everything of a peer but its data: connecting, windows, errors, fence. The data path is in
// peer_data.cpp.
#include "transport/verbs/peer.hpp"

#include "base/log.hpp"
#include "base/status.hpp"

namespace mep::verbs {

Peer::Peer(Fabric* fabric, const PeerIdentity& identity, std::vector<Rail> rails)
    : fabric_(fabric), identity_(identity), rails_(std::move(rails)) {
  description_ = "verbs over ";
  for (const Rail& rail : rails_) {
    if (&rail != rails_.data()) description_ += " + ";
    description_ += rail.connection->hca().name();
  }
  arrival_hca_ = &rails_[0].connection->hca();
  arrival_queue_pair_ = rails_[0].connection->number();
  arrival_hca_->attach(arrival_queue_pair_, arrived_);
}

Peer::~Peer() {
  arrival_hca_->detach(arrival_queue_pair_);
  const Lock lock(mutex_);
  destroy_rails();
}

std::vector<WindowRail> Peer::ends(const Registration& window) {
  const Lock lock(mutex_);
  std::vector<WindowRail> ends;
  for (const Rail& rail : rails_) {
    ends.push_back(
        {window.rkeys[rail.hca], rail.connection->number(), rail.connection->first_psn()});
  }
  return ends;
}

mep_result_t Peer::usable() const {
  if (is_fenced()) {
    return fail(MEP_ERR_PEER_FAILED, "slot %u is fenced out of verbs", identity_.slot);
  }
  if (failed_) return fail(MEP_ERR_PEER_FAILED, "slot %u: %s", identity_.slot, failure_.c_str());
  return MEP_SUCCESS;
}

mep_result_t Peer::import(uint64_t window, size_t bytes, std::span<const std::byte> blob) {
  const Lock lock(mutex_);
  MEP_TRY(usable());
  WindowAddress address;
  MEP_TRY(decode_window(blob, window, bytes, rails_.size(), &address));
  const auto present = windows_.find(window);
  if (present != windows_.end() && present->second.bytes != bytes) {
    return fail(MEP_ERR_MISMATCH, "window %llu was imported with %zu bytes, now with %zu",
                static_cast<unsigned long long>(window), present->second.bytes, bytes);
  }
  if (present != windows_.end() && address.generation < present->second.generation) {
    return fail(MEP_ERR_MISMATCH, "window %llu of generation %u came after generation %u",
                static_cast<unsigned long long>(window), address.generation,
                present->second.generation);
  }
  MEP_TRY(connect(address));
  sent_.forget(window);  // the peer may have made it anew
  RemoteWindow& entry = windows_[window];
  entry.address = address.address;
  entry.bytes = bytes;
  entry.generation = address.generation;
  for (size_t i = 0; i < rails_.size(); ++i) entry.rkeys[i] = address.rails[i].rkey;
  return MEP_SUCCESS;
}

// The peer's ends come with each of its windows; the first one that is imported connects.
mep_result_t Peer::connect(const WindowAddress& address) {
  if (connected_) {
    for (size_t i = 0; i < rails_.size(); ++i) {
      if (address.rails[i].queue_pair != remote_queue_pairs_[i]) {
        return fail(MEP_ERR_DENIED, "slot %u names another queue pair than before", identity_.slot);
      }
    }
    return MEP_SUCCESS;
  }
  for (size_t i = 0; i < rails_.size(); ++i) {
    const mep_result_t result = rails_[i].connection->connect(rails_[i].remote, address.rails[i]);
    if (result != MEP_SUCCESS) {
      // Half of it is of no use, and a queue pair cannot start over with the same peer.
      return broken(last_error_text());
    }
    remote_queue_pairs_.push_back(address.rails[i].queue_pair);
  }
  connected_ = true;
  // A view change did not wait for this rank, which had posted nothing; the peer may wait for its mark.
  if (asked_mark_ > sent_mark_) (void)send_mark(asked_mark_);
  return usable();
}

void Peer::drop(uint64_t window) {
  const Lock lock(mutex_);
  windows_.erase(window);
}

mep_result_t Peer::find_target(uint64_t window, uint64_t offset, size_t bytes,
                               RemoteWindow* out) const {
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  const auto entry = windows_.find(window);
  if (entry == windows_.end()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "window %llu of slot %u is not imported", number(window),
                identity_.slot);
  }
  if (offset > entry->second.bytes || bytes > entry->second.bytes - offset) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "%zu bytes at offset %llu do not fit into the %zu bytes of window %llu", bytes,
                number(offset), entry->second.bytes, number(window));
  }
  *out = entry->second;
  return MEP_SUCCESS;
}

void Peer::destroy_rails() {
  for (Rail& rail : rails_) rail.connection->destroy();
  for (const Copied& copied : copied_) fabric_->bounce().give(copied.chunk);
  copied_.clear();
  if (open_chunk_.is_open) fabric_->bounce().give(open_chunk_.chunk);
  open_chunk_ = {};
  reading_.clear();
  give_back_borrowed(UINT64_MAX);
  settling_ = {};
}

void Peer::end(const std::string& text) {
  failed_ = true;
  failure_ = text;
  arrival_hca_->drain_before_destroying();
  destroy_rails();
}

mep_result_t Peer::broken(const std::string& text) {
  if (!failed_) {
    log(LogLevel::kWarn, "verbs: slot %u is not reached any more: %s", identity_.slot,
        text.c_str());
    end(text);
    fabric_->note_failure({identity_.slot, identity_.incarnation, text});
  }
  return fail(MEP_ERR_PEER_FAILED, "slot %u: %s", identity_.slot, failure_.c_str());
}

void Peer::fence() {
  fenced_.store(true, std::memory_order_release);
  arrival_hca_->detach(arrival_queue_pair_);
  const Lock lock(mutex_);
  destroy_rails();
}

void Peer::give_up() {
  const Lock lock(mutex_);
  if (failed_ || is_fenced()) return;
  end("it has gone");
}

bool Peer::owns_queue_pair(uint32_t number, const Hca* hca) {
  const Lock lock(mutex_);
  for (const Rail& rail : rails_) {
    if (&rail.connection->hca() == hca && rail.connection->number() == number) return true;
  }
  return false;
}

void Peer::break_rails_of(const Hca* hca, const std::string& text) {
  const Lock lock(mutex_);
  if (usable() != MEP_SUCCESS) return;
  for (const Rail& rail : rails_) {
    if (&rail.connection->hca() == hca) {
      (void)broken(text);
      return;
    }
  }
}

void Peer::break_queue_pair() {
  const Lock lock(mutex_);
  rails_[0].connection->move_to_error();
}

void Peer::spoil_key(uint64_t window) {
  const Lock lock(mutex_);
  const auto entry = windows_.find(window);
  if (entry == windows_.end()) return;
  for (uint32_t& rkey : entry->second.rkeys) rkey ^= 0x5a5a5a;
}

}  // namespace mep::verbs
