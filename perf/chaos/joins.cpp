// A rank is stopped while the replacement of another one joins: for less than the others take to suspect it, or for
// longer. All that the joiner and the members write to each other afterwards arrives.
#include <algorithm>

#include "generator.hpp"

namespace mep::programs {
// The end of the one is seen by a third rank of its host, which stands still for nobody.
std::pair<uint32_t, uint32_t> Generator::replaced_and_stopped() {
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  for (uint32_t replaced = 0; replaced < program_.ranks; ++replaced) {
    for (uint32_t stopped = 0; stopped < program_.ranks; ++stopped) {
      if (stopped == replaced) continue;
      for (uint32_t witness = 0; witness < program_.ranks; ++witness) {
        if (witness == replaced || witness == stopped) continue;
        if (program_.hosts[witness] != program_.hosts[replaced]) continue;
        pairs.emplace_back(replaced, stopped);
        break;
      }
    }
  }
  return random_.one_of(pairs);
}

void Generator::stop_in_join() {
  const auto [replaced, stopped] = replaced_and_stopped();
  victims_ = {replaced};
  for (uint32_t slot = 0; slot < program_.ranks; ++slot) {
    if (slot != replaced) survivors_.push_back(slot);
  }
  const bool is_long = random_.percent(65);
  if (is_long) program_.suspect_ms = kShortSuspectMs;

  add_some_steps(kWorld, 0, 2);
  if (has_ep_) add_ep();
  const uint32_t death = add_small_step(comm_of_victims(60));
  if (random_.percent(50)) {
    die_before(replaced, death, random_.between(0, 2000));
  } else {
    die_inside(replaced, death, 400);
  }
  add_some_steps(kWorld, 0, 1);

  push(StepKind::kRecover).slots = {replaced};
  const uint32_t join = last_step();
  // Members that admit the joiner as soon as it is there, or when the stopped one has long been left out.
  if (random_.percent(50)) {
    for (const uint32_t slot : survivors_) {
      if (slot != stopped && random_.percent(80)) computing_ |= 1u << slot;
    }
    compute(join, random_.between(10, is_long ? 2 * kShortSuspectMs : 500));
  }
  Fault stop;
  stop.kind = FaultKind::kStopInJoin;
  stop.slot = stopped;
  stop.step = join;
  stop.delay_us = random_.between(1, random_.percent(30) ? 1000 : 60'000);
  stop.start_us = random_.between(1, random_.percent(60) ? 60'000 : 400'000);
  stop.stop_ms = random_.between(1, random_.percent(50) ? 100 : 700);
  if (is_long) {
    stop.stop_ms = random_.percent(20)
                       ? random_.between(kShortSuspectMs - 300, kShortSuspectMs + 300)
                       : random_.between(kShortSuspectMs + 300, kShortSuspectMs + 2500);
  }
  stop.until_admitted = random_.percent(50);
  stop.ends_killed = random_.percent(25);
  program_.faults.push_back(stop);

  push(StepKind::kMessages);
  const uint32_t rounds = random_.between(1, 3);
  for (uint32_t i = 0; i < rounds; ++i) {
    add_some_steps(random_comm(), 0, 2);
    if (has_ep_) add_ep();
    push(StepKind::kMessages);
  }
  add_some_steps(kWorld, 1, 1);
  if (!stop.ends_killed || random_.percent(40)) return;
  push(StepKind::kRecover).slots = {stopped};
  push(StepKind::kMessages);
  add_some_steps(kWorld, 1, 2);
}

}  // namespace mep::programs
