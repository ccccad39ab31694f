// Programs out of seeds.
#include <algorithm>
#include <array>

#include "generator.hpp"
#include "numbers.hpp"

namespace mep::programs {
namespace {

// Lengths of messages at which the library may change its way: eager slots, chunks, what is restored in place.
constexpr std::array<size_t, 5> kEdges = {4088, 16384, 65536, 262144, 1048576};
constexpr size_t kLargest = size_t{4} << 20;
constexpr uint32_t kMostLost = 8;  // and one of them stays

// How many of 100 calls are of a kind, in the order of the table of operations.
constexpr std::array<uint32_t, kCollectiveCount> kShares = {9, 12, 10, 16, 5, 5, 5,
                                                            8, 8,  4,  4,  4, 4, 6};
constexpr bool is_shared_out() {
  uint32_t sum = 0;
  for (const uint32_t share : kShares) sum += share == 0 ? 100 : share;
  return sum == 100;
}
static_assert(is_shared_out(), "each collective wants its share, of 100 together");

const std::array<const char*, 24> kPoints = {
    "enter",         "eager post",    "put",          "put half",     "signal",
    "eager collect", "large publish", "large reduce", "large copy",   "large finish",
    "complete",      "freeze",        "frozen",       "prepare",      "commit",
    "install",       "adopt",         "catch-up",     "hosts send",   "hosts reduce",
    "relay forward", "finish look",   "relay send",   "hosts publish"};
const std::array<const char*, 4> kJoinPoints = {"join begin", "join connected", "join welcomed",
                                                "join ready"};

}  // namespace

Program Generator::make() {
  choose_job();
  if (wants_shape()) {
    make_shaped();
  } else {
    const uint32_t steps = random_.percent(70) ? random_.between(4, 16) : random_.between(10, 40);
    while (program_.steps.size() < steps) add_step();
    add_call_step(kWorld);
    if (limits_.faults) add_faults();
  }
  if (program_.steps.size() > limits_.steps) program_.steps.resize(limits_.steps);
  return program_;
}

void Generator::choose_job() {
  Mode mode = limits_.mode;
  if (mode == Mode::kAny) {
    constexpr std::array<Mode, 4> kModes = {Mode::kShm, Mode::kTcp, Mode::kMixed, Mode::kPut};
    mode = random_.one_of(kModes);
  }
  program_.mode = mode;
  program_.device = limits_.device;
  program_.ranks = random_.percent(70) ? random_.between(2, 5) : random_.between(2, 8);
  if (wants_shape()) program_.ranks = std::max(program_.ranks, random_.between(3, 5));
  if (has_shape("points") && random_.percent(15)) program_.ranks = 2;
  if (has_shape("joins")) program_.ranks = std::max(program_.ranks, 5u);
  if (has_shape("cycles")) program_.ranks = std::min(program_.ranks, 5u);
  if (has_shape("last")) program_.ranks = kMostLost;
  program_.patience = limits_.patience;
  program_.max_ranks = program_.ranks;
  uint32_t hosts = 1;
  program_.transports = "shm";
  switch (mode) {
    case Mode::kTcp:
      program_.transports = "tcp";
      hosts = random_.percent(50) ? 1 : random_.between(2, 3);
      break;
    case Mode::kMixed:
      program_.transports = "shm,tcp";
      hosts = random_.between(2, 3);
      break;
    case Mode::kVerbs:
      hosts = random_.between(1, 2);
      program_.transports = hosts == 1 ? "verbs" : "shm,verbs";
      break;
    case Mode::kPut:
      program_.maps = false;
      break;
    case Mode::kThreads:
      program_.transports.clear();
      if (random_.percent(30)) program_.maps = false;
      break;
    default:
      break;
  }
  choose_hosts(std::min(hosts, program_.ranks));
  has_ep_ = random_.percent(30) && limits_.ep;
  const bool is_uniform = has_ep_ && random_.percent(30) && !limits_.device;  // hosts alone have it
  const bool is_partial = has_ep_ && random_.percent(40);
  program_.on_loss = is_uniform   ? MEP_EP_LOSS_UNIFORM
                     : is_partial ? MEP_EP_LOSS_PARTIAL
                                  : MEP_EP_LOSS_FAILS;
  Comm world{kWorld, {}};
  for (uint32_t slot = 0; slot < program_.ranks; ++slot) world.slots.push_back(slot);
  comms_.push_back(world);
}

void Generator::choose_hosts(uint32_t hosts) {
  const uint64_t form = random_.below(3);
  for (uint32_t slot = 0; slot < kMaxSlots; ++slot) {
    uint32_t host = 0;
    if (form == 0) host = std::min(slot * hosts / program_.ranks, hosts - 1);
    if (form == 1) host = slot % hosts;
    if (form == 2) host = slot < hosts ? slot : static_cast<uint32_t>(random_.below(hosts));
    program_.hosts.push_back(host);
  }
}

size_t Generator::random_bytes() {
  const uint64_t draw = random_.below(100);
  if (draw < 8) return 0;
  if (draw < 55) return random_.below(300);
  if (draw < 70) return random_.below(8192);
  if (draw < 97 || heavy_ > 1) {
    const size_t edge = kEdges[random_.below(draw < 85 ? 2 : 4)];
    return edge - 24 + random_.below(49);
  }
  ++heavy_;
  return random_.percent(50) ? kEdges[4] - 24 + random_.below(49) : random_.below(kLargest);
}

CallKind Generator::random_kind() {
  uint64_t draw = random_.below(100);
  uint32_t kind = 0;
  for (; draw >= kShares[kind]; ++kind) draw -= kShares[kind];
  return static_cast<CallKind>(kind);
}

Call Generator::random_call(uint32_t comm) {
  constexpr auto kTypes = std::to_array(mep_reference::kAllTypes);
  Call call;
  call.comm = comm;
  call.kind = random_kind();
  do {
    call.dtype = random_.one_of(kTypes);
    call.op = static_cast<mep_op_t>(random_.between(MEP_SUM, MEP_XOR));
  } while (!mep_reference::pair_exists(call.dtype, call.op));
  call.count = random_bytes() / element_bytes(call.dtype);
  // Where a rank gives a block for each, all of them together are as large.
  if (facts_of(call.kind).gives_each_a_block()) call.count /= most_members(comm);
  call.root = static_cast<uint32_t>(random_.below(kMaxSlots));
  call.in_place = random_.percent(35);
  return call;
}

void Generator::add_call_step(uint32_t comm) {
  push(StepKind::kCall).calls.push_back(random_call(comm));
}

void Generator::add_batch() {
  Step& step = push(StepKind::kBatch);
  const uint32_t count = random_.between(1, 6);
  const uint32_t comm = random_comm();
  const bool one_comm = random_.percent(60);
  for (uint32_t i = 0; i < count; ++i) {
    step.calls.push_back(random_call(one_comm ? comm : random_comm()));
  }
}

void Generator::add_split() {
  if (comms_.size() > 5) return;
  const Comm parent = random_.one_of(comms_);
  Step& step = push(StepKind::kSplit);
  Call call;
  call.comm = parent.number;
  step.calls.push_back(call);
  const uint32_t colors = random_.between(1, 3);
  step.colors.assign(kMaxSlots, -1);
  step.keys.assign(kMaxSlots, 0);
  std::vector<Comm> children(colors);
  for (const uint32_t slot : parent.slots) {
    const bool none = random_.percent(8);
    step.colors[slot] = none ? -1 : static_cast<int32_t>(random_.below(colors));
    step.keys[slot] = static_cast<int32_t>(random_.below(5)) - 2;
    if (!none) children[static_cast<size_t>(step.colors[slot])].slots.push_back(slot);
  }
  for (Comm& child : children) {
    child.number = next_comm_++;
    step.children.push_back(child.number);
    if (!child.slots.empty()) comms_.push_back(child);
  }
}

bool Generator::has_ep_on(uint32_t comm) const {
  return std::any_of(eps_.begin(), eps_.end(),
                     [&](uint32_t ep) { return program_.eps[ep].comm == comm; });
}

void Generator::add_free() {
  if (comms_.size() < 2) return;
  const size_t at = 1 + random_.below(comms_.size() - 1);
  Call call;
  call.comm = comms_[at].number;
  if (has_ep_on(call.comm)) return;
  comms_.erase(comms_.begin() + static_cast<std::ptrdiff_t>(at));
  push(StepKind::kFree).calls.push_back(call);
}

void Generator::add_ep() {
  const uint64_t draw = random_.below(100);
  if (!eps_.empty() && draw < 75) {
    Step& step = push(StepKind::kEpLayers);
    step.ep = random_.one_of(eps_);
    step.count = random_.between(1, 4);
    return;
  }
  if (!eps_.empty() && draw < 80) {
    const size_t at = random_.below(eps_.size());
    push(StepKind::kEpFree).ep = eps_[at];
    eps_.erase(eps_.begin() + static_cast<std::ptrdiff_t>(at));
    return;
  }
  if (eps_.size() > 1) return;
  EpShape shape;
  shape.comm = random_.percent(60) ? kWorld : random_comm();
  shape.max_tokens = random_.between(1, random_.percent(20) ? 32 : 8);
  shape.hidden = 16 * random_.between(1, random_.percent(15) ? 64 : 6);
  shape.local_experts = random_.between(1, 3);
  shape.top_k = random_.between(1, std::min(4u, shape.local_experts));
  shape.buffers = random_.between(1, 3);
  constexpr std::array<mep_dtype_t, 3> kTypes = {MEP_FLOAT32, MEP_BFLOAT16, MEP_FLOAT16};
  shape.input = random_.one_of(kTypes);
  shape.combine = random_.one_of(kTypes);
  shape.slotted = random_.percent(50);
  shape.own_memory = random_.percent(50);
  const auto number = static_cast<uint32_t>(program_.eps.size());
  // By itself, so that programs stay what they were.
  shape.high_throughput = mix(program_.seed, 0x6874, number) % 4 == 0;
  if (shape.high_throughput) shape.slotted = shape.own_memory = false;
  program_.eps.push_back(shape);
  eps_.push_back(number);
  push(StepKind::kEpCreate).ep = number;
}

void Generator::add_step() {
  if (limits_.device && random_.percent(6)) {
    push(StepKind::kMessages);
    return;
  }
  if (has_ep_ && random_.percent(40)) return add_ep();
  const uint64_t draw = random_.below(100);
  if (draw < 55) return add_call_step(random_comm());
  if (draw < 75) return add_batch();
  if (draw < 83) return add_split();
  if (draw < 87) return add_free();
  if (draw < 93) {
    Call call;
    call.comm = random_comm();
    push(StepKind::kAgree).calls.push_back(call);
    return;
  }
  add_call_step(kWorld);
}

void Generator::insert_step(uint32_t at, Step step) {
  program_.steps.insert(program_.steps.begin() + at, std::move(step));
  for (Fault& fault : program_.faults) {
    if (fault.step >= at) ++fault.step;
  }
}

void Generator::add_kill(uint32_t slot, uint32_t generation, uint32_t step) {
  Fault fault;
  fault.slot = slot;
  fault.generation = generation;
  fault.step = step;
  const uint64_t draw = random_.below(100);
  if (draw < 40) {
    fault.kind = FaultKind::kKillClock;
    fault.delay_us = random_.percent(70) ? random_.between(1, 200) : random_.between(1, 3000);
  } else if (draw < 60) {
    fault.kind = FaultKind::kKillPoint;
    fault.point = std::string(random_.one_of(kPoints)) + ":" +
                  std::to_string(random_.between(1, random_.percent(50) ? 4 : 30));
  } else if (draw < 80) {
    fault.kind = FaultKind::kKillBefore;
  } else {
    fault.kind = FaultKind::kKillAfter;
  }
  program_.faults.push_back(fault);
}

// The killed ones come back in a step of their own, some steps later.
uint32_t Generator::add_recover(uint32_t after, const std::vector<uint32_t>& slots) {
  const auto count = static_cast<uint32_t>(program_.steps.size());
  Step step;
  step.kind = StepKind::kRecover;
  step.slots = slots;
  const uint32_t at = std::min(after + 1 + random_.between(0, 3), count);
  insert_step(at, step);
  return at;
}

// Calls that are not what they should be, ranks that go by themselves. `kills`: others die as well.
void Generator::add_special(bool kills) {
  const uint64_t draw = random_.below(100);
  const auto steps = static_cast<uint32_t>(program_.steps.size());
  const bool is_alone = !kills && !program_.has(StepKind::kLeave) &&
                        !program_.has(StepKind::kAbort) && !program_.has(StepKind::kEvict) &&
                        !program_.has(StepKind::kGrow);
  // A thread that frees memory of a GPU waits for kernels, and those for it.
  const bool leaves_kernels = limits_.device && program_.mode == Mode::kThreads;
  // A stream's call whose root has left takes no number, so that those who call another one wait for it.
  const bool other_is_drawn =
      limits_.device && (program_.has(StepKind::kLeave) || program_.has(StepKind::kMismatch));
  Step step;
  step.calls.push_back(random_call(random_.percent(60) ? kWorld : first_comm()));
  step.actor = static_cast<uint32_t>(random_.below(program_.ranks));
  if (draw < 35) {
    step.kind = StepKind::kRevoke;
  } else if (draw < 45) {
    step.kind = StepKind::kTimeout;
  } else if (draw < 60) {
    if (other_is_drawn) return;
    step.kind = StepKind::kMismatch;
    step.calls.push_back(random_call(step.calls[0].comm));
  } else if (is_alone && draw < 75 && !leaves_kernels) {
    if (other_is_drawn) return;
    step.kind = StepKind::kLeave;
    step.calls[0].comm = kWorld;
  } else if (is_alone && draw < 90 && program_.ranks >= 3) {
    step.kind = StepKind::kAbort;
    step.calls[0].comm = kWorld;
    while (step.calls.size() < 3 && random_.percent(60)) step.calls.push_back(random_call(kWorld));
  } else if (is_alone && program_.ranks >= 3 && program_.mode != Mode::kThreads) {
    step.kind = StepKind::kEvict;
    step.target = (step.actor + random_.between(1, program_.ranks - 1)) % program_.ranks;
    step.calls[0].comm = kWorld;
  } else {
    return;
  }
  insert_step(random_.between(0, steps), step);
}

// A comm that the program begins with: it is there at any step, or not yet.
uint32_t Generator::first_comm() const {
  for (const Step& step : program_.steps) {
    if (step.kind == StepKind::kSplit) return step.children[0];
  }
  return kWorld;
}

// The slots that may die: one lives on each host, or nobody could tell that the others are dead.
std::vector<uint32_t> Generator::mortals() {
  std::vector<uint32_t> mortal;
  std::vector<uint32_t> left(kMaxSlots, 0);
  for (uint32_t slot = 0; slot < program_.ranks; ++slot) ++left[program_.hosts[slot]];
  std::vector<uint32_t> order;
  for (uint32_t slot = 0; slot < program_.ranks; ++slot) order.push_back(slot);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
  for (const uint32_t slot : order) {
    if (mortal.size() + 2 >= program_.ranks && random_.percent(90)) break;
    if (mortal.size() + 1 >= program_.ranks || left[program_.hosts[slot]] < 2) continue;
    --left[program_.hosts[slot]];
    mortal.push_back(slot);
  }
  return mortal;
}

void Generator::add_kills() {
  const std::vector<uint32_t> mortal = mortals();
  if (mortal.empty()) return;
  const auto steps = static_cast<uint32_t>(program_.steps.size());
  const uint32_t deaths =
      random_.percent(60) ? 1 : random_.between(1, static_cast<uint32_t>(mortal.size()));
  auto step = static_cast<uint32_t>(random_.below(steps));
  uint32_t last = step;
  std::vector<uint32_t> dead;
  for (uint32_t i = 0; i < deaths; ++i) {
    add_kill(mortal[i], 0, step);
    dead.push_back(mortal[i]);
    last = std::max(last, step);
    if (random_.percent(60)) step = random_.between(step, steps - 1);
  }
  if (!random_.percent(35)) return;
  const uint32_t at = add_recover(last, dead);
  if (deaths < mortal.size() && random_.percent(25)) add_kill(mortal[deaths], 0, at);
  if (random_.percent(25)) {
    // The joiner dies before it is in, and a second one comes.
    Fault fault;
    fault.slot = dead[0];
    fault.generation = 1;
    fault.kind = random_.percent(50) ? FaultKind::kKillInit : FaultKind::kKillPoint;
    fault.delay_us = random_.between(1, 30000);
    fault.step = fault.kind == FaultKind::kKillInit ? 0 : at + 1;
    fault.point = std::string(random_.one_of(kJoinPoints)) + ":1";
    program_.faults.push_back(fault);
    (void)add_recover(at, {dead[0]});
  } else if (random_.percent(25)) {
    add_kill(dead[0], 1, random_.between(at + 1, static_cast<uint32_t>(program_.steps.size()) - 1));
  }
}

void Generator::add_stop() {
  Fault stop;
  stop.kind = FaultKind::kStop;
  stop.slot = static_cast<uint32_t>(random_.below(program_.ranks));
  stop.step = static_cast<uint32_t>(random_.below(program_.steps.size()));
  stop.delay_us = random_.between(1, 500);
  stop.stop_ms = random_.between(1, random_.percent(80) ? 20 : 300);
  const bool dies_there = std::any_of(
      program_.faults.begin(), program_.faults.end(),
      [&](const Fault& fault) { return fault.slot == stop.slot && fault.step == stop.step; });
  if (!dies_there) program_.faults.push_back(stop);
}

void Generator::add_growth() {
  Step step;
  step.kind = StepKind::kGrow;
  const uint32_t count = random_.between(1, 2);
  for (uint32_t i = 0; i < count; ++i) step.slots.push_back(program_.ranks + i);
  program_.max_ranks = program_.ranks + count;
  step.children.push_back(next_comm_++);
  const uint32_t comm = step.children[0];
  insert_step(random_.between(0, static_cast<uint32_t>(program_.steps.size())), step);
  const uint32_t more = random_.between(1, 6);
  for (uint32_t i = 0; i < more; ++i) add_call_step(comm);
}

void Generator::add_faults() {
  if (program_.mode == Mode::kThreads) {
    if (random_.percent(50)) add_special(false);
    if (random_.percent(20)) add_special(false);
    return;
  }
  const bool grows = random_.percent(6);
  if (grows) add_growth();
  const bool kills = random_.percent(70);
  if (!kills && random_.percent(8)) {
    Fault fault;
    fault.kind = FaultKind::kKillInit;
    fault.slot = static_cast<uint32_t>(random_.below(program_.ranks));
    fault.delay_us = random_.between(1, 20000);
    program_.faults.push_back(fault);
    program_.dies_in_init = true;
    return;
  }
  if (kills && !grows) add_kills();
  if (random_.percent(kills ? 12 : 60)) add_special(kills);
  if (random_.percent(8)) add_special(kills);
  if (random_.percent(15)) add_stop();
}

Program generate(uint64_t seed, const Limits& limits) {
  return Generator(seed, limits).make();
}

}  // namespace mep::programs
