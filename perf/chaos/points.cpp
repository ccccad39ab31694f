// Ranks that die, stand still or crawl at any point of a call, of a dispatch or combine, or of a view change. One
// that stands still does so for less than the others take to suspect it, or for longer: then it wakes up in the middle
// of an operation that they have ended without it.
#include <algorithm>
#include <array>

#include "generator.hpp"
#include "numbers.hpp"

namespace mep::programs {
namespace {

constexpr uint32_t kFewBytes = 2000;
constexpr uint32_t kManyBytes = 1 << 20;
constexpr uint32_t kMostHiccupMs = 400;   // well below kShortSuspectMs
constexpr uint32_t kMostZombieMs = 1500;  // that a rank stands still after it was suspected

// In calls of few bytes; of many; of many over several hosts.
const std::array<const char*, 8> kSmallPoints = {"enter", "eager post", "eager collect", "complete",
                                                 "put",   "put half",   "signal",        "enter"};
const std::array<const char*, 9> kLargePoints = {"enter",      "large publish", "large reduce",
                                                 "large copy", "large finish",  "put",
                                                 "put half",   "signal",        "complete"};
const std::array<const char*, 9> kHostsPoints = {"hosts send",    "hosts reduce", "hosts publish",
                                                 "hosts read",    "hosts pass",   "relay send",
                                                 "relay forward", "relay take",   "finish look"};
const std::array<const char*, 9> kViewPoints = {"freeze", "frozen",   "prepare",
                                                "commit", "install",  "adopt",
                                                "fence",  "catch-up", "catch-up receive"};
const std::array<const char*, 5> kEpPoints = {"ep counts", "ep token", "ep rows ready",
                                              "ep combine ready", "ep sum"};

}  // namespace

uint32_t Generator::add_struck_step() {
  if (!eps_.empty() && random_.percent(60)) {
    Step& step = push(StepKind::kEpLayers);
    step.ep = random_.one_of(eps_);
    step.count = random_.between(1, 4);
  } else {
    Call call = random_call(kWorld);
    const size_t bytes = random_.percent(50) ? random_.between(1, kFewBytes)
                                             : random_.between(kFewBytes, kManyBytes);
    call.count = 1 + bytes / (element_bytes(call.dtype) * program_.ranks);
    if (random_.percent(50)) call.kind = Collective::k_allreduce;
    push(StepKind::kCall).calls.push_back(call);
  }
  return last_step();
}

const char* Generator::point_of(uint32_t step) {
  if (program_.steps[step].kind == StepKind::kEpLayers) return random_.one_of(kEpPoints);
  const Call& call = program_.steps[step].calls[0];
  const bool is_small = call.count * element_bytes(call.dtype) * program_.ranks <= 2 * kFewBytes;
  if (is_small) return random_.one_of(kSmallPoints);
  const bool over_hosts = program_.host_count() > 1 && random_.percent(50);
  return over_hosts ? random_.one_of(kHostsPoints) : random_.one_of(kLargePoints);
}

// stop_ms 0: it dies.
void Generator::strike(uint32_t slot, uint32_t step, bool view_changes, uint32_t stop_ms) {
  Fault fault;
  fault.kind = stop_ms == 0 ? FaultKind::kKillAt : FaultKind::kStopAt;
  fault.slot = slot;
  fault.step = step;
  fault.stop_ms = stop_ms;
  fault.delay_us = random_.between(1, 500);
  if (stop_ms != 0 && random_.percent(25)) {
    fault.kind = random_.percent(50) ? FaultKind::kStop : FaultKind::kSlow;
  }
  const bool in_change = view_changes && random_.percent(70);
  const char* point = in_change ? random_.one_of(kViewPoints) : point_of(step);
  const uint32_t nth = in_change || random_.percent(60) ? 1 : random_.between(1, 6);
  fault.point = point + (":" + std::to_string(nth));
  program_.faults.push_back(fault);
}

void Generator::strike_at_points() {
  const uint32_t struck = random_.one_of(survivors_);
  const bool is_long = random_.percent(40);
  // Those that still run must be more than half.
  if (is_long && program_.ranks < 5) victims_.clear();
  while (is_long && victims_.size() > 1) victims_.pop_back();
  if (is_long) program_.suspect_ms = kShortSuspectMs;
  if (has_ep_ && eps_.empty()) add_ep();
  const bool view_changes = !victims_.empty() && random_.percent(50);
  const uint32_t step = add_struck_step();
  if (view_changes) die_before(victims_[0], step, random_.between(0, 2000));
  if (random_.percent(20)) compute(step, random_.between(5, 50));
  const uint32_t ms = is_long ? kShortSuspectMs + random_.between(300, kMostZombieMs)
                              : random_.between(1, random_.percent(50) ? 50 : kMostHiccupMs);
  strike(struck, step, view_changes, ms);
  add_some_steps(kWorld, 1, 2);
  std::vector<uint32_t> gone;
  if (view_changes) gone.push_back(victims_[0]);
  if (victims_.size() > (view_changes ? 1 : 0)) {
    const uint32_t next = add_struck_step();
    strike(victims_.back(), next, false, 0);
    gone.push_back(victims_.back());
  }
  if (is_long) gone.push_back(struck);
  push(StepKind::kMessages);
  if (gone.empty() || random_.percent(40)) return;
  push(StepKind::kRecover).slots = gone;
  push(StepKind::kMessages);
}

}  // namespace mep::programs
