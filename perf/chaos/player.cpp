#include "player.hpp"

#include <signal.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <cstring>

#include "base/failpoint.hpp"
#include "ep_player.hpp"

namespace mep::programs {
namespace {

constexpr uint32_t kInitMs = 40000;
constexpr uint32_t kShortInitMs = 2500;  // where one dies in it

uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

void pause_us(uint64_t us) {
  const timespec pause{static_cast<time_t>(us / 1'000'000),
                       static_cast<long>(us % 1'000'000 * 1000)};
  nanosleep(&pause, nullptr);
}

void strike_in(uint32_t us, int signal_number) {
  struct sigaction action {};
  action.sa_handler = signal_number == SIGSTOP ? [](int) { kill(getpid(), SIGSTOP); }
                                               : [](int) { kill(getpid(), SIGKILL); };
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, nullptr);
  itimerval timer{};
  timer.it_value.tv_sec = us / 1'000'000;
  timer.it_value.tv_usec = us % 1'000'000 + (us == 0 ? 1 : 0);
  setitimer(ITIMER_REAL, &timer, nullptr);
}

// In a third of the programs, there on two ranks of three; by itself, so that programs stay what they were.
bool has_progress_thread(const Program& program, uint32_t slot) {
  return mix(program.seed, 0x7072, 0, 0) % 3 == 0 && mix(program.seed, 0x7072, slot, 1) % 3 != 0;
}

}  // namespace

mep_comm_config_t config_of(const Program& program, uint32_t slot) {
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  if (has_progress_thread(program, slot)) config.flags |= MEP_COMM_PROGRESS_THREAD;
  config.size = static_cast<int32_t>(program.ranks);
  config.max_size = static_cast<int32_t>(program.max_ranks);
  config.timeout_ms = kNormalTimeoutMs * program.patience;
  config.init_timeout_ms = (program.dies_in_init ? kShortInitMs : kInitMs) * program.patience;
  config.heartbeat_ms = 50 * program.patience;
  config.suspect_ms = program.suspect_ms * program.patience;
  config.transports = program.transports.c_str();
  if (program.device) {
    config.device_type = MEP_DEVICE_CUDA_BY_RANK;
  }
  return config;
}

Player::Player(const Part& part)
    : part_(part),
      program_(*part.program),
      journal_(*part.journal),
      own_(mix(program_.seed, 0x0f0f, part.slot, part.generation)),
      ep_(std::make_unique<EpPlayer>(this)) {}

Player::~Player() = default;

int Player::play() {
  if (!open()) {
    end_steps();
    return 3;
  }
  const auto steps = static_cast<uint32_t>(program_.steps.size());
  while (step_ < steps && !over_) {
    journal_.step.store(step_, std::memory_order_release);
    run(step_);
    ++step_;
  }
  end_steps();
  if (left_) return 0;
  const bool was_over = over_;
  close();
  if (was_over) return 4;
  next_record(Entry::kDone, What::kDestroy, 0, 0);
  push();
  return 0;
}

void Player::end_steps() {
  if (part_.quiet == nullptr) return;
  part_.quiet->idle.arrive_and_drop();
  part_.quiet->ended.arrive_and_wait();
}

bool Player::open() {
  mep_comm_t world = part_.world;
  joined_ = part_.generation != 0 || part_.slot >= program_.ranks;
  if (world == nullptr) {
    mep_comm_config_t config = config_of(program_, part_.slot);
    config.flags |= MEP_COMM_SET_RANK;
    config.rank = static_cast<int32_t>(part_.slot);
    config.job = part_.job.c_str();
    const Fault* fault = fault_of(0, FaultKind::kKillInit);
    if (fault != nullptr) strike_in(fault->delay_us, SIGKILL);
    for (const Fault& point : program_.faults) {
      if (point.kind != FaultKind::kKillPoint || point.slot != part_.slot ||
          point.generation != part_.generation) {
        continue;
      }
      setenv("MEP_FAILPOINT", (point.point + "=kill").c_str(), 1);
    }
    if (!program_.maps) setenv("MEP_MAP", "0", 1);
    const What what = joined_ ? What::kJoin : What::kInit;
    begin(what, 0, kWorld);
    Said said;
    if (joined_) config.max_size = 0;
    said.result = joined_ ? mep_comm_join(&config, &world) : mep_comm_init(&config, &world);
    end(what, 0, kWorld, nullptr, said);
    if (fault != nullptr) die();
    if (said.result != MEP_SUCCESS) return false;
  }
  if (joined_) world_ = program_.world(static_cast<uint32_t>(program_.steps.size()));
  device_ = part_.device;
  if (program_.device && device_ == nullptr) device_ = make_device(world, program_.device_bytes());
  if (device_ != nullptr) device_->use();
  if (!add_comm(world_, world)) return false;
  if (comms_[world_].members.rank != part_.slot) {
    wrong(What::kInit, 0, world_, "another rank than asked for");
  }
  if (!joined_) return true;
  uint64_t position = 0;
  if (!sync(world_, &position) || position == 0) {
    close();
    return false;
  }
  step_ = static_cast<uint32_t>(position - 1);
  attach_all(true);
  step_ = static_cast<uint32_t>(position);
  return true;
}

void Player::run(uint32_t number) {
  const Step& step = program_.steps[number];
  recycle();
  arm_faults(number);
  pause(step.pause_percent);
  if ((step.computing >> part_.slot & 1) != 0) pause_us(uint64_t{step.computing_ms} * 1000);
  if (lies("crash")) std::abort();
  if (!lies("skip")) act(step);
  act_on_faults(number);
}

void Player::recycle() {
  if (device_ != nullptr) device_->recycle(mix(program_.seed, 0x70696e, step_, part_.slot));
}

void Player::meet_idle() {
  if (part_.quiet != nullptr) part_.quiet->idle.arrive_and_wait();
}

void Player::act(const Step& step) {
  switch (step.kind) {
    case StepKind::kCall:
      call(step.calls[0], 0);
      break;
    case StepKind::kBatch:
      batch(step);
      break;
    case StepKind::kAgree:
      agree(step);
      break;
    case StepKind::kSplit:
      meet_idle();
      split(step);
      meet_idle();
      break;
    case StepKind::kFree:
      meet_idle();
      free_comm(step.calls[0].comm);
      meet_idle();
      break;
    case StepKind::kRevoke:
      revoke(step);
      break;
    case StepKind::kTimeout:
      be_late(step);
      break;
    case StepKind::kMismatch:
      mismatch(step);
      break;
    case StepKind::kEvict:
      evict(step);
      break;
    case StepKind::kLeave:
      if (step.actor == part_.slot) {
        leave();
      } else {
        call(step.calls[0], 0);
      }
      break;
    case StepKind::kAbort:
      if (step.actor == part_.slot) {
        abort(step);
      } else {
        batch(step);
      }
      break;
    case StepKind::kRecover:
      recover(step);
      break;
    case StepKind::kGrow:
      grow(step);
      break;
    case StepKind::kEpCreate:
      meet_idle();
      ep_->create(step);
      meet_idle();
      break;
    case StepKind::kEpLayers:
      ep_->layers(step);
      meet_idle();
      ep_->renew(step);
      meet_idle();
      break;
    case StepKind::kEpFree:
      meet_idle();
      ep_->free(step.ep);
      meet_idle();
      break;
    case StepKind::kCount:
      next_record(Entry::kCount, What::kCall, 0, world_).resources = count_resources();
      push();
      break;
    case StepKind::kMessages:
      messages();
      break;
  }
}

// Children before or after their parents, as it comes; the world is the last.
void Player::close() {
  ep_->free_all();
  std::vector<uint32_t> numbers;
  for (const auto& [number, comm] : comms_) {
    if (number != kWorld && number != world_) numbers.push_back(number);
  }
  for (size_t i = numbers.size(); i > 1; --i) std::swap(numbers[i - 1], numbers[own_.below(i)]);
  if (world_ != kWorld) numbers.push_back(world_);
  numbers.push_back(kWorld);
  for (const uint32_t number : numbers) free_comm(number);
}

bool Player::lies(const char* what) const {
  return part_.sabotage.what == what && part_.sabotage.slot == part_.slot &&
         part_.sabotage.step == step_;
}

const Fault* Player::fault_of(uint32_t step, FaultKind kind) const {
  for (const Fault& fault : program_.faults) {
    if (fault.kind == kind && fault.slot == part_.slot && fault.generation == part_.generation &&
        fault.step == step) {
      return &fault;
    }
  }
  return nullptr;
}

void Player::arm_faults(uint32_t step) {
  if (const Fault* fault = fault_of(step, FaultKind::kKillBefore)) {
    pause_us(fault->delay_us);
    die();
  }
  if (const Fault* fault = fault_of(step, FaultKind::kStop)) strike_in(fault->delay_us, SIGSTOP);
  if (const Fault* fault = fault_of(step, FaultKind::kKillClock))
    strike_in(fault->delay_us, SIGKILL);
  for (const FaultKind kind : {FaultKind::kKillAt, FaultKind::kStopAt}) {
    const Fault* fault = fault_of(step, kind);
    if (fault == nullptr) continue;
    const char* const action = kind == FaultKind::kKillAt ? "=kill" : "=stop";
    if (failpoint_arm(fault->point + action) != MEP_SUCCESS)
      wrong(What::kCall, 0, world_, mep_last_error());
  }
  if (const Fault* fault = fault_of(step, FaultKind::kSlow)) strike_in(fault->delay_us, SIGSTOP);
}

void Player::act_on_faults(uint32_t step) {
  for (const FaultKind kind :
       {FaultKind::kKillClock, FaultKind::kKillPoint, FaultKind::kKillAt, FaultKind::kKillAfter}) {
    if (fault_of(step, kind) != nullptr) die();
  }
  if (fault_of(step, FaultKind::kStopAt) == nullptr || !failpoints_armed.load()) return;
  failpoint_disarm_all();
  kill(getpid(), SIGSTOP);
}

void Player::die() {
  kill(getpid(), SIGKILL);
  for (;;) ::pause();
}

void Player::pause(uint32_t percent) {
  if (!own_.percent(percent)) return;
  pause_us(own_.percent(80) ? own_.below(300) : own_.below(3000));
}

Record& Player::next_record(Entry entry, What what, uint32_t part, uint32_t comm) {
  const uint32_t at = std::min(journal_.count.load(std::memory_order_relaxed), kMaxRecords - 1);
  Record& record = journal_.records[at];
  record = Record();
  record.entry = entry;
  record.what = what;
  record.step = step_;
  record.part = part;
  record.comm = comm;
  record.at_ns = now_ns();
  return record;
}

void Player::push() {
  const uint32_t at = journal_.count.load(std::memory_order_relaxed);
  if (at < kMaxRecords) journal_.count.store(at + 1, std::memory_order_release);
}

void Player::begin(What what, uint32_t part, uint32_t comm) {
  next_record(Entry::kBegin, what, part, comm);
  push();
}

void Player::end(What what, uint32_t part, uint32_t comm, const Comm* members, const Said& said,
                 uint64_t digest, const std::string& text) {
  Record& record = next_record(Entry::kEnd, what, part, comm);
  record.result = lies("verdict") ? mep_result_t{MEP_ERR_PEER_FAILED} : said.result;
  record.has_info = said.has_info;
  if (said.has_info) {
    record.epoch = said.info.epoch;
    record.seq = said.info.seq;
    record.info_result = said.info.result;
    if (members != nullptr) {
      record.contributors = members->members.slots_of(said.contributors);
      record.failed = members->members.slots_of(said.failed);
    }
  }
  record.digest = digest;
  if (said.result < 0) {
    std::snprintf(record.text, sizeof record.text, "%s",
                  text.empty() ? mep_last_error() : text.c_str());
  }
  push();
  note_reported(what, comm, said);
  judge_end(what, said.result);
}

// Dispatch, combine and messages report for their rank alone; what a collective reports all know.
void Player::note_reported(What what, uint32_t comm, const Said& said) {
  const auto found = comms_.find(comm);
  if (found == comms_.end() || what == What::kDispatch || what == What::kCombine ||
      what == What::kMessage) {
    return;
  }
  if (said.result != MEP_ERR_PEER_FAILED && said.result != MEP_ERR_PEER_LEFT) return;
  ep_->note_reported(comm,
                     said.has_info ? said.failed : ask(found->second.handle, said.result).failed);
}

void Player::wrong(What what, uint32_t part, uint32_t comm, const std::string& text) {
  Record& record = next_record(Entry::kWrong, what, part, comm);
  std::snprintf(record.text, sizeof record.text, "%s", text.c_str());
  push();
}

void Player::judge_end(What what, mep_result_t result) {
  switch (result) {
    case MEP_ERR_TIMEOUT:
      // Without a cause each further call may cost as much.
      over_ = over_ || !(program_.has(StepKind::kTimeout) || program_.has(StepKind::kMismatch) ||
                         what == What::kRecover || what == What::kGrow);
      break;
    case MEP_ERR_NO_QUORUM:
    case MEP_ERR_EVICTED:
    case MEP_ERR_ABORTED:
    case MEP_ERR_INTERNAL:
      over_ = true;
      break;
    default:
      break;
  }
}

}  // namespace mep::programs
