// What ranks tell each other when they connect, and what follows from it: the transport of each pair
// and how long a wait spins.
#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <ctime>

#include "base/env.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "core/topo/preferred_hca.hpp"
#include "core/topo/usable_cores.hpp"
#include "core/world/offer.hpp"
#include "core/world/world.hpp"

namespace mep {
namespace {

constexpr uint32_t kCalibrationSpins = 500;

// How long kCalibrationSpins pauses take here.
uint64_t spin_time_ns() {
  const uint64_t start = now_ns();
  for (uint32_t i = 0; i < kCalibrationSpins; ++i) cpu_pause();
  return std::max<uint64_t>(now_ns() - start, 1);
}

// In which order network adapters are to be used.
[[nodiscard]] mep_result_t find_near_adapters(int32_t rank, NearAdapters* out) {
  HcaQuestion question;
  question.fallback_rank = rank;
  HcaChoice choice;
  MEP_TRY(choose_preferred_hca(question, &choice));
  log(LogLevel::kInfo, "HCA: %s", choice.summary.c_str());
  out->names.clear();
  for (size_t i = 0; i < choice.usable; ++i) {
    out->names += (i == 0 ? "" : ",") + choice.ports[i].name();
  }
  out->equals = static_cast<uint32_t>(choice.equals);
  return MEP_SUCCESS;
}

// Whom all map who have these transports.
Shares shared_by(std::span<const TransportSet::Opened> all) {
  Shares shares = Shares::kNothing;
  for (const TransportSet::Opened& each : all) {
    const TransportTraits& traits = each.transport->traits();
    if (!traits.is_mapped) continue;
    const Shares wider = traits.reach == Reach::kProcess ? Shares::kProcess : Shares::kHost;
    shares = std::max(shares, wider);
  }
  return shares;
}

}  // namespace

mep_result_t TransportSet::open(const ResolvedConfig& config) {
  TransportOptions options;
  puts_only = (config.flags & MEP_COMM_PUT_ONLY) != 0;
  options.put_only = puts_only;
  options.suspect_ms = config.suspect_ms;
  options.connect_timeout_ms = config.init_timeout_ms;
  options.one_host = config.rendezvous.empty() && config.store == nullptr;
  options.near_adapters = [rank = config.rank](NearAdapters* out) {
    return find_near_adapters(rank, out);
  };
  const auto wanted = [&](const char* name) {
    return config.transports.empty() ||
           std::find(config.transports.begin(), config.transports.end(), name) !=
               config.transports.end();
  };
  for (const std::string& name : config.transports) {
    const auto table = transport_table();
    if (std::none_of(table.begin(), table.end(),
                     [&](const TransportEntry& entry) { return name == entry.name; })) {
      std::string known;
      for (const TransportEntry& entry : table) known += std::string(" ") + entry.name;
      return fail(MEP_ERR_INVALID_ARGUMENT, "there is no transport \"%s\"; known are:%s",
                  name.c_str(), known.c_str());
    }
  }
  for (const TransportEntry& entry : transport_table()) {
    if (!wanted(entry.name)) continue;
    Opened opened;
    opened.transport = entry.make(options);
    const mep_result_t result = opened.transport->open(&opened.offer);
    // It would be usable: going on without it would only hide what is missing.
    if (result == MEP_ERR_NO_MEMORY || result == MEP_ERR_INVALID_ARGUMENT) return result;
    if (result != MEP_SUCCESS) {
      log(LogLevel::kInfo, "transport %s is not usable: %s", entry.name, last_error_text());
      continue;
    }
    all.push_back(std::move(opened));
  }
  return MEP_SUCCESS;
}

mep_result_t TransportSet::make_offer(std::vector<std::byte>* offer) const {
  Offer own;
  MEP_TRY(affinity_mask(&own.affinity));
  own.quota = static_cast<uint32_t>(cgroup_core_limit());
  for (const Opened& each : all) own.transports.push_back({each.transport->name(), each.offer});
  own.shares = puts_only ? Shares::kNothing : shared_by(all);
  *offer = encode_offer(own);
  return MEP_SUCCESS;
}

// The lower slot's order of preference decides, so both sides come to the same choice.
mep_result_t World::choose_transport(Peer* peer, std::span<const std::byte> offer) {
  Offer theirs;
  if (!decode_offer(offer, &theirs)) {
    return fail(MEP_ERR_BOOTSTRAP, "rank %u sent a malformed transport offer", peer->identity.slot);
  }
  peer->sharing = theirs.sharing(peer->identity);
  const auto try_pair = [&](Transport& transport, const Offer::Entry& entry, mep_result_t* result) {
    if (entry.name != transport.name() || !transport.reaches(self_.identity, peer->identity)) {
      return false;
    }
    *result = transport.add_peer(self_.identity, peer->identity, entry.blob, peer->session);
    // No fabric in common, say; the other side finds the same and tries the next one, too.
    if (*result == MEP_ERR_UNSUPPORTED) return false;
    if (*result == MEP_SUCCESS && transport.traits().has_events) {
      *result = network_.add(&transport, doorbell());
    }
    peer->transport = &transport;
    return true;
  };
  mep_result_t result = MEP_SUCCESS;
  if (self_.identity.slot < peer->identity.slot) {
    for (const TransportSet::Opened& each : transports_.all) {
      for (const Offer::Entry& entry : theirs.transports) {
        if (try_pair(*each.transport, entry, &result)) return result;
      }
    }
  } else {
    for (const Offer::Entry& entry : theirs.transports) {
      for (const TransportSet::Opened& each : transports_.all) {
        if (try_pair(*each.transport, entry, &result)) return result;
      }
    }
  }
  return fail(
      MEP_ERR_UNSUPPORTED,
      "no transport reaches rank %u; `mep_info` shows what is usable, MEP_TRANSPORTS what is "
      "allowed",
      peer->identity.slot);
}

mep_result_t World::open_network() {
  Offer offered;
  if (decode_offer(self_.offer, &offered)) {
    peers_[self_slot()].sharing = offered.sharing(self_.identity);
  }
  const auto& all = transports_.all;
  MEP_TRY(network_.open(std::any_of(all.begin(), all.end(), [](const TransportSet::Opened& each) {
    return each.transport->traits().has_events;
  })));
  if (!network_.is_open()) return MEP_SUCCESS;
  wait_policy_.network = &network_;
  UniqueFd own(fcntl(network_.event(), F_DUPFD_CLOEXEC, 0));
  if (!own.valid()) return fail(MEP_ERR_NO_MEMORY, "no descriptors left (ulimit -n): %m");
  doorbell_bind_event(doorbell(), std::move(own));
  return MEP_SUCCESS;
}

mep_result_t World::await_connections(const Deadline& deadline, bool is_newcomer) {
  for (uint32_t slot = 0; slot < max_slots(); ++slot) {
    const Peer& peer = peers_[slot];
    const auto wanted = [&] {
      return peer.transport != nullptr && slot != self_slot() &&
             view_snapshot().incarnation(slot) == peer.identity.incarnation;
    };
    while (wanted() && !peer.transport->status(slot).is_connected) {
      const bool failed = peer_state(slot) == MEP_PEER_SUSPECT || peer_state(slot) == MEP_PEER_DEAD;
      if (failed && is_newcomer) break;
      if (terminal_result() != MEP_SUCCESS || failed || deadline.expired()) {
        return fail(MEP_ERR_BOOTSTRAP,
                    "rank %u was found, but %s does not reach it; see the log (MEP_LOG=info), "
                    "MEP_NET_IF, and whether a firewall is in between",
                    slot, peer.transport->name());
      }
      constexpr timespec kPause{0, 200'000};
      nanosleep(&kPause, nullptr);
    }
  }
  return MEP_SUCCESS;
}

void World::hold_windows() {
  for (uint32_t i = 0; i < network_.count(); ++i) network_.transport(i)->hold_windows(true);
}

void World::release_windows() {
  for (uint32_t i = 0; i < network_.count(); ++i) network_.transport(i)->hold_windows(false);
}

void World::unbind_event(uint32_t slot) {
  if (!network_.is_open() || slot == self_slot() || peers_[slot].transport == nullptr) return;
  std::byte* mapped = peers_[slot].transport->map(slot, kWorldWindowId);
  // A rank of this process rings by its owner's own entry.
  if (mapped == nullptr || peers_[slot].identity.process_token == self_.identity.process_token) {
    return;
  }
  doorbell_unbind_event(reinterpret_cast<Doorbell*>(mapped));
}

// Spinning only helps if the awaited rank has a core of its own.
void World::decide_wait_policy(std::span<const PeerLink> peers) {
  std::vector<uint64_t> cores;
  if (affinity_mask(&cores) != MEP_SUCCESS) cores = {1};
  int quota = cgroup_core_limit();
  int ranks = 1;
  for (const PeerLink& peer : peers) {
    if (peer.identity.host != self_.identity.host) continue;
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
  if (ranks > available) {
    wait_policy_.spins = 0;
    wait_policy_.network_spin_ns = 0;
    wait_policy_.network_yield_ns = 5'000'000;
    wait_policy_.gauge = &yield_gauge_;
  }
  uint64_t spin_us = 0;
  bool given = false;
  if (env_uint("MEP_SPIN_US", 0, 10'000'000, &spin_us, &given) == MEP_SUCCESS && given) {
    wait_policy_.spins = static_cast<uint32_t>(spin_us * kCalibrationSpins * 1000 / spin_time_ns());
    wait_policy_.network_spin_ns = spin_us * 1000;
  }
  log(LogLevel::kInfo, "%d ranks share %d cores here: waits %s", ranks, available,
      ranks > available ? "yield at once" : "spin first");
}

}  // namespace mep
