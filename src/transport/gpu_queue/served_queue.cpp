#include "transport/gpu_queue/served_queue.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/guarded.hpp"
#include "base/log.hpp"
#include "transport/gpu_queue/send_queue.hpp"

namespace mep::gpu_queue {
namespace {

// A queue does as much before the next has its turn.
constexpr uint32_t kRequestsOfTurn = 32;
constexpr uint64_t kBytesOfTurn = uint64_t{1} << 20;

bool is_power_of_two(uint32_t value) {
  return value != 0 && (value & (value - 1)) == 0;
}

mep_result_t check_wiring(const QueueWiring& w) {
  if (w.ring == nullptr || w.completions == nullptr || w.record == nullptr ||
      w.doorbell == nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "software NIC: a queue needs ring, completions, record and doorbell");
  }
  if (w.queue_pair == 0 || w.queue_pair > 0xffffff) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "software NIC: queue pair %u is not in 1 .. 2^24 - 1",
                w.queue_pair);
  }
  if (!is_power_of_two(w.entries) || w.entries < 2 || w.entries > kMaxEntries) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "software NIC: a ring of %u entries; it needs a power of two, 2 .. %u", w.entries,
                kMaxEntries);
  }
  const bool has_all = is_power_of_two(w.completion_entries) && w.completion_entries > w.entries;
  if (w.completion_entries != 1 && !has_all) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "software NIC: %u completion entries; 1, or a power of two above the ring's %u",
                w.completion_entries, w.entries);
  }
  for (const RemoteRegion& region : w.remote) {
    if (region.address % 8 != 0) {
      return fail(MEP_ERR_INVALID_ARGUMENT,
                  "software NIC: the remote memory of key %u begins at no multiple of 8",
                  region.key);
    }
  }
  return MEP_SUCCESS;
}

Refusal refusal_of(Executed executed) {
  switch (executed) {
    case Executed::kLost:
      return {Syndrome::kRetriesExhausted, Reason::kPeerLost};
    case Executed::kUnsupported:
      return {Syndrome::kRemoteRequest, Reason::kUnsupported};
    default:
      return {Syndrome::kRemoteAccess, Reason::kRemotePlace};
  }
}

void store(const CompletionEntry& entry, CompletionEntry* slot) {
  __atomic_store_n(&slot->syndromes.raw, entry.syndromes.raw, __ATOMIC_RELEASE);
  __atomic_store_n(&slot->opcode_queue.raw, entry.opcode_queue.raw, __ATOMIC_RELEASE);
  // Release: publishes to the poller the rest of the entry, that requests and local memory are read no more, and what
  // additions have found.
  __atomic_store_n(&slot->counter_opcode.raw, entry.counter_opcode.raw, __ATOMIC_RELEASE);
}

}  // namespace

ServedQueue::ServedQueue(const QueueWiring& wiring, const QueueFaults& faults,
                         std::unique_ptr<Executor> executor)
    : wiring_(wiring),
      faults_(faults),
      executor_(std::move(executor)),
      told_(wiring.first),
      executed_(wiring.first),
      completed_(wiring.first),
      taken_(wiring.entries),
      puts_(executor_.get()),
      pending_(wiring.entries) {}

mep_result_t ServedQueue::create(const QueueWiring& wiring, const QueueFaults& faults,
                                 std::unique_ptr<Executor> executor,
                                 std::unique_ptr<ServedQueue>* out) {
  MEP_TRY(check_wiring(wiring));
  return guarded([&] {
    out->reset(new ServedQueue(wiring, faults, std::move(executor)));
    return MEP_SUCCESS;
  });
}

ServedQueue::Turn ServedQueue::take_turn() {
  bool worked = look();
  worked = execute() || worked;
  worked = complete() || worked;
  if (worked) return Turn::kWorked;
  const bool has_failed = failure_.index != UINT64_MAX;
  if (pending_begin_ == pending_end_ && executed_ == told_ && has_failed == has_told_failure_) {
    if (puts_.is_through(puts_.mark()) || puts_.is_lost()) return Turn::kIdle;
  }
  executor_->progress();
  return Turn::kWaiting;
}

bool ServedQueue::is_rung() const {
  // Relaxed: the turn that follows acquires it.
  return __atomic_load_n(wiring_.doorbell, __ATOMIC_RELAXED) != seen_doorbell_;
}

// The doorbell is either {next index << 8, queue pair << 8} or the first 8 bytes of the last request; the record has the
// index in any case.
bool ServedQueue::look() {
  // Acquire: the record, and the requests that it tells of.
  const uint64_t doorbell = __atomic_load_n(wiring_.doorbell, __ATOMIC_ACQUIRE);
  if (doorbell == seen_doorbell_) return false;
  seen_doorbell_ = doorbell;
  // Acquire: the record may be of a later ring, with more requests.
  const uint32_t record = swapped(__atomic_load_n(&wiring_.record->send.raw, __ATOMIC_ACQUIRE));
  const auto more = static_cast<uint16_t>(record - told_);
  const bool is_ours = swapped(static_cast<uint32_t>(doorbell >> 32)) >> 8 == wiring_.queue_pair;
  const bool has_room = record <= 0xffff && more <= wiring_.entries - (told_ - completed_);
  if (is_ours && has_room) {
    told_ += more;
  } else if (failure_.index == UINT64_MAX) {
    fail_request({Syndrome::kOperation, is_ours ? Reason::kRecord : Reason::kDoorbell});
  }
  return true;
}

bool ServedQueue::execute() {
  uint64_t bytes = kBytesOfTurn;
  uint32_t requests = 0;
  while (requests < kRequestsOfTurn && execute_one(&bytes)) ++requests;
  return requests != 0 || bytes != kBytesOfTurn;
}

// True: the request is done with, or has failed.
bool ServedQueue::execute_one(uint64_t* budget) {
  if (failure_.index != UINT64_MAX || executed_ == told_) return false;
  if (!has_current_) {
    const Request& slot = wiring_.ring[executed_ & (wiring_.entries - 1)];
    Request& copy = taken(executed_);
    // Relaxed: the doorbell has published them. Atomic: a poster may break its word.
    for (uint32_t i = 0; i < kRequestWords; ++i) {
      copy.words[i] = __atomic_load_n(&slot.words[i], __ATOMIC_RELAXED);
    }
    if (executed_ == faults_.fails_at) {
      failure_ = {executed_, faults_.syndrome, faults_.vendor};
      return true;
    }
    Refusal why;
    const RequestRules rules{wiring_.queue_pair, wiring_.local, wiring_.remote};
    if (!check_request(rules, executed_, copy, &current_, &why)) {
      fail_request(why);
      return true;
    }
    has_current_ = true;
    put_bytes_ = 0;
  }
  Executed result = Executed::kDone;
  if (current_.kind == Accepted::Kind::kPut) result = put_part(budget);
  if (current_.kind == Accepted::Kind::kWord || current_.kind == Accepted::Kind::kAdd) {
    result = after_puts();
    if (result == Executed::kDone) {
      result = current_.kind == Accepted::Kind::kWord ? write_word() : add();
    }
  }
  if (result == Executed::kLater) return false;
  has_current_ = false;
  if (result == Executed::kLost) {
    lose();
    return true;
  }
  if (result != Executed::kDone) {
    fail_request(refusal_of(result));
    return true;
  }
  if (current_.completes) {
    pending_[pending_end_++ & (wiring_.entries - 1)] = {executed_, puts_.mark()};
  }
  ++executed_;
  return true;
}

Executed ServedQueue::put_part(uint64_t* budget) {
  while (put_bytes_ < current_.bytes) {
    if (*budget == 0) return Executed::kLater;
    // The same arguments after kLater: a part is cut where the put is, not where the turn is.
    const uint64_t part = std::min(current_.bytes - put_bytes_, kBytesOfTurn);
    const Executed result = executor_->put(*current_.remote, current_.offset + put_bytes_,
                                           current_.from + put_bytes_, part);
    if (result != Executed::kDone) return result;
    puts_.add();
    put_bytes_ += part;
    *budget -= std::min(part, *budget);
  }
  return Executed::kDone;
}

Executed ServedQueue::after_puts() {
  if (puts_.is_through(puts_.mark())) return Executed::kDone;
  return puts_.is_lost() ? Executed::kLost : Executed::kLater;
}

Executed ServedQueue::write_word() {
  uint64_t word;
  std::memcpy(&word, current_.from, sizeof word);
  return executor_->write_word(*current_.remote, current_.offset, word);
}

Executed ServedQueue::add() {
  uint64_t before = 0;
  const Executed result =
      executor_->fetch_add(*current_.remote, current_.offset, current_.add, &before);
  if (result != Executed::kDone) return result;
  before = swapped(before);
  std::memcpy(current_.before, &before, sizeof before);
  return result;
}

uint64_t PutMarks::mark() {
  if (!has_more_) return mark_;
  Counts counts;
  is_lost_ = !executor_->counts(&counts) || is_lost_;
  mark_ = counts.posted;
  has_more_ = false;
  return mark_;
}

bool PutMarks::is_through(uint64_t mark) {
  if (is_lost_) return false;
  if (reached_ >= mark) return true;
  Counts counts;
  is_lost_ = !executor_->counts(&counts);
  reached_ = std::max(reached_, counts.completed);
  return !is_lost_ && reached_ >= mark;
}

void ServedQueue::fail_request(const Refusal& refusal) {
  failure_ = {executed_, static_cast<uint8_t>(refusal.syndrome),
              static_cast<uint8_t>(refusal.reason)};
  log(LogLevel::kWarn,
      "software NIC: request %llu of queue pair %u has failed with syndrome 0x%02x: %s",
      static_cast<unsigned long long>(executed_), wiring_.queue_pair, failure_.syndrome,
      text_of(refusal.reason));
}

// Nobody knows which of the requests without a completion have arrived: the first of them is the one that fails.
void ServedQueue::lose() {
  puts_.lose();
  executed_ = completed_;
  pending_begin_ = pending_end_;
  fail_request({Syndrome::kRetriesExhausted, Reason::kPeerLost});
}

bool ServedQueue::is_due() {
  if (faults_.never_completes) return false;
  if (polls_ < faults_.late_polls) {
    ++polls_;
    return false;
  }
  polls_ = 0;
  return true;
}

bool ServedQueue::complete() {
  bool worked = false;
  while (pending_begin_ != pending_end_) {
    const Pending& next = pending_[pending_begin_ & (wiring_.entries - 1)];
    const bool is_through = puts_.is_through(next.mark);
    if (puts_.is_lost()) {
      lose();
      break;
    }
    if (!is_through || !is_due()) return worked;
    write_completion(next.index, CompletionOpcode::kRequest, 0, 0);
    ++pending_begin_;
    worked = true;
  }
  if (failure_.index == UINT64_MAX) return worked;
  if (!has_told_failure_) {
    if (!puts_.is_through(puts_.mark()) && !puts_.is_lost()) return worked;
    if (!is_due()) return worked;
    write_completion(failure_.index, CompletionOpcode::kRequestError, failure_.syndrome,
                     failure_.vendor);
    has_told_failure_ = true;
    worked = true;
  }
  return flush_rest() || worked;
}

bool ServedQueue::flush_rest() {
  told_ = std::max(told_, completed_);
  const bool worked = completed_ != told_;
  while (completed_ != told_) {
    write_completion(completed_, CompletionOpcode::kRequestError,
                     static_cast<uint8_t>(Syndrome::kFlushed),
                     static_cast<uint8_t>(Reason::kFlushed));
  }
  executed_ = told_;
  return worked;
}

void ServedQueue::write_completion(uint64_t index, CompletionOpcode opcode, uint8_t syndrome,
                                   uint8_t vendor) {
  const uint32_t owner = written_ / wiring_.completion_entries & 1;
  CompletionEntry entry{};
  entry.syndromes = Big32(uint32_t{vendor} << 8 | syndrome);
  const uint32_t first_word = swapped(taken(index).words[0]);
  const bool was_taken = (first_word >> 8 & 0xffff) == (index & 0xffff);
  entry.opcode_queue = Big32((was_taken ? first_word << 24 : 0) | wiring_.queue_pair);
  entry.counter_opcode = Big32(static_cast<uint32_t>(index & 0xffff) << 16 |
                               static_cast<uint32_t>(opcode) << 4 | owner);
  CompletionEntry* slot = &wiring_.completions[written_ & (wiring_.completion_entries - 1)];
  store(entry, slot);
  if (faults_.repeats && written_ != 0 && wiring_.completion_entries == 1) {
    store(last_, slot);
    store(entry, slot);
  }
  last_ = entry;
  ++written_;
  completed_ = index + 1;
}

void ServedQueue::close() {
  const uint64_t end = std::max(told_, completed_ + (has_told_failure_ ? 0 : 1));
  while (completed_ < end) {
    write_completion(completed_, CompletionOpcode::kRequestError,
                     static_cast<uint8_t>(Syndrome::kFlushed),
                     static_cast<uint8_t>(Reason::kStopped));
  }
}

}  // namespace mep::gpu_queue
