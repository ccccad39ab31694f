// How long a wait of this rank spins, by the cores that it shares with the ranks of its host.
#pragma once

#include <span>

#include "core/bootstrap/bootstrap.hpp"
#include "core/world/wait.hpp"

namespace mep {

// `peers` with their offers; `gauge` outlives the policy.
void decide_wait(const PeerIdentity& self, std::span<const PeerLink> peers, YieldGauge* gauge,
                 WaitPolicy* policy);

}  // namespace mep
