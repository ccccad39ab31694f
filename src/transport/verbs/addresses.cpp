#include "transport/verbs/addresses.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <type_traits>

#include "base/status.hpp"

namespace mep::verbs {
namespace {

constexpr uint32_t kOfferMagic = 0x4d56424f;
constexpr uint32_t kWindowMagic = 0x4d564257;
constexpr uint32_t kQueuePairLimit = 1u << 24;

// Both ends run the same build of the library on the same byte order: hellos check the version.
struct OfferHeader {
  uint32_t magic;
  uint32_t ports;
};
struct OfferPort {
  uint32_t flags;  // bit 0: InfiniBand
  uint32_t mtu;
  uint32_t lid;
  uint32_t speed_mbps;
  uint8_t gid[16];
};
static_assert(sizeof(OfferPort) == 32);

struct WindowHeader {
  uint32_t magic;
  uint32_t generation;
  uint64_t window;
  uint64_t bytes;
  uint64_t address;
  uint32_t rails;
  uint32_t unused;
};
struct WindowRailBytes {
  uint32_t rkey;
  uint32_t queue_pair;
  uint32_t first_psn;
};
constexpr size_t kWindowBlobBytes = sizeof(WindowHeader) + kMaxRails * sizeof(WindowRailBytes);

template <typename T>
void store(std::vector<std::byte>* bytes, size_t offset, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(bytes->data() + offset, &value, sizeof(value));
}

template <typename T>
T load(std::span<const std::byte> bytes, size_t offset) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

// Lower is better; -1: of no use.
int gid_rank(const GidEntry& entry, bool is_infiniband) {
  if (is_zero(entry.gid)) return -1;
  if (is_infiniband) return entry.type == GidType::kInfiniband ? 0 : -1;
  if (entry.type == GidType::kInfiniband) return -1;
  const int version = entry.type == GidType::kRoceV2 ? 0 : 3;
  if (is_ipv4_mapped(entry.gid)) return version;
  return version + (is_link_local(entry.gid) ? 2 : 1);
}

}  // namespace

bool is_zero(const Gid& gid) {
  return std::all_of(gid.begin(), gid.end(), [](uint8_t byte) { return byte == 0; });
}

bool is_ipv4_mapped(const Gid& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](uint8_t byte) { return byte == 0; }) &&
         gid[10] == 0xff && gid[11] == 0xff;
}

bool is_link_local(const Gid& gid) {
  return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

int choose_gid(std::span<const GidEntry> entries, bool is_infiniband, int wanted) {
  int best = -1;
  int best_rank = 0;
  for (const GidEntry& entry : entries) {
    if (wanted >= 0) {
      if (entry.index == static_cast<uint32_t>(wanted) && !is_zero(entry.gid)) return wanted;
      continue;
    }
    const int rank = gid_rank(entry, is_infiniband);
    if (rank < 0 || (best >= 0 && rank >= best_rank)) continue;
    best = static_cast<int>(entry.index);
    best_rank = rank;
  }
  return best;
}

std::vector<std::byte> encode_offer(std::span<const PortAddress> ports) {
  std::vector<std::byte> bytes(sizeof(OfferHeader) + ports.size() * sizeof(OfferPort));
  store(&bytes, 0, OfferHeader{kOfferMagic, static_cast<uint32_t>(ports.size())});
  for (size_t i = 0; i < ports.size(); ++i) {
    OfferPort port{};
    port.flags = ports[i].is_infiniband ? 1 : 0;
    port.mtu = ports[i].mtu;
    port.lid = ports[i].lid;
    port.speed_mbps = ports[i].speed_mbps;
    std::copy(ports[i].gid.begin(), ports[i].gid.end(), port.gid);
    store(&bytes, sizeof(OfferHeader) + i * sizeof(OfferPort), port);
  }
  return bytes;
}

mep_result_t decode_offer(std::span<const std::byte> bytes, std::vector<PortAddress>* ports) {
  if (bytes.size() < sizeof(OfferHeader)) {
    return fail(MEP_ERR_DENIED, "the peer described its HCAs in %zu bytes", bytes.size());
  }
  const auto header = load<OfferHeader>(bytes, 0);
  if (header.magic != kOfferMagic || header.ports == 0 || header.ports > kMaxRails ||
      bytes.size() != sizeof(header) + header.ports * sizeof(OfferPort)) {
    return fail(MEP_ERR_DENIED, "the peer's description of its HCAs is malformed");
  }
  ports->clear();
  for (uint32_t i = 0; i < header.ports; ++i) {
    const auto port = load<OfferPort>(bytes, sizeof(header) + i * sizeof(OfferPort));
    if (port.flags > 1 || port.mtu < 1 || port.mtu > kLargestMtu || port.lid > UINT16_MAX) {
      return fail(MEP_ERR_DENIED, "the peer's description of HCA %u is malformed", i);
    }
    PortAddress address;
    address.is_infiniband = port.flags == 1;
    address.mtu = port.mtu;
    address.lid = static_cast<uint16_t>(port.lid);
    address.speed_mbps = port.speed_mbps;
    std::copy(std::begin(port.gid), std::end(port.gid), address.gid.begin());
    ports->push_back(address);
  }
  return MEP_SUCCESS;
}

bool same_fabric(const PortAddress& one, const PortAddress& other) {
  if (one.is_infiniband != other.is_infiniband) return false;
  if (one.is_infiniband) return one.lid != 0 && other.lid != 0;
  return is_ipv4_mapped(one.gid) == is_ipv4_mapped(other.gid) &&
         is_link_local(one.gid) == is_link_local(other.gid);
}

bool needs_global_route(const PortAddress& one, const PortAddress& other) {
  if (!one.is_infiniband) return true;
  return !std::equal(one.gid.begin(), one.gid.begin() + 8, other.gid.begin());  // subnet prefix
}

std::vector<RailPorts> pair_rails(std::span<const PortAddress> lower,
                                  std::span<const PortAddress> higher) {
  std::vector<RailPorts> rails;
  std::vector<bool> taken(higher.size(), false);
  for (size_t i = 0; i < lower.size() && rails.size() < kMaxRails; ++i) {
    for (size_t j = 0; j < higher.size(); ++j) {
      if (taken[j] || !same_fabric(lower[i], higher[j])) continue;
      taken[j] = true;
      rails.push_back({i, j});
      break;
    }
  }
  return rails;
}

mep_result_t parse_port_list(const std::string& text, std::vector<PortName>* ports) {
  ports->clear();
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string entry = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t colon = entry.find(':');
    PortName name{entry.substr(0, colon), 0};
    if (colon != std::string::npos) {
      const char* last = entry.data() + entry.size();
      const auto parsed = std::from_chars(entry.data() + colon + 1, last, name.port);
      if (parsed.ec != std::errc() || parsed.ptr != last || name.port < 1 || name.port > 255) {
        return fail(MEP_ERR_INVALID_ARGUMENT, "\"%s\" names no port of an HCA", entry.c_str());
      }
    }
    if (name.device.empty()) {
      return fail(MEP_ERR_INVALID_ARGUMENT, "\"%s\" is no list of HCAs", text.c_str());
    }
    ports->push_back(std::move(name));
  }
  return MEP_SUCCESS;
}

std::vector<std::byte> encode_window(const WindowAddress& address) {
  std::vector<std::byte> blob(kWindowBlobBytes);
  store(&blob, 0,
        WindowHeader{kWindowMagic, address.generation, address.window, address.bytes,
                     address.address, static_cast<uint32_t>(address.rails.size()), 0});
  for (size_t i = 0; i < address.rails.size() && i < kMaxRails; ++i) {
    const WindowRail& rail = address.rails[i];
    store(&blob, sizeof(WindowHeader) + i * sizeof(WindowRailBytes),
          WindowRailBytes{rail.rkey, rail.queue_pair, rail.first_psn});
  }
  return blob;
}

mep_result_t decode_window(std::span<const std::byte> blob, uint64_t window, size_t bytes,
                           size_t rails, WindowAddress* out) {
  if (blob.size() != kWindowBlobBytes) {
    return fail(MEP_ERR_DENIED, "the peer described its window in %zu bytes instead of %zu",
                blob.size(), kWindowBlobBytes);
  }
  const auto header = load<WindowHeader>(blob, 0);
  if (header.magic != kWindowMagic) {
    return fail(MEP_ERR_DENIED, "the peer's description of its window is of another kind (%#x)",
                header.magic);
  }
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  if (header.window != window) {
    return fail(MEP_ERR_MISMATCH, "the peer offers window %llu where window %llu was expected",
                number(header.window), number(window));
  }
  if (header.bytes < bytes) {
    return fail(MEP_ERR_MISMATCH, "the peer's window %llu has %llu bytes where this rank's has %zu",
                number(window), number(header.bytes), bytes);
  }
  if (header.rails != rails || header.address > UINT64_MAX - header.bytes) {
    return fail(MEP_ERR_DENIED, "the peer's description of window %llu is malformed",
                number(window));
  }
  *out = {header.window, header.bytes, header.address, header.generation, {}};
  for (size_t i = 0; i < rails; ++i) {
    const auto rail = load<WindowRailBytes>(blob, sizeof(header) + i * sizeof(WindowRailBytes));
    if (rail.queue_pair >= kQueuePairLimit || rail.first_psn >= kQueuePairLimit) {
      return fail(MEP_ERR_DENIED, "the peer's description of window %llu is malformed",
                  number(window));
    }
    out->rails.push_back({rail.rkey, rail.queue_pair, rail.first_psn});
  }
  return MEP_SUCCESS;
}

Striping::Striping(size_t bytes, size_t rails)
    : bytes_(bytes), rails_(bytes >= kMinBytes ? std::max<size_t>(rails, 1) : 1) {}

size_t Striping::begin(size_t rail) const {
  if (rail >= rails_) return bytes_;
  const size_t share = (bytes_ / rails_ + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
  return std::min(rail * share, bytes_);
}

}  // namespace mep::verbs
