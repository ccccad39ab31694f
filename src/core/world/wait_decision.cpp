#include "core/world/wait_decision.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/log.hpp"
#include "core/topo/usable.hpp"
#include "core/world/offer.hpp"

namespace mep {
namespace {

constexpr uint32_t kCalibrationSpins = 500;

// How long kCalibrationSpins pauses take here.
uint64_t spin_time_ns() {
  const uint64_t start = now_ns();
  for (uint32_t i = 0; i < kCalibrationSpins; ++i) cpu_pause();
  return std::max<uint64_t>(now_ns() - start, 1);
}

}  // namespace

// Spinning only helps if the awaited rank has a core of its own.
void decide_wait(const PeerIdentity& self, std::span<const PeerLink> peers, YieldGauge* gauge,
                 WaitPolicy* policy) {
  std::vector<uint64_t> cores;
  if (affinity_mask(&cores) != MEP_SUCCESS) cores = {1};
  int quota = cgroup_core_limit();
  int ranks = 1;
  for (const PeerLink& peer : peers) {
    if (peer.identity.host != self.host) continue;
    ++ranks;
    Offer offer;
    if (!decode_offer(peer.offer, &offer)) continue;
    if (offer.affinity.size() > cores.size()) cores.resize(offer.affinity.size(), 0);
    for (size_t i = 0; i < offer.affinity.size(); ++i) cores[i] |= offer.affinity[i];
    if (offer.quota != 0) quota = std::max(quota, static_cast<int>(offer.quota));
  }
  int available = 0;
  for (const uint64_t word : cores) available += std::popcount(word);
  if (quota > 0) available = std::min(available, quota);
  gauge->begin(static_cast<uint32_t>(ranks), ranks <= available);
  policy->gauge = gauge;
  policy->network_yield_ns = 5'000'000;
  policy->adapts = true;
  uint64_t spin_us = 0;
  bool given = false;
  if (env_number("MEP_SPIN_US", &spin_us, &given) == MEP_SUCCESS && given) {
    policy->spins = static_cast<uint32_t>(spin_us * kCalibrationSpins * 1000 / spin_time_ns());
    policy->network_spin_ns = spin_us * 1000;
    policy->adapts = false;
  }
  log(LogLevel::kInfo, "%d ranks share %d cores here: waits %s", ranks, available,
      ranks > available ? "yield at once"
      : policy->adapts  ? "spin first, unless ranks turn out to share a core"
                        : "spin as MEP_SPIN_US says");
}

}  // namespace mep
