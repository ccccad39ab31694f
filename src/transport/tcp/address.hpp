// Which addresses of this host a rank listens on, what it tells its peers of them, and in which order it
// tries theirs.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mep.h"
#include "transport/tcp/frame.hpp"

namespace mep::tcp {

struct Address {
  bool is_v6 = false;
  bool is_loopback = false;
  uint8_t prefix_bits = 0;  // of its network
  uint16_t port = 0;        // host order
  uint8_t bytes[16] = {};   // of IPv4 the first four

  // For bind() and connect(); returns its length.
  socklen_t to_socket_address(sockaddr_storage* out) const;
  std::string text() const;
};

constexpr size_t kMaxAddresses = 16;

// `selection`: comma list of globs of interface names, each perhaps followed by /4 or /6; empty: all.
struct AddressFilter {
  std::string selection;
  bool loopback_only = false;  // unless there is a selection
};
// Addresses of interfaces that are up. None is an error that says what was looked for.
[[nodiscard]] mep_result_t local_addresses(const AddressFilter& filter, std::vector<Address>* out);

std::vector<std::byte> encode_addresses(std::span<const Address> addresses);
// Safe on any bytes.
Parse parse_addresses(std::span<const std::byte> bytes, std::vector<Address>* out);

// Those of `theirs` that can be tried, the most promising first: on the same host loopback, else those
// that share a network with one of `own`.
std::vector<Address> reachable(std::span<const Address> own, std::span<const Address> theirs,
                               bool same_host);
bool same_network(const Address& left, const Address& right);

}  // namespace mep::tcp
