#include "worker.hpp"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/failpoint.hpp"
#include "core/api/api_guard.hpp"

namespace mep::chaos {
namespace {

constexpr size_t kLargeLanes = 24 * 1024;  // 192 KiB: several chunks on a few ranks
constexpr uint64_t kUntouched = 0xeeeeeeeeeeeeeeeeu;
constexpr uint32_t kRecoverMs = 3000;

uint64_t digest_of(const void* bytes, size_t count) {
  uint64_t digest = 0x9e3779b97f4a7c15u ^ count;
  const auto* words = static_cast<const uint64_t*>(bytes);
  for (size_t i = 0; i < count / sizeof(uint64_t); ++i) {
    digest = (digest ^ words[i]) * 0xff51afd7ed558ccdu;
    digest ^= digest >> 29;
  }
  return digest;
}

// "." and ".." are none.
std::vector<int> entries_of(const char* folder) {
  std::vector<int> numbers;
  DIR* dir = opendir(folder);
  if (dir == nullptr) return numbers;
  while (const dirent* entry = readdir(dir)) {
    if (entry->d_name[0] != '.') numbers.push_back(std::atoi(entry->d_name));
  }
  closedir(dir);
  return numbers;
}

bool listens(int fd) {
  int yes = 0;
  socklen_t size = sizeof yes;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &size) == 0 && yes != 0;
}

// Windows, device memory, files. How many pieces anonymous memory is in is up to the allocator: what it
// grows by shows in resident_pages.
uint64_t count_mappings() {
  std::ifstream maps("/proc/self/maps");
  uint64_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('/') != std::string::npos) ++count;
  }
  return count;
}

// Anonymous memory; what a window has resident depends on what was called, and a window that is left over
// shows in count_mappings. The workload's own ring is touched whole at the start.
uint64_t resident_pages() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word && word != "RssAnon:") {
  }
  uint64_t kib = 0;
  status >> kib;
  return kib / 4;
}

}  // namespace

Worker::Worker(const Options& options, Page* page)
    : options_(options), page_(page), generation_(options.generation), generations_(kMaxRanks, 0) {}

int Worker::run() {
  failpoint_stamp(&page_->acted_ns);
  if (!open()) return 3;
  page_->state.store(WorkerState::kRunning, std::memory_order_release);
  while (!stop_ && step()) {
  }
  moe_.reset();
  for (const mep_comm_t comm : {comm_, old_}) {
    if (mep_comm_destroy(comm) != MEP_SUCCESS) {
      wrong(Kind::kSync, 0, "destroy: %s", mep_last_error());
    }
  }
  page_->state.store(WorkerState::kEnded, std::memory_order_release);
  return stop_ ? 0 : 4;
}

bool Worker::open() {
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  config.timeout_ms = options_.timeout_ms;
  config.suspect_ms = options_.suspect_ms;
  config.heartbeat_ms = options_.heartbeat_ms;
  config.max_size = 31;
  config.flags = MEP_COMM_PARTIAL;
  const bool joins = std::getenv("MEP_JOIN") != nullptr;
  mep_result_t result = MEP_SUCCESS;
  if (joins) {
    config.max_size = 0;
    page_->state.store(WorkerState::kJoining, std::memory_order_release);
    page_->join_called_ns.store(now_ns(), std::memory_order_release);
    result = mep_comm_join(&config, &comm_);
  } else {
    result = mep_comm_init(&config, &comm_);
  }
  int32_t rank = 0;
  int32_t size = 0;
  if (result == MEP_SUCCESS) result = mep_comm_rank(comm_, &rank);
  if (result == MEP_SUCCESS) result = mep_comm_size(comm_, &size);
  Record record;
  if (result != MEP_SUCCESS) {
    record.type = RecordType::kEnd;
    record.kind = joins ? Kind::kRecover : Kind::kSync;
    record.result = result;
    std::snprintf(record.text, sizeof record.text, "%s", mep_last_error());
    write(record);
    page_->state.store(WorkerState::kEnded, std::memory_order_release);
    return false;
  }
  rank_ = static_cast<uint32_t>(rank);
  size_ = static_cast<uint32_t>(size);
  // Members begin with the iteration, the joiner learns it.
  if (joins) iteration_ = 0;
  moe_wanted_ = options_.has_moe() && !joins;
  if (options_.has_moe() && joins) {
    moe_ = std::make_unique<MoeWorkload>(comm_, rank_, size_, "moe1", options_.ep_mode(), true);
    moe_number_ = 1;
    if (moe_->created() != MEP_SUCCESS) wrong(Kind::kMoe, 7, "attach: %s", mep_last_error());
  }
  // Touched now, so that it does not look like growth.
  send_.assign(kLargeLanes, 1);
  receive_.assign(std::max<size_t>(kLargeLanes, size_t{kMaxRanks} * 64), 1);
  volatile char* ring = reinterpret_cast<char*>(page_->records);
  for (size_t i = 0; i < sizeof page_->records; i += 4096) ring[i] = 0;
  return true;
}

bool Worker::step() {
  obey_director();
  Outcome outcome = Outcome::kSuccess;
  if (resync_) {
    outcome = sync();
    resync_ = outcome != Outcome::kSuccess;
    return outcome != Outcome::kOver;
  }
  if (moe_wanted_) {
    outcome = renew_moe();
  } else if (iteration_ % 8 == 0) {
    outcome = command();
  } else {
    outcome = ordinary();
  }
  if (outcome == Outcome::kFailed) resync_ = true;
  if (outcome == Outcome::kSuccess) {
    ++iteration_;
    page_->iteration.store(iteration_, std::memory_order_release);
  }
  return outcome != Outcome::kOver;
}

uint64_t Worker::value_of(uint32_t rank, uint64_t stamp, size_t lane) const {
  return mixed(stamp * 64 + rank + lane * 0x9e3779b97f4a7c15u + options_.seed);
}

// Lanes 0..size-1 name the contributors; then the largest iteration, the largest serial, and whether
// somebody lacks the EP object.
Worker::Outcome Worker::sync() {
  // Two operations: the sum names who is there, the maximum agrees.
  const size_t lanes = size_;
  std::fill_n(send_.begin(), lanes, 0);
  send_[rank_] = make_stamp(generation_, 1);
  mep_result_t result =
      mep_allreduce(send_.data(), receive_.data(), lanes, MEP_UINT64, MEP_SUM, comm_, nullptr);
  Outcome outcome = note(Kind::kSync, result, receive_.data(), lanes * sizeof(uint64_t));
  if (outcome != Outcome::kSuccess) return outcome;
  const uint64_t contributors = info_contributors_;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    if (in(contributors, rank) != (receive_[rank] != 0)) {
      wrong(Kind::kSync, rank, "sync: rank %u, contributors %" PRIx64, rank, contributors);
    }
    generations_[rank] = receive_[rank] >> 40;
  }
  send_[0] = iteration_;
  send_[1] = serial_;
  send_[2] = options_.has_moe() && (moe_ == nullptr || moe_wanted_) ? 1 : 0;
  send_[3] = moe_number_;
  result = mep_allreduce(send_.data(), receive_.data(), 4, MEP_UINT64, MEP_MAX, comm_, nullptr);
  outcome = note(Kind::kSync, result, receive_.data(), 4 * sizeof(uint64_t));
  if (outcome != Outcome::kSuccess) return outcome;
  if (info_contributors_ != contributors) {
    // A view change that only admits tells nobody: the members look again.
    return Outcome::kFailed;
  }
  iteration_ = receive_[0];
  serial_ = receive_[1];
  moe_wanted_ = receive_[2] != 0;
  moe_number_ = receive_[3];
  members_ = contributors;
  page_->members.store(members_, std::memory_order_release);
  page_->done_serial.store(serial_, std::memory_order_release);
  return Outcome::kSuccess;
}

Worker::Outcome Worker::command() {
  send_[0] = page_->command.load(std::memory_order_acquire);
  const mep_result_t result =
      mep_allreduce(send_.data(), receive_.data(), 1, MEP_UINT64, MEP_MAX, comm_, nullptr);
  const Outcome outcome = note(Kind::kCommand, result, receive_.data(), sizeof(uint64_t));
  if (outcome != Outcome::kSuccess) return outcome;
  const uint64_t command = receive_[0];
  if (command_serial(command) <= serial_) return Outcome::kSuccess;
  return carry_out(command);
}

Worker::Outcome Worker::carry_out(uint64_t command) {
  serial_ = command_serial(command);
  const Verb verb = command_verb(command);
  if (verb == Verb::kStop) stop_ = true;
  if (verb == Verb::kSample) sample();
  if (verb == Verb::kRecover) {
    std::vector<int32_t> ranks;
    for (uint32_t rank = 0; rank < size_; ++rank) {
      if (in(command_ranks(command), rank)) ranks.push_back(static_cast<int32_t>(rank));
    }
    int32_t admitted = 0;
    const mep_result_t result = mep_recover_ranks(
        comm_, ranks.data(), static_cast<int32_t>(ranks.size()), kRecoverMs, &admitted);
    Record record;
    record.kind = Kind::kRecover;
    record.type = RecordType::kReport;
    record.result = result;
    record.detail = static_cast<uint32_t>(admitted);
    if (result != MEP_SUCCESS)
      std::snprintf(record.text, sizeof record.text, "%s", mep_last_error());
    write(record);
    resync_ = true;
    if (result == MEP_ERR_EVICTED || result == MEP_ERR_NO_QUORUM || result == MEP_ERR_ABORTED) {
      return Outcome::kOver;
    }
  }
  if (verb == Verb::kGrow) {
    mep_comm_t grown = nullptr;
    const mep_result_t result =
        mep_comm_grow(comm_, static_cast<int32_t>(command_ranks(command)), kRecoverMs, &grown);
    Record record;
    record.kind = Kind::kGrow;
    record.type = RecordType::kReport;
    record.result = result;
    if (result != MEP_SUCCESS)
      std::snprintf(record.text, sizeof record.text, "%s", mep_last_error());
    write(record);
    resync_ = true;
    moe_wanted_ = options_.has_moe();
    if (result == MEP_SUCCESS) {
      moe_.reset();
      old_ = comm_;
      comm_ = grown;
      int32_t size = 0;
      if (mep_comm_size(comm_, &size) == MEP_SUCCESS) size_ = static_cast<uint32_t>(size);
      last_epoch_ = 0;
      last_seq_ = 0;
    }
  }
  page_->done_serial.store(serial_, std::memory_order_release);
  return Outcome::kSuccess;
}

Worker::Outcome Worker::renew_moe() {
  moe_.reset();
  moe_ = std::make_unique<MoeWorkload>(comm_, rank_, size_, "moe" + std::to_string(++moe_number_),
                                       options_.ep_mode(), false);
  const mep_result_t created = moe_->created();
  if (created == MEP_SUCCESS) {
    moe_wanted_ = false;
    return Outcome::kSuccess;
  }
  const Outcome outcome = note(Kind::kMoe, created, nullptr, 0);
  moe_.reset();
  return outcome;
}

// Personal operations: one rank may fail where another succeeds. So each goes on to the same collective, which
// reports a change to all of them.
Worker::Outcome Worker::moe() {
  std::string what;
  uint64_t took_part = members_;
  const mep_result_t result = moe_->layer(iteration_, &took_part, &what);
  if (!what.empty()) wrong(Kind::kMoe, 0, "%s", what.c_str());
  if (result >= 0) return Outcome::kSuccess;
  return note(Kind::kMoe, result, nullptr, 0) == Outcome::kOver ? Outcome::kOver
                                                                : Outcome::kSuccess;
}

Worker::Outcome Worker::ordinary() {
  const uint64_t draw = mixed(iteration_ * 0x9e3779b97f4a7c15u + options_.seed);
  if (options_.has_moe() && iteration_ % 4 == 1 && moe_ != nullptr) return moe();
  if (options_.workload == "allreduce") {
    return allreduce(Kind::kAllreduceSmall, size_ + 1 + draw % 8, draw % 3 == 0);
  }
  switch (draw % 16) {
    case 0:
      return allreduce(Kind::kAllreduceLarge, kLargeLanes - draw / 16 % 1000, draw % 5 == 0);
    case 1:
      return broadcast(Kind::kBroadcastLarge, kLargeLanes - draw / 16 % 1000);
    case 2:
    case 3:
    case 4:
      return broadcast(Kind::kBroadcastSmall, 2 + draw / 16 % 8);
    case 5:
    case 6:
      return allgather(2 + draw / 16 % 8);
    case 7:
      return barrier();
    default:
      return allreduce(Kind::kAllreduceSmall, size_ + 1 + draw / 16 % 8, draw % 3 == 0);
  }
}

Worker::Outcome Worker::allreduce(Kind kind, size_t lanes, bool in_place) {
  const uint64_t stamp = make_stamp(generation_, iteration_);
  for (size_t lane = 0; lane < lanes; ++lane) {
    send_[lane] = lane < size_ ? 0 : value_of(rank_, stamp, lane);
  }
  send_[rank_] = stamp;
  uint64_t* receive = in_place ? send_.data() : receive_.data();
  const mep_result_t result =
      mep_allreduce(send_.data(), receive, lanes, MEP_UINT64, MEP_SUM, comm_, nullptr);
  const Outcome outcome = note(kind, result, receive, lanes * sizeof(uint64_t));
  if (outcome != Outcome::kSuccess) {
    // Whether the library says the truth about an input that it calls intact.
    if (result < 0 && info_.result == result && (info_.flags & MEP_OP_INPUT_INTACT) != 0) {
      bool same = send_[rank_] == stamp;
      for (size_t lane = size_; lane < lanes; ++lane) {
        same = same && send_[lane] == value_of(rank_, stamp, lane);
      }
      if (!same) wrong(kind, 1, "input called intact is not, %s", in_place ? "in place" : "");
    }
    return outcome;
  }
  check_named(kind, receive);
  for (size_t lane = size_; lane < lanes; ++lane) {
    uint64_t expected = 0;
    for (uint32_t rank = 0; rank < size_; ++rank) {
      if (in(info_contributors_, rank)) expected += value_of(rank, receive[rank], lane);
    }
    if (receive[lane] == expected) continue;
    wrong(kind, 2, "allreduce: lane %zu of %zu", lane, lanes);
    break;
  }
  return outcome;
}

// Each contributor's stamp is in the lane of its rank; the other lanes are zero.
void Worker::check_named(Kind kind, const uint64_t* stamps) {
  for (uint32_t rank = 0; rank < size_; ++rank) {
    const uint64_t expected =
        in(info_contributors_, rank)
            ? make_stamp(static_cast<uint32_t>(generations_[rank]), iteration_)
            : 0;
    if (stamps[rank] == expected) continue;
    wrong(kind, 3, "rank %u named by %" PRIx64 ", not %" PRIx64, rank, stamps[rank], expected);
    return;
  }
}

Worker::Outcome Worker::allgather(size_t lanes) {
  const uint64_t stamp = make_stamp(generation_, iteration_);
  send_[0] = stamp;
  for (size_t lane = 1; lane < lanes; ++lane) send_[lane] = value_of(rank_, stamp, lane);
  std::fill_n(receive_.begin(), lanes * size_, kUntouched);
  const mep_result_t result =
      mep_allgather(send_.data(), receive_.data(), lanes, MEP_UINT64, comm_, nullptr);
  const Outcome outcome =
      note(Kind::kAllgather, result, receive_.data(), lanes * size_ * sizeof(uint64_t));
  if (outcome != Outcome::kSuccess) return outcome;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    const bool is_in = in(info_contributors_, rank);
    const uint64_t given = make_stamp(static_cast<uint32_t>(generations_[rank]), iteration_);
    for (size_t lane = 0; lane < lanes; ++lane) {
      const uint64_t expected = !is_in      ? kUntouched
                                : lane == 0 ? given
                                            : value_of(rank, given, lane);
      if (receive_[rank * lanes + lane] == expected) continue;
      wrong(Kind::kAllgather, rank, "allgather: block %u lane %zu", rank, lane);
      return outcome;
    }
  }
  return outcome;
}

Worker::Outcome Worker::broadcast(Kind kind, size_t lanes) {
  // The same on all: members_ is what sync agreed on.
  uint32_t root = static_cast<uint32_t>(iteration_ % size_);
  while (!in(members_, root)) root = (root + 1) % size_;
  const uint64_t stamp = make_stamp(static_cast<uint32_t>(generations_[root]), iteration_);
  for (size_t lane = 0; lane < lanes && root == rank_; ++lane) {
    send_[lane] = value_of(root, stamp, lane);
  }
  std::fill_n(receive_.begin(), lanes, kUntouched);
  const mep_result_t result = mep_broadcast(send_.data(), receive_.data(), lanes, MEP_UINT64,
                                            static_cast<int32_t>(root), comm_, nullptr);
  const Outcome outcome = note(kind, result, receive_.data(), lanes * sizeof(uint64_t));
  if (outcome != Outcome::kSuccess) return outcome;
  for (size_t lane = 0; lane < lanes; ++lane) {
    if (receive_[lane] == value_of(root, stamp, lane)) continue;
    wrong(kind, root, "broadcast of %u: lane %zu of %zu", root, lane, lanes);
    break;
  }
  return outcome;
}

Worker::Outcome Worker::barrier() {
  return note(Kind::kBarrier, mep_barrier(comm_, nullptr), nullptr, 0);
}

Worker::Outcome Worker::note(Kind kind, mep_result_t result, const void* bytes, size_t count) {
  Record record;
  record.kind = kind;
  record.result = result;
  mep_op_info_defaults(&info_);
  info_.contributors = &info_contributors_;
  info_.contributors_words = 1;
  const mep_result_t known = mep_comm_last_op(comm_, &info_);
  // seq 0: a call that only told news.
  const bool is_new = known == MEP_SUCCESS && kind != Kind::kMoe && info_.seq != 0 &&
                      (info_.epoch != last_epoch_ || info_.seq != last_seq_);
  record.type = is_new ? RecordType::kResult : RecordType::kReport;
  uint64_t epoch = 0;
  if (mep_comm_epoch(comm_, &epoch) == MEP_SUCCESS) {
    page_->epoch.store(epoch_key(epoch), std::memory_order_release);
  }
  record.epoch = epoch_key(is_new ? info_.epoch : epoch);
  if (is_new) {
    record.seq = info_.seq;
    record.contributors = info_contributors_;
    last_epoch_ = info_.epoch;
    last_seq_ = info_.seq;
    if (result == MEP_SUCCESS) record.digest = digest_of(bytes, count);
  }
  if (result != MEP_SUCCESS) {
    std::snprintf(record.text, sizeof record.text, "%s", mep_last_error());
  }
  write(record);
  note_view();
  if (result == MEP_SUCCESS) {
    if (!is_new) wrong(kind, 4, "a success that mep_comm_last_op does not know");
    return Outcome::kSuccess;
  }
  if (result == MEP_ERR_PEER_FAILED || result == MEP_ERR_PEER_LEFT || result == MEP_ERR_TIMEOUT) {
    // Each change of the view is told once.
    uint64_t& told = is_new ? failed_epoch_ : report_epoch_;
    if (kind != Kind::kMoe && record.epoch == told) {
      wrong(kind, 5, "the end of epoch %" PRIu64 " was told twice", told);
    }
    if (kind != Kind::kMoe) told = record.epoch;
    return Outcome::kFailed;
  }
  record.type = RecordType::kEnd;
  write(record);
  return Outcome::kOver;
}

void Worker::note_view() {
  const ViewChangeTimes times = comm_->comm->world().view().last_change();
  if (times.world_epoch == seen_view_) return;
  seen_view_ = times.world_epoch;
  Record record;
  record.type = RecordType::kView;
  record.times = times;
  write(record);
}

void Worker::wrong(Kind kind, uint32_t detail, const char* format, ...) {
  Record record;
  record.type = RecordType::kWrong;
  record.kind = kind;
  record.detail = detail;
  record.epoch = epoch_key(info_.epoch);
  record.seq = info_.seq;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(record.text, sizeof record.text, format, arguments);
  va_end(arguments);
  write(record);
}

void Worker::write(const Record& record) {
  const uint64_t at = page_->written.load(std::memory_order_relaxed);
  while (at - page_->read.load(std::memory_order_acquire) >= kRingRecords) sched_yield();
  Record& slot = page_->records[at % kRingRecords];
  slot = record;
  slot.at_ns = now_ns();
  slot.iteration = iteration_;
  page_->written.store(at + 1, std::memory_order_release);
}

void Worker::sample() {
  Record record;
  record.type = RecordType::kSample;
  const std::vector<int> fds = entries_of("/proc/self/fd");
  record.sample.listeners = static_cast<uint64_t>(std::count_if(fds.begin(), fds.end(), listens));
  record.sample.fds = fds.size() - record.sample.listeners;
  record.sample.threads = entries_of("/proc/self/task").size();
  record.sample.mappings = count_mappings();
  record.sample.pages = resident_pages();
  write(record);
}

void Worker::obey_director() {
  const uint64_t armed = page_->arm_serial.load(std::memory_order_acquire);
  if (armed != armed_) {
    armed_ = armed;
    failpoint_disarm_all();
    page_->failpoint[sizeof page_->failpoint - 1] = '\0';
    if (page_->failpoint[0] != '\0' && failpoint_arm(page_->failpoint) != MEP_SUCCESS) {
      wrong(Kind::kSync, 6, "%s", mep_last_error());
    }
  }
  const uint64_t kill_at = page_->kill_at_iteration.load(std::memory_order_acquire);
  if (kill_at == 0 || iteration_ < kill_at) return;
  page_->acted_ns.store(now_ns(), std::memory_order_release);
  kill(getpid(), SIGKILL);
}

int run_worker(const Options& options) {
  void* mapped =
      mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, options.worker_fd, 0);
  if (mapped == MAP_FAILED) return 3;
  close(options.worker_fd);
  Worker worker(options, static_cast<Page*>(mapped));
  return worker.run();
}

}  // namespace mep::chaos
