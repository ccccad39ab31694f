// A peer's offer of its cores and transports; and whatever is in it, read as addresses of TCP.
#include "core/world/offer.hpp"

#include <algorithm>

#include "fuzz/fuzz_target.hpp"
#include "transport/tcp/address.hpp"

namespace fuzz {
namespace {

mep::tcp::Address loopback(uint16_t port) {
  mep::tcp::Address address;
  address.is_loopback = true;
  address.prefix_bits = 8;
  address.port = port;
  address.bytes[0] = 127;
  address.bytes[3] = 1;
  return address;
}

mep::tcp::Address v6(uint16_t port) {
  mep::tcp::Address address;
  address.is_v6 = true;
  address.prefix_bits = 61;
  address.port = port;
  address.bytes[0] = 0xfd;
  address.bytes[15] = 9;
  return address;
}

void check_tcp(std::span<const std::byte> blob) {
  std::vector<mep::tcp::Address> addresses;
  if (mep::tcp::parse_addresses(blob, &addresses) != mep::tcp::Parse::kComplete) return;
  require(addresses.size() <= mep::tcp::kMaxAddresses);
  const mep::tcp::Address own[] = {loopback(1), v6(2)};
  for (const bool same_host : {false, true}) {
    const auto tried = mep::tcp::reachable(own, addresses, same_host);
    require(tried.size() <= addresses.size());
    for (const mep::tcp::Address& address : tried) {
      sockaddr_storage socket_address;
      require(address.port != 0 && !address.text().empty());
      require(address.to_socket_address(&socket_address) <= sizeof socket_address);
    }
  }
}

}  // namespace

void one(std::span<const std::byte> input) {
  mep::Offer offer;
  if (!mep::decode_offer(input, &offer)) return;
  (void)offer.sharing({1, 2, 3, 4, 5});
  for (const mep::Offer::Entry& entry : offer.transports) check_tcp(entry.blob);
  const std::vector<std::byte> again = mep::encode_offer(offer);
  require(std::equal(again.begin(), again.end(), input.begin(), input.end()));
}

void seeds(const Sink& sink) {
  mep::Offer offer;
  offer.affinity = {0xff};
  offer.quota = 4;
  sink("no-transport", mep::encode_offer(offer));
  offer.transports.push_back({"inproc", {}});
  offer.transports.push_back({"shm", std::vector<std::byte>(12, std::byte{3})});
  sink("one-host", mep::encode_offer(offer));
  const mep::tcp::Address addresses[] = {loopback(4711), v6(4712)};
  offer.shares = mep::Shares::kHost;
  offer.transports.push_back({"tcp", mep::tcp::encode_addresses(addresses)});
  sink("tcp", mep::encode_offer(offer));
}

}  // namespace fuzz
