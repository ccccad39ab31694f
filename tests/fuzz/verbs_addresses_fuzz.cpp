// A peer's statement about its HCAs and about a window that RDMA reaches. First byte: 0 the offer, else the
// window over that many rails.
#include <algorithm>

#include "fuzz/fuzz_target.hpp"
#include "transport/verbs/addresses.hpp"

namespace fuzz {
namespace {

constexpr uint64_t kWindow = 9;
constexpr size_t kBytes = 4096;

mep::verbs::PortAddress port(bool is_infiniband) {
  mep::verbs::PortAddress address;
  address.is_infiniband = is_infiniband;
  address.mtu = 5;
  address.lid = is_infiniband ? 17 : 0;
  address.speed_mbps = 100000;
  address.gid[10] = address.gid[11] = is_infiniband ? 0 : 0xff;
  address.gid[15] = 4;
  return address;
}

void check_offer(std::span<const std::byte> bytes) {
  std::vector<mep::verbs::PortAddress> theirs;
  if (mep::verbs::decode_offer(bytes, &theirs) != MEP_SUCCESS) return;
  require(!theirs.empty() && theirs.size() <= mep::verbs::kMaxRails);
  const std::vector<std::byte> again = mep::verbs::encode_offer(theirs);
  require(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  const mep::verbs::PortAddress own[] = {port(false), port(true)};
  for (const mep::verbs::RailPorts& rail : mep::verbs::pair_rails(own, theirs)) {
    require(rail.lower < std::size(own) && rail.higher < theirs.size());
    (void)mep::verbs::needs_global_route(own[rail.lower], theirs[rail.higher]);
  }
  for (const mep::verbs::RailPorts& rail : mep::verbs::pair_rails(theirs, own)) {
    require(rail.lower < theirs.size() && rail.higher < std::size(own));
  }
}

void check_window(std::span<const std::byte> blob, size_t rails) {
  mep::verbs::WindowAddress window;
  if (mep::verbs::decode_window(blob, kWindow, kBytes, rails, &window) != MEP_SUCCESS) return;
  require(window.window == kWindow && window.bytes >= kBytes && window.rails.size() == rails);
  require(window.address + window.bytes >= window.address);
  for (const mep::verbs::WindowRail& rail : window.rails) {
    require(rail.queue_pair < 1 << 24 && rail.first_psn < 1 << 24);
  }
}

void put(const Sink& sink, const char* name, unsigned char kind,
         const std::vector<std::byte>& payload) {
  std::vector<std::byte> bytes{std::byte{kind}};
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  sink(name, bytes);
}

}  // namespace

void one(std::span<const std::byte> input) {
  if (input.empty()) return;
  const size_t kind = static_cast<size_t>(input[0]) % (mep::verbs::kMaxRails + 1);
  if (kind == 0) {
    check_offer(input.subspan(1));
  } else {
    check_window(input.subspan(1), kind);
  }
}

void seeds(const Sink& sink) {
  const mep::verbs::PortAddress ports[] = {port(false), port(true)};
  put(sink, "offer", 0, mep::verbs::encode_offer({ports, 1}));
  put(sink, "offer-two", 0, mep::verbs::encode_offer(ports));
  mep::verbs::WindowAddress window{kWindow, kBytes, 0x7f0000000000, 1, {{5, 6, 7}}};
  put(sink, "window", 1, mep::verbs::encode_window(window));
  window.rails.push_back({8, 9, 10});
  put(sink, "window-two", 2, mep::verbs::encode_window(window));
}

}  // namespace fuzz
