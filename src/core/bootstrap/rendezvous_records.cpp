#include "core/bootstrap/rendezvous_records.hpp"

#include "core/bootstrap/byte_codec.hpp"
#include "core/bootstrap/hello.hpp"

namespace mep {
namespace {

constexpr uint32_t kEntryMagic = 0x4450454d;  // "MEPD"
constexpr uint32_t kStoreMagic = 0x5350454d;  // "MEPS"

}  // namespace

std::vector<std::byte> encode_entry_file(const std::string& job, const Place& place) {
  ByteWriter writer;
  writer.number(kEntryMagic);
  writer.number(kProtocolVersion);
  writer.text(job);
  write_place(place, &writer);
  return writer.take();
}

bool decode_entry_file(std::span<const std::byte> bytes, const std::string& job, Place* place) {
  ByteReader reader(bytes);
  if (reader.number<uint32_t>() != kEntryMagic || reader.number<uint32_t>() != kProtocolVersion ||
      reader.text(kMaxJobBytes) != job || !read_place(&reader, place)) {
    return false;
  }
  return reader.complete();
}

std::vector<std::byte> encode_meeting_record(const MeetingRecord& meeting) {
  ByteWriter writer;
  writer.number(kStoreMagic);
  writer.number(meeting.version);
  writer.number(meeting.host);
  writer.text(meeting.name);
  write_addresses(meeting.addresses, &writer);
  return writer.take();
}

bool decode_meeting_record(std::span<const std::byte> bytes, MeetingRecord* out) {
  ByteReader reader(bytes);
  if (reader.number<uint32_t>() != kStoreMagic) return false;
  out->version = reader.number<uint32_t>();
  if (out->version != kProtocolVersion) return reader.valid();
  out->host = reader.number<uint64_t>();
  out->name = reader.text(kMaxMeetingNameBytes);
  return read_addresses(&reader, &out->addresses) && reader.complete() && !out->name.empty();
}

}  // namespace mep
