// Many deaths: one after the other until one rank is left; with a replacement each, while the survivors count what
// they hold; and in a world that has grown, of ranks that it began with and of new ones.
#include <algorithm>

#include "generator.hpp"

namespace mep::programs {
namespace {

constexpr uint32_t kCycles = 100;  // a leak of a page in each stands out
constexpr uint32_t kCyclesPerCount = 5;

}  // namespace

// In any order: whole hosts go too.
void Generator::die_until_one_is_left() {
  std::vector<uint32_t> order;
  for (uint32_t slot = 0; slot < program_.ranks; ++slot) order.push_back(slot);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
  order.pop_back();
  add_some_steps(kWorld, 0, 2);
  for (const uint32_t slot : order) {
    const uint32_t step = add_small_step(kWorld);
    if (random_.percent(50)) {
      die_before(slot, step, random_.between(0, 2000));
    } else {
      die_inside(slot, step, 400);
    }
    add_some_steps(kWorld, 1, 2);
  }
}

// The rank that never dies has counted all along.
void Generator::die_in_cycles() {
  const auto witness = static_cast<uint32_t>(random_.below(program_.ranks));
  const Call small = small_call(kWorld);
  const Call other = random_call(kWorld);
  for (uint32_t cycle = 0; cycle < kCycles; ++cycle) {
    push(StepKind::kCall).calls = {cycle % 2 == 0 ? small : other};
    auto slot = static_cast<uint32_t>(random_.below(program_.ranks - 1));
    slot += slot >= witness ? 1 : 0;
    die_before(slot, last_step(), random_.between(0, 300));
    push(StepKind::kRecover).slots = {slot};
    if (cycle % kCyclesPerCount == 0) push(StepKind::kCount);
  }
  add_call_step(kWorld);
}

// The replacements are no members of the old world, which shrinks to the survivors.
void Generator::die_after_growth() {
  has_ep_ = false;
  choose_victims();
  add_some_steps(kWorld, 0, 2);
  push(StepKind::kGrow).slots = {program_.ranks};
  const uint32_t grown = program_.ranks;
  program_.steps[last_step()].children = {next_comm_};
  program_.max_ranks = program_.ranks + 1;
  const uint32_t comm = next_comm_++;
  comms_[0].number = comm;
  comms_[0].slots.push_back(grown);
  add_some_steps(comm, 0, 1);
  std::vector<uint32_t> gone;
  const bool is_first = random_.percent(50);
  if (is_first) gone.push_back(grown);
  if (!victims_.empty()) gone.push_back(victims_[0]);
  if (!is_first) gone.push_back(grown);
  for (const uint32_t slot : gone) {
    die_inside(slot, add_small_step(comm), 400);
    add_some_steps(comm, 1, 2);
  }
  push(StepKind::kRecover).slots = gone;
  add_some_steps(comm, 1, 3);
  push(StepKind::kMessages);
  const uint32_t more = random_.between(0, 3);
  for (uint32_t i = 0; i < more; ++i) add_step();
}

}  // namespace mep::programs
