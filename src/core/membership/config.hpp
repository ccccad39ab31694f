// Every threshold of membership in one table. All are values of the world, the same on each member; the
// defaults of mep_comm_config_t and of the environment (MEP_HEARTBEAT_MS, MEP_SUSPECT_MS) are these.
//
// The effect of a SIGSTOP of T under them, machine otherwise healthy (membership_rules_test checks it):
//   T < 0.3 s        nothing; waits are longer by T
//   0.3 s .. 5 s     the peers report the rank as slow (peer state), nobody is evicted
//   T > about 5 s    with 3 ranks or more (and a quorum among the others): two witnesses, evicted;
//                    it learns so when it wakes. With 2 ranks: slot 1 is evicted likewise; if the
//                    lowest slot is the stopped one, the other cannot form a quorum, waits until
//                    about 10 s, and then leaves with "no quorum": the stopped rank goes on alone
//   SIGKILL          confirmed through the pidfd at once, no threshold takes part
#pragma once

#include <algorithm>
#include <cstdint>

namespace mep::membership {

enum class QuorumPolicy : uint8_t {
  // More than half of the old view, or half with its lowest slot, or all that are not confirmed
  // dead.
  kMajority = 0,
  // The same, but for an exact half an outside witness (a write-once register per epoch) decides.
  kWitness = 1,
};

struct Config {
  QuorumPolicy quorum = QuorumPolicy::kMajority;
  // How often a heartbeat action is given; the control thread ticks at least that often.
  uint64_t heartbeat_interval_us = 100'000;
  // Silence after which a peer is reported as slow (never evicted for that).
  uint64_t slow_after_us = 300'000;
  // Silence after which a peer is accused; with >= 3 living members a second accuser is needed.
  uint64_t accuse_after_us = 5'000'000;
  // A member that was never heard has so many times accuse_after_us: its host may be slow to start it.
  uint64_t start_factor = 4;
  // A tick later than this means that this rank itself was not scheduled: the gap does not count
  // against its peers, and its thresholds grow by one step (up to max_health_steps).
  uint64_t late_tick_us = 150'000;
  uint32_t max_health_steps = 4;
  // On-time ticks that take one step back.
  uint32_t healthy_ticks_per_step = 20;
  // How long a broken connection that several members or both ends report is held before it counts,
  // so that a pidfd or the rest of a cut is heard first.
  uint64_t link_hold_us = 20'000;
  // How long a broken connection or silence that one end alone reports is held before a third
  // member that hears both takes the higher slot of the two out; longer than accuse_after_us, so
  // that other witnesses come first.
  uint64_t pair_hold_us = 10'000'000;
  // Conflicting suspicions that leave no quorum among reachable members are dropped after this.
  uint64_t stuck_round_us = 400'000;
  // A view change without any progress for so long evicts who does not answer (the lead first).
  uint64_t stalled_change_us = 10'000'000;
  // A member of a larger view sends its row to the leads alone, else to all members.
  uint32_t rows_to_all_up_to = 64;
  // How many members collect all rows in a larger view. Three: a link that is broken between a lead and another member
  // leaves two that hear both.
  uint32_t leads = 3;
  // A needed view change that finds no quorum for so long ends with "no quorum" for this rank.
  uint64_t no_quorum_after_us = 5'000'000;
};

// The thresholds of a world that beats and accuses at other intervals. A rank that beats seldom must not take its own
// pauses for lateness, nor those of others for silence.
inline Config config_for(uint64_t heartbeat_interval_us, uint64_t accuse_after_us) {
  Config config;
  config.heartbeat_interval_us = heartbeat_interval_us;
  config.accuse_after_us = accuse_after_us;
  config.slow_after_us = std::max(config.slow_after_us, 3 * heartbeat_interval_us);
  config.late_tick_us = std::max(config.late_tick_us, heartbeat_interval_us * 3 / 2);
  config.pair_hold_us = 2 * accuse_after_us;
  return config;
}

// Deliberate faults, for the tests that show that the simulator would catch them. All off.
struct Mutations {
  bool last_completed_is_min = false;    // N* = min(done)
  bool ack_before_catch_up = false;      // accept without what the catch-up brings
  bool ignore_earlier_accepted = false;  // a new lead proposes afresh
  bool shrinking_majority = false;       // majority of the old view minus the confirmed dead
  bool wait_for_suspected = false;       // commit waits for members suspected since
  bool complete_after_freeze = false;    // read by the simulator's channels, not in here
  bool ack_before_fence = false;         // accept before the excluded are fenced out
  bool suspected_is_confirmed = false;   // a closed connection taken as a confirmed death
  bool ignore_incarnation = false;       // events about an old incarnation hit its successor
  bool accuse_when_late = false;         // no local-health scaling
  bool no_call_reports = false;          // next = N* + 1 if nobody had called more
  bool donor_stays_silent = false;       // a donor's row goes to the leads alone
  bool admit_unlinked = false;           // joiners enter together without a link to each other
};

}  // namespace mep::membership
