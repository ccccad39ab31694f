#include "transport/tcp/address.hpp"

#include <arpa/inet.h>
#include <fnmatch.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "base/status.hpp"
#include "base/system_error.hpp"

namespace mep::tcp {
namespace {

constexpr size_t kAddressBytes = 22;
constexpr uint8_t kVersion = 1;

size_t length_of(const Address& address) {
  return address.is_v6 ? 16 : 4;
}

// Whether one item of the list ("eth*", "lo/6") names this address.
bool item_matches(std::string item, const char* interface, bool is_v6) {
  const size_t slash = item.rfind('/');
  if (slash != std::string::npos) {
    const std::string family = item.substr(slash + 1);
    if (family == "4" || family == "6") {
      if ((family == "6") != is_v6) return false;
      item.resize(slash);
    }
  }
  return fnmatch(item.c_str(), interface, 0) == 0;
}

bool is_selected(const std::string& selection, const char* interface, bool is_v6) {
  for (size_t begin = 0; begin <= selection.size();) {
    const size_t end = std::min(selection.find(',', begin), selection.size());
    const std::string item = selection.substr(begin, end - begin);
    if (!item.empty() && item_matches(item, interface, is_v6)) return true;
    begin = end + 1;
  }
  return false;
}

uint8_t prefix_of(const uint8_t* mask, size_t bytes) {
  int bits = 0;
  for (size_t i = 0; i < bytes; ++i) bits += std::popcount(mask[i]);
  return static_cast<uint8_t>(bits);
}

// False: an address that no peer can use.
bool read_address(const ifaddrs& entry, Address* out) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) return false;
  out->is_loopback = (entry.ifa_flags & IFF_LOOPBACK) != 0;
  if (entry.ifa_addr->sa_family == AF_INET) {
    const auto* address = reinterpret_cast<const sockaddr_in*>(entry.ifa_addr);
    std::memcpy(out->bytes, &address->sin_addr, 4);
    if (entry.ifa_netmask != nullptr) {
      const auto* mask = reinterpret_cast<const sockaddr_in*>(entry.ifa_netmask);
      out->prefix_bits = prefix_of(reinterpret_cast<const uint8_t*>(&mask->sin_addr), 4);
    }
    return true;
  }
  if (entry.ifa_addr->sa_family != AF_INET6) return false;
  const auto* address = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
  if (IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr)) return false;  // means nothing on another host
  out->is_v6 = true;
  std::memcpy(out->bytes, &address->sin6_addr, 16);
  if (entry.ifa_netmask != nullptr) {
    const auto* mask = reinterpret_cast<const sockaddr_in6*>(entry.ifa_netmask);
    out->prefix_bits = prefix_of(reinterpret_cast<const uint8_t*>(&mask->sin6_addr), 16);
  }
  return true;
}

}  // namespace

socklen_t Address::to_socket_address(sockaddr_storage* out) const {
  std::memset(out, 0, sizeof *out);
  if (is_v6) {
    auto* address = reinterpret_cast<sockaddr_in6*>(out);
    address->sin6_family = AF_INET6;
    address->sin6_port = htons(port);
    std::memcpy(&address->sin6_addr, bytes, 16);
    return sizeof *address;
  }
  auto* address = reinterpret_cast<sockaddr_in*>(out);
  address->sin_family = AF_INET;
  address->sin_port = htons(port);
  std::memcpy(&address->sin_addr, bytes, 4);
  return sizeof *address;
}

std::string Address::text() const {
  char name[INET6_ADDRSTRLEN] = "";
  inet_ntop(is_v6 ? AF_INET6 : AF_INET, bytes, name, sizeof name);
  return (is_v6 ? "[" + std::string(name) + "]" : std::string(name)) + ":" + std::to_string(port);
}

mep_result_t local_addresses(const AddressFilter& filter, std::vector<Address>* out) {
  out->clear();
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return fail(result_of_errno(errno), "the network interfaces cannot be listed: %m");
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  const bool selected = !filter.selection.empty();
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    Address address;
    if (out->size() == kMaxAddresses) break;
    if (!read_address(*entry, &address)) continue;
    if (selected && !is_selected(filter.selection, entry->ifa_name, address.is_v6)) continue;
    if (!selected && filter.loopback_only && !address.is_loopback) continue;
    out->push_back(address);
  }
  // One loopback address is enough.
  if (!selected) {
    const bool has_v4 = std::any_of(out->begin(), out->end(), [](const Address& address) {
      return address.is_loopback && !address.is_v6;
    });
    std::erase_if(*out, [&](const Address& address) {
      return has_v4 && address.is_loopback && address.is_v6;
    });
  }
  if (!out->empty()) return MEP_SUCCESS;
  return selected
             ? fail(MEP_ERR_NOT_FOUND, "no network interface that is up matches MEP_NET_IF=%.100s",
                    filter.selection.c_str())
             : fail(MEP_ERR_NOT_FOUND, "no network interface with an address is up%s",
                    filter.loopback_only ? " (loopback is looked for)" : "");
}

std::vector<std::byte> encode_addresses(std::span<const Address> addresses) {
  std::vector<std::byte> bytes(2 + addresses.size() * kAddressBytes);
  bytes[0] = std::byte{kVersion};
  bytes[1] = static_cast<std::byte>(addresses.size());
  std::byte* at = bytes.data() + 2;
  for (const Address& address : addresses) {
    at[0] = std::byte{address.is_v6 ? uint8_t{6} : uint8_t{4}};
    at[1] = std::byte{address.prefix_bits};
    at[2] = std::byte{address.is_loopback ? uint8_t{1} : uint8_t{0}};
    at[3] = std::byte{0};
    std::memcpy(at + 4, &address.port, sizeof address.port);
    std::memcpy(at + 6, address.bytes, sizeof address.bytes);
    at += kAddressBytes;
  }
  return bytes;
}

Parse parse_addresses(std::span<const std::byte> bytes, std::vector<Address>* out) {
  out->clear();
  if (bytes.size() < 2 || bytes[0] != std::byte{kVersion}) return Parse::kMalformed;
  const auto count = std::to_integer<size_t>(bytes[1]);
  if (count > kMaxAddresses || bytes.size() != 2 + count * kAddressBytes) return Parse::kMalformed;
  for (size_t i = 0; i < count; ++i) {
    const std::byte* at = bytes.data() + 2 + i * kAddressBytes;
    Address address;
    const auto family = std::to_integer<uint8_t>(at[0]);
    if (family != 4 && family != 6) return Parse::kMalformed;
    address.is_v6 = family == 6;
    address.prefix_bits = std::to_integer<uint8_t>(at[1]);
    address.is_loopback = at[2] != std::byte{0};
    std::memcpy(&address.port, at + 4, sizeof address.port);
    std::memcpy(address.bytes, at + 6, sizeof address.bytes);
    if (address.port == 0 || address.prefix_bits > length_of(address) * 8) return Parse::kMalformed;
    out->push_back(address);
  }
  return Parse::kComplete;
}

bool same_network(const Address& left, const Address& right) {
  if (left.is_v6 != right.is_v6) return false;
  size_t bits = std::min(left.prefix_bits, right.prefix_bits);
  for (size_t i = 0; bits > 0; ++i) {
    const size_t here = std::min<size_t>(bits, 8);
    if (((left.bytes[i] ^ right.bytes[i]) >> (8 - here)) != 0) return false;
    bits -= here;
  }
  return true;
}

std::vector<Address> reachable(std::span<const Address> own, std::span<const Address> theirs,
                               bool same_host) {
  const auto rank = [&](const Address& address) {
    if (address.is_loopback) return 0;
    return std::any_of(own.begin(), own.end(),
                       [&](const Address& mine) { return same_network(mine, address); })
               ? 1
               : 2;
  };
  std::vector<Address> found;
  for (const Address& address : theirs) {
    if (!address.is_loopback || same_host) found.push_back(address);
  }
  std::stable_sort(found.begin(), found.end(), [&](const Address& left, const Address& right) {
    return rank(left) < rank(right);
  });
  return found;
}

}  // namespace mep::tcp
