#include "core/bootstrap/meeting_point.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>

#include "base/log.hpp"
#include "base/status.hpp"
#include "base/stranger_log.hpp"
#include "core/bootstrap/rendezvous.hpp"

namespace mep {
namespace {

constexpr size_t kMaxStrangers = 256;
constexpr size_t kMaxEvents = 64;  // of one look; later ones keep fd() readable
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

MeetingPoint::MeetingPoint(Hello hello, const Gate& gate)
    : hello_(std::move(hello)), gate_(gate), epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

// Edge by edge: a listener that cannot accept for want of descriptors keeps nobody busy.
void MeetingPoint::watch(int socket) const {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLET;
  event.data.fd = socket;
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event);
}

void MeetingPoint::add_listener(UniqueFd listener) {
  watch(listener.get());
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

void MeetingPoint::forget(const PlaceKey& key) {
  const auto found = roll_.find(key);
  if (found == roll_.end()) return;
  const Place place = std::move(found->second.place);
  roll_.erase(found);
  tell_everybody({true, place});
}

int MeetingPoint::wait_ms(int cap) const {
  uint64_t limit_ns = Deadline::never().at_ns();
  for (const auto& [socket, guest] : guests_) limit_ns = std::min(limit_ns, guest.limit.at_ns());
  return Deadline::at(limit_ns).left_ms(cap);
}

bool MeetingPoint::progress() {
  accept_all();
  std::array<epoll_event, kMaxEvents> events{};
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  bool others = false;
  for (int i = 0; i < count; ++i) {
    const auto found = guests_.find(events[static_cast<size_t>(i)].data.fd);
    if (found != guests_.end()) serve(&found->second);
    others = others || found == guests_.end();
  }
  const uint64_t now = now_ns();
  for (auto& [socket, guest] : guests_) {
    if (guest.limit.at_ns() <= now) serve(&guest);
  }
  std::erase_if(guests_, [this](const auto& each) {
    if (each.second.gone) remove(each.second);
    return each.second.gone;
  });
  for (auto& [socket, guest] : guests_) send_news(&guest);
  return others;
}

void MeetingPoint::close() {
  guests_.clear();
  roll_.clear();
  listeners_.clear();
}

void MeetingPoint::remove(const Guest& guest) {
  const auto found = roll_.find(guest.place);
  if (found != roll_.end() && found->second.guest == &guest) forget(guest.place);
}

void MeetingPoint::accept_all() {
  const auto take = [this](Connection&& connection) {
    make_room();
    const int socket = connection.socket.get();
    guests_.try_emplace(socket, std::move(connection), gate_.secret, no_details_);
    watch(socket);
  };
  for (const UniqueFd& listener : listeners_) {
    if (accept_connections(-1, listener.get(), gate_.dead_after_ms, take) != MEP_SUCCESS)
      log_stranger("the meeting point has to wait: %s", last_error_text());
  }
}

// Strangers are let in, but not many at a time: the oldest has had its time.
void MeetingPoint::make_room() {
  size_t strangers = 0;
  auto oldest = guests_.end();
  for (auto each = guests_.begin(); each != guests_.end(); ++each) {
    if (each->second.greeting->done()) continue;
    ++strangers;
    if (oldest == guests_.end() || each->second.limit.at_ns() < oldest->second.limit.at_ns())
      oldest = each;
  }
  if (strangers < kMaxStrangers) return;
  // Its process learns from that who serves here.
  (void)oldest->second.link->send(kRetryFrame, {});
  guests_.erase(oldest);
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
  for (const auto& [socket, each] : guests_) {
    if (each.greeting->done() && !each.gone)
      (void)each.link->send(kAbortFrame, encode_abort(abort));
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
  remove(*guest);
  guest->place = place.key();
  const auto found = roll_.find(place.key());
  if (found != roll_.end() && found->second.guest == nullptr) return;  // admitted meanwhile
  roll_[place.key()] = {place, guest};
  tell_everybody({false, place});
}

void MeetingPoint::tell_everybody(const EntryUpdate& updates) {
  for (auto& [socket, guest] : guests_) {
    if (guest.greeting->done()) guest.unsent.push_back(updates);
  }
}

void MeetingPoint::send_news(Guest* guest) {
  for (size_t sent = 0; sent < guest->unsent.size(); sent += kMaxUpdatesPerFrame) {
    const auto part =
        std::span<const EntryUpdate>(guest->unsent)
            .subspan(sent, std::min(kMaxUpdatesPerFrame, guest->unsent.size() - sent));
    if (guest->link->send(kEntriesFrame, encode_updates(part)) != MEP_SUCCESS) guest->gone = true;
  }
  guest->unsent.clear();
}

}  // namespace mep
