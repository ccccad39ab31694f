#include "core/bootstrap/rendezvous_entries.hpp"

namespace mep {

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
         place->slot < static_cast<uint32_t>(kMaxRanks) && !place->addresses.empty();
}

}  // namespace mep
