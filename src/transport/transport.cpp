// The table of the transports that exist, and whom a transport reaches.
#include "transport/transport.hpp"

namespace mep {

#define MEP_TRANSPORT(name, factory) \
  std::unique_ptr<Transport> factory(const TransportOptions& options);
#include "transport/transports.def"
#undef MEP_TRANSPORT

namespace {

constexpr TransportEntry kTable[] = {
#define MEP_TRANSPORT(name, factory) {#name, factory},
#include "transport/transports.def"
#undef MEP_TRANSPORT
};

}  // namespace

std::span<const TransportEntry> transport_table() {
  return kTable;
}

bool Transport::reaches(const PeerIdentity& self, const PeerIdentity& peer) const {
  switch (traits_.reach) {
    case Reach::kProcess:
      return self.host == peer.host && self.process_token == peer.process_token;
    case Reach::kHost:
      return self.host == peer.host && self.process_token != peer.process_token;
    case Reach::kAnywhere:
      return self.slot != peer.slot;
  }
  return false;
}

}  // namespace mep
