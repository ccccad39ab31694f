// Ranks over verbs for tests in the RDMA lab's guest: which of the two devices each rank uses.
#pragma once

#include <atomic>

#include "adapters.hpp"
#include "support/transport_rig.hpp"

namespace mep::test {

// All ranks on both devices (two rails), or rank after rank on the one and the other (their packets
// cross the veth pair), or all on the first.
enum class Devices { kBoth, kAlternating, kFirst };

inline Devices chosen_devices = Devices::kBoth;
inline std::atomic<uint32_t> transports_made{0};

inline std::unique_ptr<Transport> make_lab_transport(const TransportOptions& given) {
  TransportOptions options = given;
  // Threads count; processes are numbered by the kernel one after the other.
  const uint32_t number =
      transports_made.fetch_add(1, std::memory_order_relaxed) + static_cast<uint32_t>(getpid());
  if (chosen_devices == Devices::kAlternating) {
    options.near_adapters = only_adapters(number % 2 == 0 ? "rxe0:1" : "rxe1:1");
  }
  if (chosen_devices == Devices::kFirst) options.near_adapters = only_adapters("rxe0:1");
  for (const TransportEntry& entry : transport_table()) {
    if (std::string(entry.name) == "verbs") return entry.make(options);
  }
  return nullptr;
}

constexpr TransportEntry kLabEntry{"verbs", make_lab_transport};

inline void run_verbs(Devices devices, uint32_t ranks, const RankBody& body,
                      RankKind kind = RankKind::kProcesses) {
  chosen_devices = devices;
  run_ranks(kLabEntry, {kind, true, ranks, {}}, body);
}

}  // namespace mep::test
