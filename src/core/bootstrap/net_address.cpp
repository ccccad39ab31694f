// Sockets here never block: a connection that is being made is a socket like others, to which
// writes wait in the link's queue. Keepalive and the user timeout end a connection to a host that
// has vanished; what follows from that is membership's business.
#include "core/bootstrap/net_address.hpp"

#include <arpa/inet.h>
#include <fnmatch.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/env.hpp"
#include "base/status.hpp"
#include "base/system_error.hpp"
#include "core/bootstrap/local_socket.hpp"

namespace mep {
namespace {

constexpr int kListenBacklog = 4096;  // the kernel lowers it to net.core.somaxconn
constexpr size_t kMaxListed = 32;

union SocketAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
  sockaddr_storage storage;
};

socklen_t to_socket_address(const NetAddress& address, SocketAddress* out) {
  std::memset(out, 0, sizeof *out);
  if (address.family == 4) {
    out->v4.sin_family = AF_INET;
    out->v4.sin_port = htons(address.port);
    std::memcpy(&out->v4.sin_addr, address.bytes.data(), 4);
    return sizeof out->v4;
  }
  out->v6.sin6_family = AF_INET6;
  out->v6.sin6_port = htons(address.port);
  std::memcpy(&out->v6.sin6_addr, address.bytes.data(), 16);
  return sizeof out->v6;
}

bool from_socket_address(const sockaddr* given, NetAddress* out) {
  *out = NetAddress{};
  if (given->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(given);
    out->family = 4;
    out->port = ntohs(v4->sin_port);
    std::memcpy(out->bytes.data(), &v4->sin_addr, 4);
    return true;
  }
  if (given->sa_family != AF_INET6) return false;
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(given);
  out->port = ntohs(v6->sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
    out->family = 4;
    std::memcpy(out->bytes.data(), v6->sin6_addr.s6_addr + 12, 4);
    return true;
  }
  out->family = 6;
  std::memcpy(out->bytes.data(), &v6->sin6_addr, 16);
  return true;
}

// Means something only together with an interface, which another host does not know.
bool is_link_local(const NetAddress& address) {
  if (address.family == 4) return address.bytes[0] == 169 && address.bytes[1] == 254;
  return address.bytes[0] == 0xfe && (address.bytes[1] & 0xc0) == 0x80;
}

void set_number(int socket, int level, int option, int value) {
  // An option that this kernel lacks only makes a dead host be noticed later.
  (void)setsockopt(socket, level, option, &value, sizeof value);
}

void set_link_options(int socket, uint32_t dead_after_ms) {
  const int limit_ms = static_cast<int>(std::clamp(dead_after_ms, 1000u, 600000u));
  set_number(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_number(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_number(socket, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, limit_ms / 4000));
  set_number(socket, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, limit_ms / 4000));
  set_number(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
  set_number(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, limit_ms);
}

[[nodiscard]] mep_result_t bind_and_listen(int family, const SocketAddress& address,
                                           socklen_t length, UniqueFd* out, bool* taken) {
  UniqueFd socket;
  MEP_TRY(open_socket(family, &socket));
  set_number(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (family == AF_INET6) set_number(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(socket.get(), &address.any, length) != 0 || listen(socket.get(), kListenBacklog) != 0) {
    *taken = errno == EADDRINUSE;
    if (*taken || errno == EADDRNOTAVAIL) return MEP_SUCCESS;
    return fail(result_of_errno(errno), "listening on TCP failed: %s", strerrordesc_np(errno));
  }
  *out = std::move(socket);
  return MEP_SUCCESS;
}

}  // namespace

std::string NetAddress::text() const {
  char host[INET6_ADDRSTRLEN] = "?";
  (void)inet_ntop(family == 4 ? AF_INET : AF_INET6, bytes.data(), host, sizeof host);
  return (family == 4 ? std::string(host) : "[" + std::string(host) + "]") + ":" +
         std::to_string(port);
}

void write_addresses(const std::vector<NetAddress>& addresses, ByteWriter* writer) {
  const size_t count = std::min(addresses.size(), kMaxAddresses);
  writer->number(static_cast<uint8_t>(count));
  for (size_t i = 0; i < count; ++i) {
    const NetAddress& address = addresses[i];
    writer->number(address.family);
    writer->number(address.port);
    for (size_t byte = 0; byte < (address.family == 4 ? 4u : 16u); ++byte) {
      writer->number(address.bytes[byte]);
    }
  }
}

bool read_addresses(ByteReader* reader, std::vector<NetAddress>* addresses) {
  addresses->clear();
  const auto count = reader->number<uint8_t>();
  if (count > kMaxAddresses) return false;
  for (uint8_t i = 0; i < count && reader->valid(); ++i) {
    NetAddress address;
    address.family = reader->number<uint8_t>();
    address.port = reader->number<uint16_t>();
    if (address.family != 4 && address.family != 6) return false;
    for (size_t byte = 0; byte < (address.family == 4 ? 4u : 16u); ++byte) {
      address.bytes[byte] = reader->number<uint8_t>();
    }
    addresses->push_back(address);
  }
  return reader->valid();
}

std::string ListedAddress::text() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

mep_result_t parse_address_list(const std::string& text, std::vector<ListedAddress>* out) {
  out->clear();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string item = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t first = item.find_first_not_of(' ');
    item = first == std::string::npos ? ""
                                      : item.substr(first, item.find_last_not_of(' ') + 1 - first);
    const size_t colon = item.rfind(':');
    ListedAddress address;
    if (colon != std::string::npos) {
      address.host = item.substr(0, colon);
      const char* number = item.data() + colon + 1;
      const char* stop = item.data() + item.size();
      const auto [parsed, error] = std::from_chars(number, stop, address.port);
      if (error != std::errc() || parsed != stop) address.port = 0;
    }
    if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']') {
      address.host = address.host.substr(1, address.host.size() - 2);
    } else if (address.host.find(':') != std::string::npos) {
      address.host.clear();  // an IPv6 address needs brackets, or its end is taken for the port
    }
    if (address.host.empty() || address.port == 0) {
      return fail(MEP_ERR_INVALID_ARGUMENT,
                  "rendezvous '%.200s': '%.100s' is no HOST:PORT (an IPv6 address stands in "
                  "brackets; a directory is given with a /)",
                  text.c_str(), item.c_str());
    }
    out->push_back(std::move(address));
  }
  if (out->size() > kMaxListed) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "rendezvous: %zu addresses, %zu are allowed", out->size(),
                kMaxListed);
  }
  return MEP_SUCCESS;
}

std::vector<NetAddress> resolve_address(const ListedAddress& listed, std::string* reason) {
  std::vector<NetAddress> found;
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int status =
      getaddrinfo(listed.host.c_str(), std::to_string(listed.port).c_str(), &hints, &list);
  if (status != 0) {
    *reason = gai_strerror(status);
    return found;
  }
  for (const addrinfo* item = list; item != nullptr; item = item->ai_next) {
    NetAddress address;
    if (!from_socket_address(item->ai_addr, &address)) continue;
    if (std::find(found.begin(), found.end(), address) == found.end()) found.push_back(address);
  }
  freeaddrinfo(list);
  if (found.empty()) *reason = "it has neither an IPv4 nor an IPv6 address";
  return found;
}

bool is_loopback(const NetAddress& address) {
  if (address.family == 4) return address.bytes[0] == 127;
  constexpr std::array<uint8_t, 16> kLoopback = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return address.bytes == kLoopback;
}

std::vector<NetAddress> local_addresses(const std::string& interface_glob) {
  std::vector<NetAddress> found;
  std::vector<NetAddress> loopback;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* item = list; item != nullptr; item = item->ifa_next) {
    NetAddress address;
    if (item->ifa_addr == nullptr || (item->ifa_flags & IFF_UP) == 0) continue;
    if (!from_socket_address(item->ifa_addr, &address) || is_link_local(address)) continue;
    if (!interface_glob.empty() && fnmatch(interface_glob.c_str(), item->ifa_name, 0) != 0) {
      continue;
    }
    (is_loopback(address) ? loopback : found).push_back(address);
  }
  freeifaddrs(list);
  std::stable_sort(found.begin(), found.end(), [](const NetAddress& left, const NetAddress& right) {
    return left.family < right.family;
  });
  found.insert(found.end(), loopback.begin(), loopback.end());
  return found;
}

mep_result_t listen_tcp(const NetAddress* address, UniqueFd* out, bool* taken, uint16_t* port) {
  out->reset();
  *taken = false;
  SocketAddress native;
  if (address != nullptr) {
    const socklen_t length = to_socket_address(*address, &native);
    MEP_TRY(bind_and_listen(address->family == 4 ? AF_INET : AF_INET6, native, length, out, taken));
  } else {
    // Both families by one socket, where the host has IPv6 at all.
    std::memset(&native, 0, sizeof native);
    native.v6.sin6_family = AF_INET6;
    native.v6.sin6_port = htons(*port);
    native.v6.sin6_addr = in6addr_any;
    if (bind_and_listen(AF_INET6, native, sizeof native.v6, out, taken) != MEP_SUCCESS ||
        (!out->valid() && !*taken)) {
      std::memset(&native, 0, sizeof native);
      native.v4.sin_family = AF_INET;
      native.v4.sin_port = htons(*port);
      MEP_TRY(bind_and_listen(AF_INET, native, sizeof native.v4, out, taken));
    }
  }
  NetAddress bound;
  if (out->valid() && own_address(out->get(), &bound)) *port = bound.port;
  return MEP_SUCCESS;
}

mep_result_t connect_tcp(const NetAddress& address, uint32_t dead_after_ms, UniqueFd* out) {
  out->reset();
  UniqueFd socket;
  MEP_TRY(open_socket(address.family == 4 ? AF_INET : AF_INET6, &socket));
  set_link_options(socket.get(), dead_after_ms);
  SocketAddress native;
  const socklen_t length = to_socket_address(address, &native);
  int status = 0;
  do {
    status = connect(socket.get(), &native.any, length);
  } while (status != 0 && errno == EINTR);
  if (status == 0 || errno == EINPROGRESS) *out = std::move(socket);
  return MEP_SUCCESS;
}

mep_result_t accept_tcp(int listener, uint32_t dead_after_ms, UniqueFd* out, NetAddress* from) {
  SocketAddress native;
  MEP_TRY(accept_socket(listener, &native.storage, out));
  if (!out->valid()) return MEP_SUCCESS;
  set_link_options(out->get(), dead_after_ms);
  (void)from_socket_address(&native.any, from);
  return MEP_SUCCESS;
}

bool own_address(int socket, NetAddress* out) {
  SocketAddress native;
  socklen_t length = sizeof native;
  return getsockname(socket, &native.any, &length) == 0 && from_socket_address(&native.any, out);
}

bool is_connected(int socket) {
  SocketAddress native;
  socklen_t length = sizeof native;
  return getpeername(socket, &native.any, &length) == 0;
}

mep_result_t interface_from_environment(std::string* glob) {
  bool is_set = false;
  return env_string("MEP_NET_IF", glob, &is_set);
}

}  // namespace mep
