// Addresses of hosts, and TCP sockets as control links need them.
#pragma once

#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "core/bootstrap/byte_codec.hpp"
#include "mep.h"

namespace mep {

struct NetAddress {
  uint8_t family = 0;  // 4 or 6
  std::array<uint8_t, 16> bytes{};
  uint16_t port = 0;

  bool operator==(const NetAddress&) const = default;
  std::string text() const;  // "10.0.0.1:7000", "[fe80::1]:7000"
};
constexpr size_t kMaxAddresses = 8;

void write_addresses(const std::vector<NetAddress>& addresses, ByteWriter* writer);
// False: malformed.
bool read_addresses(ByteReader* reader, std::vector<NetAddress>* addresses);

// One "HOST:PORT" of a list as it was written.
struct ListedAddress {
  std::string host;
  uint16_t port = 0;
  std::string text() const;
};
[[nodiscard]] mep_result_t parse_address_list(const std::string& text,
                                              std::vector<ListedAddress>* out);
// May ask name servers. *reason: why there is none.
std::vector<NetAddress> resolve_address(const ListedAddress& listed, std::string* reason);

// Where other hosts may reach this one, best first: addresses of interfaces that are up, loopback
// ones last. `interface_glob` empty: of all interfaces.
std::vector<NetAddress> local_addresses(const std::string& interface_glob);
// MEP_NET_IF, as the transports take it.
[[nodiscard]] mep_result_t interface_from_environment(std::string* glob);

// Binds and listens on the address, or on all of the host when `address` is null (then on any free
// port, which *port tells). Success with an empty *out: *taken, somebody listens there; else the address is not one of
// this host's. Nonblocking, close-on-exec.
[[nodiscard]] mep_result_t listen_tcp(const NetAddress* address, UniqueFd* out, bool* taken,
                                      uint16_t* port);
bool is_loopback(const NetAddress& address);

// Begins to connect; how it ended shows when the socket is used. No way there: success, empty *out.
[[nodiscard]] mep_result_t connect_tcp(const NetAddress& address, uint32_t dead_after_ms,
                                       UniqueFd* out);
// Nothing waits: success with an empty *out. *from: who it is.
[[nodiscard]] mep_result_t accept_tcp(int listener, uint32_t dead_after_ms, UniqueFd* out,
                                      NetAddress* from);
// The own end of a connected socket.
bool own_address(int socket, NetAddress* out);
// Whether there is another end: false while a connection is being made and once it was refused.
bool is_connected(int socket);

}  // namespace mep
