#include "core/bootstrap/place_store.hpp"

#include "core/bootstrap/byte_codec.hpp"

namespace mep {
namespace {

constexpr uint32_t kPlaceMagic = 0x4450454d;  // "MEPD"

}  // namespace

Place place_of(const PeerIdentity& identity, const std::vector<NetAddress>& addresses) {
  return {identity.slot, identity.incarnation, identity.host, identity.pid, addresses};
}

void write_place(const Place& place, ByteWriter* writer) {
  writer->number(place.slot);
  writer->number(place.incarnation);
  writer->number(place.host);
  writer->number(place.pid);
  write_addresses(place.addresses, writer);
}

bool read_place(ByteReader* reader, Place* place) {
  place->slot = reader->number<uint32_t>();
  place->incarnation = reader->number<uint64_t>();
  place->host = reader->number<uint64_t>();
  place->pid = reader->number<int32_t>();
  return read_addresses(reader, &place->addresses) && place->incarnation != 0 &&
         place->slot < static_cast<uint32_t>(kMaxRanks);
}

std::vector<std::byte> encode_place_record(const std::string& job, const Place& place) {
  ByteWriter writer;
  writer.number(kPlaceMagic);
  writer.number(kProtocolVersion);
  writer.text(job);
  write_place(place, &writer);
  return writer.take();
}

bool decode_place_record(std::span<const std::byte> bytes, const std::string& job,
                         uint32_t* version, Place* place) {
  ByteReader reader(bytes);
  *version = 0;
  if (reader.number<uint32_t>() != kPlaceMagic) return false;
  *version = reader.number<uint32_t>();
  return *version == kProtocolVersion && reader.text(kMaxJobBytes) == job &&
         read_place(&reader, place) && reader.complete();
}

}  // namespace mep
