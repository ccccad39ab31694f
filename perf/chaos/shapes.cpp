// Faults in an order that chance alone seldom makes, and the calls that show what comes of it: while one rank
// computes, others die one after the other; what is rooted at a rank that all know to be dead; a comm that is
// destroyed right after a success; deaths inside calls that make comms or let ranks in.
#include <algorithm>
#include <array>

#include "generator.hpp"
#include "numbers.hpp"

namespace mep::programs {
namespace {

constexpr uint32_t kShapedPercent = 35;  // of the programs with faults
constexpr size_t kSmallBytes = 300;

// Failpoints of an operation; of the making of a comm; of a view change and of letting ranks in.
const std::array<const char*, 8> kCallPoints = {
    "enter", "eager post", "put", "put half", "eager collect", "signal", "complete", "signal"};
const std::array<const char*, 6> kMakePoints = {"comm begin", "comm offered", "comm finish",
                                                "comm open",  "comm agreed",  "signal"};
const std::array<const char*, 10> kChangePoints = {
    "freeze",   "frozen",  "prepare", "commit",         "install",
    "catch-up", "recover", "fence",   "joiner connect", "joiner welcomed"};

}  // namespace

// By name. The first ones are drawn too.
struct Generator::Shape {
  const char* name;
  void (Generator::*make)();
  bool is_whole;  // else victims are chosen before it, and some steps follow
};

const Generator::Shape Generator::kShapes[] = {
    {"computing", &Generator::die_while_one_computes, false},
    {"dead-root", &Generator::call_with_dead_root, false},
    {"batch", &Generator::die_in_batch, false},
    {"free", &Generator::free_after_success, false},
    {"split", &Generator::die_in_split, false},
    {"recover", &Generator::die_in_recover, false},
    {"grow", &Generator::die_in_grow, false},
    {"grown", &Generator::die_after_growth, true},
    {"points", &Generator::strike_at_points, false},
    {"joins", &Generator::stop_in_join, true},
    {"last", &Generator::die_until_one_is_left, true},
    {"cycles", &Generator::die_in_cycles, true},
};

bool is_shape(const std::string& name) {
  return std::any_of(std::begin(Generator::kShapes), std::end(Generator::kShapes),
                     [&](const Generator::Shape& shape) { return name == shape.name; });
}

// By itself, so that other programs are what they are without shapes.
bool Generator::wants_shape() const {
  return limits_.faults && limits_.mode != Mode::kThreads &&
         (!limits_.shape.empty() || mix(program_.seed, 0x736861) % 100 < kShapedPercent);
}

void Generator::make_shaped() {
  const auto* const shape =
      std::find_if(std::begin(kShapes), std::end(kShapes),
                   [&](const Shape& each) { return limits_.shape == each.name; });
  const bool is_named = shape != std::end(kShapes);
  if (is_named && shape->is_whole) return (this->*shape->make)();
  choose_victims();
  add_some_steps(kWorld, 0, 2);
  if (has_ep_) add_ep();
  if (is_named) {
    (this->*shape->make)();
  } else {
    draw_shape();
  }
  const uint32_t more = random_.between(0, 3);
  for (uint32_t i = 0; i < more; ++i) add_step();
  add_call_step(program_.world(last_step() + 1));
}

void Generator::draw_shape() {
  const uint64_t draw = random_.below(100);
  if (draw < 25 && victims_.size() > 1) {
    die_while_one_computes();
  } else if (draw < 45) {
    call_with_dead_root();
  } else if (draw < 60) {
    die_in_batch();
  } else if (draw < 77) {
    free_after_success();
  } else if (draw < 87) {
    die_in_split();
  } else if (draw < 95) {
    die_in_recover();
  } else {
    die_in_grow();
  }
}

void Generator::choose_victims() {
  victims_ = mortals();
  if (victims_.size() + 2 > program_.ranks) victims_.resize(program_.ranks - 2);
  if (victims_.size() > 3) victims_.resize(3);
  for (uint32_t slot = 0; slot < program_.ranks; ++slot) {
    if (std::count(victims_.begin(), victims_.end(), slot) == 0) survivors_.push_back(slot);
  }
  const auto count = static_cast<uint32_t>(survivors_.size());
  const uint32_t busy = random_.percent(70) ? 1 : random_.between(1, count - 1);
  const auto first = static_cast<uint32_t>(random_.below(count));
  for (uint32_t i = 0; i < busy; ++i) computing_ |= 1u << survivors_[(first + i) % count];
}

// --- Parts ----------------------------------------------------------------------------------------

// Makes a child of these in the order of their slots; the others get none, or one of their own.
uint32_t Generator::add_child(const std::vector<uint32_t>& slots) {
  Step& step = push(StepKind::kSplit);
  step.calls.emplace_back();
  step.colors.assign(kMaxSlots, random_.percent(50) ? 1 : -1);
  step.keys.assign(kMaxSlots, 0);
  for (const uint32_t slot : slots) step.colors[slot] = 0;
  step.children = {next_comm_, next_comm_ + 1};
  comms_.push_back({next_comm_, slots});
  next_comm_ += 2;
  return step.children[0];
}

// The world, or a comm that concerns the first victim, and perhaps not the others.
uint32_t Generator::comm_of_victims(uint32_t world_percent) {
  if (random_.percent(world_percent)) return kWorld;
  std::vector<uint32_t> slots = survivors_;
  if (!victims_.empty()) slots.push_back(victims_[0]);
  for (size_t i = 1; i < victims_.size(); ++i) {
    if (random_.percent(40)) slots.push_back(victims_[i]);
  }
  std::sort(slots.begin(), slots.end());
  return add_child(slots);
}

uint32_t Generator::rank_in(uint32_t comm, uint32_t slot) const {
  for (const Comm& each : comms_) {
    if (each.number != comm) continue;
    const auto at = std::find(each.slots.begin(), each.slots.end(), slot);
    return static_cast<uint32_t>(at - each.slots.begin());
  }
  return 0;
}

Call Generator::small_call(uint32_t comm) {
  Call call = random_call(comm);
  if (random_.percent(80)) {
    const size_t most = kSmallBytes / (element_bytes(call.dtype) * most_members(comm));
    call.count = std::min<size_t>(call.count, random_.between(1, static_cast<uint32_t>(most) + 1));
  }
  return call;
}

uint32_t Generator::add_small_step(uint32_t comm) {
  const Call call = small_call(comm);
  Step& step = push(StepKind::kCall);
  step.calls.push_back(call);
  if (random_.percent(80)) step.pause_percent = 0;
  return last_step();
}

void Generator::add_some_steps(uint32_t comm, uint32_t least, uint32_t most) {
  const uint32_t count = random_.between(least, most);
  for (uint32_t i = 0; i < count; ++i) {
    if (has_ep_ && random_.percent(40)) {
      add_ep();
    } else {
      (void)add_small_step(comm);
    }
  }
}

uint32_t Generator::add_rooted_step(uint32_t comm, uint32_t root_slot) {
  Call call = small_call(comm);
  while (!facts_of(call.kind).is_rooted) call = small_call(comm);
  if (random_.percent(50)) call.kind = Collective::k_broadcast;
  call.root = rank_in(comm, root_slot);
  push(StepKind::kCall).calls.push_back(call);
  return last_step();
}

void Generator::compute(uint32_t step, uint32_t ms) {
  program_.steps[step].computing = computing_;
  program_.steps[step].computing_ms = ms;
}

void Generator::die_before(uint32_t slot, uint32_t step, uint32_t delay_us) {
  Fault fault;
  fault.kind = FaultKind::kKillBefore;
  fault.slot = slot;
  fault.generation = program_.generation(slot, step);
  fault.step = step;
  fault.delay_us = delay_us;
  program_.faults.push_back(fault);
}

void Generator::die_inside(uint32_t slot, uint32_t step, uint32_t most_us) {
  Fault fault;
  fault.slot = slot;
  fault.generation = program_.generation(slot, step);
  fault.step = step;
  const uint64_t draw = random_.below(100);
  if (draw < 30) {
    fault.kind = FaultKind::kKillClock;
    fault.delay_us = random_.between(1, random_.percent(50) ? 100 : most_us);
  } else if (draw < 85) {
    const StepKind kind = program_.steps[step].kind;
    const bool changes = kind == StepKind::kRecover || kind == StepKind::kGrow;
    const char* point = random_.one_of(kCallPoints);
    if (kind == StepKind::kSplit && random_.percent(70)) point = random_.one_of(kMakePoints);
    if (changes && random_.percent(80)) point = random_.one_of(kChangePoints);
    fault.kind = FaultKind::kKillAt;
    fault.point = point + (":" + std::to_string(random_.between(1, random_.percent(70) ? 3 : 8)));
  } else {
    fault.kind = FaultKind::kKillAfter;
  }
  program_.faults.push_back(fault);
}

// --- Shapes ---------------------------------------------------------------------------------------

// The others of a comm are told of the first death and go on; then a rank dies that the comm may not concern.
// The rank that computes learns of both together.
void Generator::die_while_one_computes() {
  const uint32_t comm = comm_of_victims(30);
  add_some_steps(comm, 0, 2);
  const uint32_t ms = random_.between(15, 90);
  const uint32_t first = add_small_step(comm);
  compute(first, ms);
  if (random_.percent(70)) {
    die_before(victims_[0], first, random_.between(0, 2000));
  } else {
    die_inside(victims_[0], first, 400);
  }
  uint32_t second = add_small_step(comm);
  if (random_.percent(60)) program_.steps[second].calls[0].kind = Collective::k_allreduce;
  die_before(victims_[1], second, random_.between(1000, ms * 700));
  if (victims_.size() > 2 && random_.percent(40)) {
    second = add_small_step(comm);
    die_before(victims_[2], second, random_.between(1, ms * 300));
  }
  add_some_steps(comm, 1, 4);
}

// One to forty calls that their dead root ends on each rank by itself, after a call that a second death may
// have cut short.
void Generator::call_with_dead_root() {
  const uint32_t comm = comm_of_victims(40);
  if (victims_.empty()) return add_some_steps(comm, 1, 4);
  die_inside(victims_[0], add_small_step(comm), 400);
  if (random_.percent(80)) (void)add_small_step(comm);
  const bool dies_first = victims_.size() > 1 && random_.percent(70);
  const uint32_t before = add_small_step(comm);
  if (dies_first) {
    die_inside(victims_[1], before, 200);
    program_.steps[before].pause_percent = 0;
  }
  const uint64_t draw = random_.below(100);
  const uint32_t count = draw < 60   ? random_.between(1, 4)
                         : draw < 85 ? random_.between(5, 20)
                                     : random_.between(28, 40);
  const auto at = static_cast<uint32_t>(random_.below(count));
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t step = add_rooted_step(comm, victims_[0]);
    program_.steps[step].pause_percent = 0;
    if (i == at && random_.percent(40)) compute(step, random_.between(2, 30));
    if (i == at && victims_.size() > 1 && !dies_first) {
      die_before(victims_[1], step, random_.between(0, 5000));
    }
  }
  add_some_steps(comm, 1, 3);
}

// Two deaths while calls are pending, some of which the first one has ended.
void Generator::die_in_batch() {
  const uint32_t comm = comm_of_victims(50);
  const uint32_t batches = random_.between(1, 3);
  for (uint32_t i = 0; i < batches; ++i) {
    const uint32_t count = random_.between(2, 10);
    std::vector<Call> calls;
    while (calls.size() < count) {
      calls.push_back(small_call(random_.percent(80) ? comm : random_comm()));
    }
    push(StepKind::kBatch).calls = calls;
    const uint32_t step = last_step();
    if (i != 0) continue;
    if (random_.percent(60)) compute(step, random_.between(5, 50));
    if (!victims_.empty()) die_inside(victims_[0], step, 400);
    if (victims_.size() > 1) die_before(victims_[1], step, random_.between(500, 15'000));
  }
  add_some_steps(comm, 1, 3);
}

// Where a root waits for nobody, it may have destroyed the comm before the others call.
void Generator::free_after_success() {
  const uint32_t comm = comm_of_victims(0);
  add_some_steps(comm, 0, 1);
  const uint32_t ms = random_.between(5, 50);
  if (random_.percent(60)) {
    uint32_t root = survivors_[0];
    for (const uint32_t slot : survivors_) root = (computing_ >> slot & 1) == 0 ? slot : root;
    const uint32_t step = add_rooted_step(comm, root);
    program_.steps[step].pause_percent = 0;
    program_.steps[step].calls[0].kind = Collective::k_broadcast;
    compute(step, ms);
    if (!victims_.empty()) die_before(victims_[0], step, random_.between(0, ms * 1000));
  } else {
    const uint32_t step = add_small_step(comm);
    if (!victims_.empty()) die_inside(victims_[0], step, 200);
  }
  if (has_ep_on(comm)) return add_some_steps(comm, 1, 3);
  std::erase_if(comms_, [&](const Comm& each) { return each.number == comm; });
  Call call;
  call.comm = comm;
  Step& free = push(StepKind::kFree);
  free.calls.push_back(call);
  free.pause_percent = 0;
  if (victims_.size() > 1 && random_.percent(30)) die_before(victims_[1], last_step(), ms * 500);
  add_some_steps(kWorld, 1, 3);
}

void Generator::die_in_split() {
  if (random_.percent(40)) (void)comm_of_victims(0);
  add_split();
  const uint32_t step = last_step();
  if (random_.percent(30)) compute(step, random_.between(1, 20));
  if (!victims_.empty()) die_inside(victims_[0], step, 3000);
  if (victims_.size() > 1 && random_.percent(40)) die_inside(victims_[1], step, 5000);
  const uint32_t more = random_.between(1, 4);
  for (uint32_t i = 0; i < more; ++i) (void)add_small_step(random_comm());
}

// A second one dies while a joiner for the first is let in; it may come back as well.
void Generator::die_in_recover() {
  if (victims_.empty()) return add_some_steps(kWorld, 1, 4);
  die_inside(victims_[0], add_small_step(kWorld), 400);
  add_some_steps(kWorld, 0, 2);
  push(StepKind::kRecover).slots = {victims_[0]};
  const uint32_t step = last_step();
  if (random_.percent(30)) compute(step, random_.between(1, 40));
  if (victims_.size() > 1) die_inside(victims_[1], step, 30'000);
  add_some_steps(kWorld, 1, 3);
  if (victims_.size() > 1 && random_.percent(30)) {
    push(StepKind::kRecover).slots = {victims_[1]};
    add_some_steps(kWorld, 1, 2);
  }
}

void Generator::die_in_grow() {
  push(StepKind::kGrow).slots = {program_.ranks};
  const uint32_t step = last_step();
  program_.steps[step].children = {next_comm_++};
  program_.max_ranks = program_.ranks + 1;
  if (!victims_.empty()) die_inside(victims_[0], step, 30'000);
  const uint32_t more = random_.between(1, 4);
  for (uint32_t i = 0; i < more; ++i) (void)add_small_step(program_.steps[step].children[0]);
}

}  // namespace mep::programs
