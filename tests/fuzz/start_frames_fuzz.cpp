// The other payloads of a start: aborts, details, announcements, and what a meeting point, a file of a
// directory and the caller's store say. The first byte says which.
#include <algorithm>

#include "core/bootstrap/hello.hpp"
#include "core/bootstrap/meeting_point.hpp"
#include "core/bootstrap/place_store.hpp"
#include "fuzz/fuzz_target.hpp"

namespace fuzz {
namespace {

std::vector<std::byte> with_kind(unsigned char kind, const std::vector<std::byte>& payload) {
  std::vector<std::byte> bytes(1 + payload.size());
  bytes[0] = std::byte{kind};
  std::copy(payload.begin(), payload.end(), bytes.begin() + 1);
  return bytes;
}

void check_abort(const mep::Abort& abort) {
  require(abort.code < 0 && abort.text.size() <= mep::kMaxAbortTextBytes);
  require(std::none_of(abort.text.begin(), abort.text.end(), [](char letter) {
    return static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f;
  }));
}

void check_place(const mep::Place& place) {
  require(place.incarnation != 0 && place.slot < static_cast<uint32_t>(mep::kMaxRanks));
  require(place.addresses.size() <= mep::kMaxAddresses);
  for (const mep::NetAddress& address : place.addresses) require(!address.text().empty());
}

}  // namespace

void one(std::span<const std::byte> input) {
  if (input.empty()) return;
  const auto payload = input.subspan(1);
  mep::Abort abort;
  mep::Details details;
  std::vector<mep::EntryUpdate> updates;
  mep::Place place;
  const mep::JobSecret secret;
  switch (static_cast<unsigned>(input[0]) % 6) {
    case 0:
      if (mep::decode_abort(payload, &abort)) check_abort(abort);
      break;
    case 1:
      if (mep::decode_details(payload, &details))
        require(details.offer.size() <= mep::kMaxOfferBytes);
      break;
    case 2:
      if (mep::decode_updates(payload, &updates)) {
        for (const mep::EntryUpdate& each : updates) {
          check_place(each.place);
          require(!each.place.addresses.empty());
        }
      }
      break;
    case 3: {
      mep::ByteReader reader(payload);
      if (mep::read_place(&reader, &place)) check_place(place);
      break;
    }
    case 4:
      if (mep::decode_announcement(payload, 7, secret, &abort)) check_abort(abort);
      break;
    default: {
      uint32_t version = 0;
      if (mep::decode_place_record(payload, "a job", &version, &place)) {
        require(version == mep::kProtocolVersion);
        check_place(place);
      }
      break;
    }
  }
}

void seeds(const Sink& sink) {
  if (mep::prepare_crypto() != MEP_SUCCESS) return;
  mep::Abort abort;
  abort.sender = abort.origin = 2;
  abort.text = "rank 2 has gone";
  sink("abort", with_kind(0, mep::encode_abort(abort)));
  mep::Details details;
  details.addresses = {{4, {10, 0, 0, 1}, 7000}, {6, {0xfd, 1}, 7001}};
  details.offer.assign(40, std::byte{3});
  sink("details", with_kind(1, mep::encode_details(details)));
  const mep::Place place{3, 99, 5, 4711, details.addresses};
  const mep::EntryUpdate updates[] = {{false, place}, {true, place}};
  sink("updates", with_kind(2, mep::encode_updates(updates)));
  sink("own-place", with_kind(3, mep::encode_own_entry(mep::RendezvousPurpose::kJoin, place)));
  mep::ByteWriter writer;
  mep::write_place(place, &writer);
  sink("place", with_kind(3, writer.take()));
  sink("place-record", with_kind(5, mep::encode_place_record("a job", place)));
  sink("announcement", with_kind(4, mep::encode_announcement(abort, 7, mep::JobSecret())));
}

}  // namespace fuzz
