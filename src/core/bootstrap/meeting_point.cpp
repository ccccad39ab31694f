#include "core/bootstrap/meeting_point.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "base/status.hpp"

namespace mep {
namespace {

constexpr uint64_t kPauseMs = 100;
constexpr size_t kMaxStrangers = 256;
constexpr size_t kMaxUpdatesPerFrame = 1000;

}  // namespace

std::vector<std::byte> encode_updates(std::span<const EntryUpdate> updates) {
  ByteWriter writer;
  writer.number(static_cast<uint32_t>(updates.size()));
  for (const EntryUpdate& each : updates) {
    writer.number(static_cast<uint8_t>(each.gone ? 1 : 0));
    write_place(each.place, &writer);
  }
  return writer.take();
}

bool decode_updates(std::span<const std::byte> payload, std::vector<EntryUpdate>* updates) {
  ByteReader reader(payload);
  const auto count = reader.number<uint32_t>();
  if (count > kMaxUpdatesPerFrame) return false;
  for (uint32_t i = 0; i < count; ++i) {
    EntryUpdate each;
    each.gone = reader.number<uint8_t>() != 0;
    if (!read_place(&reader, &each.place) || each.place.addresses.empty()) return false;
    updates->push_back(std::move(each));
  }
  return reader.complete();
}

std::vector<std::byte> encode_own_entry(RendezvousPurpose purpose, const Place& place) {
  ByteWriter writer;
  writer.number(static_cast<uint8_t>(purpose == RendezvousPurpose::kJoin ? 1 : 0));
  write_place(place, &writer);
  return writer.take();
}

MeetingPoint::MeetingPoint(Hello hello, const Gate& gate) : hello_(std::move(hello)), gate_(gate) {}

void MeetingPoint::add_listener(UniqueFd listener) {
  listeners_.push_back(std::move(listener));
}

void MeetingPoint::settle(const std::vector<Place>& members) {
  running_ = true;
  // A rank that still looks for its start comes again and is told that this one is over.
  guests_.clear();
  roll_.clear();
  for (const Place& member : members) roll_[member.key()].place = member;
}

void MeetingPoint::add(const Place& member) {
  roll_[member.key()] = {member, nullptr};
  tell_everybody({false, member});
}

void MeetingPoint::forget(uint32_t slot, uint64_t incarnation) {
  const auto found = roll_.find({slot, incarnation});
  if (found == roll_.end()) return;
  const Place place = std::move(found->second.place);
  roll_.erase(found);
  tell_everybody({true, place});
}

void MeetingPoint::add_to_poll(std::vector<pollfd>* entries) const {
  if (closed_until_.expired()) {
    for (const UniqueFd& listener : listeners_) entries->push_back({listener.get(), POLLIN, 0});
  }
  for (const auto& guest : guests_) {
    const int events = POLLIN | (guest->link->has_queued_output() ? POLLOUT : 0);
    entries->push_back({guest->link->fd(), static_cast<short>(events), 0});
  }
}

void MeetingPoint::progress() {
  if (closed_until_.expired()) accept_all();
  for (size_t i = 0; i < guests_.size(); ++i) serve(guests_[i].get());
  for (size_t i = 0; i < guests_.size(); ++i) send_news(guests_[i].get());
  for (const auto& guest : guests_) {
    if (guest->gone) remove(guest.get());
  }
  std::erase_if(guests_, [](const auto& guest) { return guest->gone; });
}

void MeetingPoint::close() {
  for (auto& [key, entry] : roll_) entry.guest = nullptr;
  guests_.clear();
  listeners_.clear();
}

void MeetingPoint::remove(Guest* guest) {
  std::vector<std::pair<uint32_t, uint64_t>> lost;
  for (const auto& [key, entry] : roll_) {
    if (entry.guest == guest) lost.push_back(key);
  }
  for (const auto& [slot, incarnation] : lost) forget(slot, incarnation);
}

void MeetingPoint::accept_all() {
  for (const UniqueFd& listener : listeners_) {
    for (;;) {
      Connection connection;
      NetAddress from;
      if (accept_tcp(listener.get(), gate_.dead_after_ms, &connection.socket, &from) !=
          MEP_SUCCESS) {
        log(LogLevel::kWarn, "the meeting point has to wait: %s", last_error_text());
        closed_until_ = Deadline::after_ms(kPauseMs);
        return;
      }
      if (!connection.socket.valid()) break;
      connection.credentials.address = from.text();
      auto guest = std::make_unique<Guest>(std::move(connection), gate_.secret, no_details_);
      const auto strangers =
          static_cast<size_t>(std::count_if(guests_.begin(), guests_.end(), [](const auto& other) {
            return !other->greeting->done();
          }));
      if (strangers >= kMaxStrangers) {
        // The oldest has had its time.
        const auto oldest = std::find_if(guests_.begin(), guests_.end(), [](const auto& other) {
          return !other->greeting->done();
        });
        // Its process learns from that who serves here.
        (void)(*oldest)->link->send(kRetryFrame, {});
        guests_.erase(oldest);
      }
      guests_.push_back(std::move(guest));
    }
  }
}

void MeetingPoint::serve(Guest* guest) {
  const bool stays = guest->serve([&](Frame& frame) {
    take(guest, &frame);
    return !guest->gone;
  });
  if (!stays) guest->gone = true;
}

// They come again and again: the first is logged.
void MeetingPoint::note_turned_away(const Guest& guest, const char* text) {
  if (!turned_away_.empty()) return;
  turned_away_ =
      "the meeting point on this rank turned away " + guest.credentials.text() + ": " + text;
  log(LogLevel::kWarn, "%s", turned_away_.c_str());
}

void MeetingPoint::refuse(Guest* guest, mep_result_t code) {
  const auto rank = static_cast<int32_t>(hello_.identity.slot);
  note_turned_away(*guest, send_abort(guest->link.get(), code, rank).c_str());
  guest->gone = true;
}

void MeetingPoint::take(Guest* guest, Frame* frame) {
  Greeting& greeting = *guest->greeting;
  if (greeting.done()) {
    if (frame->type == kEntriesFrame) {
      take_place(guest, *frame);
    } else if (frame->type != kAbortFrame) {
      guest->gone = true;
    }
    return;
  }
  Greeting::Step step = Greeting::Step::kMore;
  const mep_result_t result = greeting.take(guest->link.get(), frame, &step);
  if (result != MEP_SUCCESS) {
    refuse(guest, result);
  } else if (step == Greeting::Step::kHello) {
    take_hello(guest);
  } else if (step == Greeting::Step::kOther) {
    // It found that this one is not who it looks for, and may be anybody itself.
    Abort abort;
    if (frame->type == kAbortFrame && decode_abort(frame->payload, &abort)) {
      note_turned_away(*guest, ("it says: " + abort.text).c_str());
    }
    guest->gone = true;
  } else if (step == Greeting::Step::kDone) {
    guest->limit = Deadline::never();
    for (const auto& [key, entry] : roll_) guest->unsent.push_back({false, entry.place});
    // Also when there is none: then the guest knows that.
    if (guest->unsent.empty()) (void)guest->link->send(kEntriesFrame, encode_updates({}));
  }
}

void MeetingPoint::take_hello(Guest* guest) {
  const Hello& hello = guest->greeting->hello();
  if (hello.kind != HelloKind::kMeet || hello.job != hello_.job) {
    refuse(guest, fail(MEP_ERR_BOOTSTRAP,
                       "this is a meeting point of another job: jobs need addresses of their own"));
    return;
  }
  if (guest->greeting->answer(guest->link.get(), hello_) != MEP_SUCCESS) guest->gone = true;
}

void MeetingPoint::refuse_double(Guest* guest, const Place& place, const Place& other) {
  refuse(guest, fail(MEP_ERR_BOOTSTRAP,
                     "two processes are rank %u of job '%s': pid %d at %s and pid %d at %s",
                     place.slot, hello_.job.c_str(), other.pid, other.addresses[0].text().c_str(),
                     place.pid, place.addresses[0].text().c_str()));
  if (running_) return;
  // The start cannot succeed; who came first is told, and tells the others.
  Abort abort;
  abort.origin = abort.sender = static_cast<int32_t>(hello_.identity.slot);
  abort.text = last_error_text();
  for (const auto& each : guests_) {
    if (each->greeting->done() && !each->gone) {
      (void)each->link->send(kAbortFrame, encode_abort(abort));
    }
  }
}

void MeetingPoint::take_place(Guest* guest, const Frame& frame) {
  ByteReader reader(frame.payload);
  const bool joins = reader.number<uint8_t>() != 0;
  Place place;
  if (!read_place(&reader, &place) || place.addresses.empty() || !reader.complete()) {
    refuse(guest, fail(MEP_ERR_DENIED, "a malformed place"));
    return;
  }
  if (running_ != joins) {
    // An earlier world of this job, or one that is not complete yet.
    (void)guest->link->send(kRetryFrame, {});
    guest->gone = true;
    return;
  }
  for (const auto& [key, entry] : roll_) {
    if (key.first != place.slot || key.second == place.incarnation) continue;
    // A joiner may take the place of a member that is going out of the view.
    if (entry.guest == guest || entry.guest == nullptr) continue;
    return refuse_double(guest, place, entry.place);
  }
  remove(guest);
  const auto found = roll_.find(place.key());
  if (found != roll_.end() && found->second.guest == nullptr) return;  // admitted meanwhile
  roll_[place.key()] = {place, guest};
  tell_everybody({false, place});
}

void MeetingPoint::tell_everybody(const EntryUpdate& updates) {
  for (const auto& guest : guests_) {
    if (guest->greeting->done()) guest->unsent.push_back(updates);
  }
}

void MeetingPoint::send_news(Guest* guest) {
  if (guest->gone) return;
  for (size_t sent = 0; sent < guest->unsent.size(); sent += kMaxUpdatesPerFrame) {
    const auto part =
        std::span<const EntryUpdate>(guest->unsent)
            .subspan(sent, std::min(kMaxUpdatesPerFrame, guest->unsent.size() - sent));
    if (guest->link->send(kEntriesFrame, encode_updates(part)) != MEP_SUCCESS) guest->gone = true;
  }
  guest->unsent.clear();
}

}  // namespace mep
