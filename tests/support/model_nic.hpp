// A NIC for one send queue: it checks requests as an adapter would and executes them on plain memory.
//
// It knows the formats of transport/gpu_queue/work_request.hpp and nothing of the queue. The queue may
// rely on two things: requests are executed in order; a completion is written after them, its last word last.
#pragma once

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "transport/gpu_queue/work_request.hpp"

namespace mep_test {

struct NicMemory {
  uint32_t key;
  void* begin;
  uint64_t bytes;
};

struct NicWiring {
  const mep::gpu_queue::Request* ring;
  mep::gpu_queue::CompletionEntry* completion;
  const mep::gpu_queue::DoorbellRecord* record;
  const uint64_t* doorbell;
  uint32_t queue_pair;
  uint32_t entries;
  uint64_t first;
};

class ModelNic {
 public:
  static constexpr uint8_t kFlushed = 0x05;
  static constexpr uint8_t kVendorOfFlushed = 0xf9;

  ModelNic(const NicWiring& wiring, NicMemory local, NicMemory remote)
      : w_(wiring),
        local_(local),
        remote_(remote),
        told_(w_.first),
        executed_(w_.first),
        completed_(w_.first) {
    doorbell_ = __atomic_load_n(w_.doorbell, __ATOMIC_RELAXED);
  }

  // The request with this index fails.
  uint64_t fails_at = UINT64_MAX;
  uint8_t syndrome = 0x15;
  uint8_t vendor = 0x81;
  // Whether a NIC in error tells of each request behind, as real ones do.
  bool flushes = true;
  // Called for each request that was executed.
  std::function<void(uint64_t index, uint64_t remote)> on_executed;

  bool failed() const { return failed_; }
  uint64_t executed() const { return executed_; }
  // Empty, or what no adapter would have taken.
  const std::string& violation() const { return violation_; }

  // Reads the doorbell. True: there is work.
  bool look() {
    const uint64_t doorbell = __atomic_load_n(w_.doorbell, __ATOMIC_ACQUIRE);
    if (doorbell != doorbell_) take(doorbell);
    return executed_ != told_;
  }
  // One request.
  bool execute() {
    if (executed_ == told_ || !violation_.empty()) return false;
    if (failed_ || executed_ == fails_at) {
      if (!failed_ || flushes) complete_with_error();
      failed_ = true;
    } else {
      carry_out(w_.ring[executed_ & (w_.entries - 1)]);
    }
    ++executed_;
    return true;
  }
  // Half of a completion: all but its last word, or that.
  bool complete() {
    if (pending_.empty()) return false;
    const mep::gpu_queue::CompletionEntry& entry = pending_.front().entry;
    if (!half_written_) {
      store(&w_.completion->syndromes, entry.syndromes);
      store(&w_.completion->opcode_queue, entry.opcode_queue);
      half_written_ = true;
      return true;
    }
    store(&w_.completion->counter_opcode, entry.counter_opcode);
    half_written_ = false;
    completed_ = std::max(completed_, pending_.front().end);
    last_ = pending_.front();
    if (history_.empty() || history_.back().end < last_.end) history_.push_back(last_);
    if (history_.size() > 8) history_.pop_front();
    pending_.pop_front();
    return true;
  }
  // Writes an old completion once more, and the last one behind it.
  void repeat(uint64_t which) {
    if (failed_ || half_written_ || history_.size() < 2) return;
    pending_.push_front(last_);
    pending_.push_front(history_[which % (history_.size() - 1)]);
  }

 private:
  using Big32 = mep::gpu_queue::Big32;
  using Request = mep::gpu_queue::Request;
  struct Written {
    mep::gpu_queue::CompletionEntry entry;
    uint64_t end;
  };

  static void store(Big32* word, Big32 value) {
    __atomic_store_n(&word->raw, value.raw, __ATOMIC_RELEASE);
  }

  __attribute__((format(printf, 2, 3))) bool refuse(const char* format, ...) {
    char text[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (violation_.empty()) violation_ = "request " + std::to_string(executed_) + ": " + text;
    return false;
  }

  void take(uint64_t doorbell) {
    doorbell_ = doorbell;
    const uint32_t index = __builtin_bswap32(static_cast<uint32_t>(doorbell));
    const uint32_t queue_pair = __builtin_bswap32(static_cast<uint32_t>(doorbell >> 32));
    if (queue_pair != w_.queue_pair << 8) refuse("doorbell of queue pair 0x%x", queue_pair >> 8);
    if ((index & 0xff0000ff) != 0) refuse("doorbell 0x%x", index);
    const auto more = static_cast<int16_t>(static_cast<uint16_t>((index >> 8) - told_));
    if (more <= 0) refuse("the doorbell goes back by %d", -more);
    told_ += static_cast<uint64_t>(more);
    if (told_ - completed_ > w_.entries)
      refuse("%d more than the ring has", static_cast<int>(told_ - completed_));
    // The record was written before, and may tell of more by now. Relaxed: the doorbell publishes it.
    const uint32_t record =
        __builtin_bswap32(__atomic_load_n(&w_.record->send.raw, __ATOMIC_RELAXED));
    if (record > 0xffff) refuse("record 0x%x", record);
    if (static_cast<int16_t>(static_cast<uint16_t>(record - told_)) < 0)
      refuse("the record is behind the doorbell");
  }

  void complete_with(mep::gpu_queue::CompletionOpcode opcode, uint8_t vendor_syndrome,
                     uint8_t error) {
    Written written{};
    written.entry.syndromes = Big32(uint32_t{vendor_syndrome} << 8 | error);
    written.entry.opcode_queue = Big32(w_.queue_pair);
    written.entry.counter_opcode =
        Big32(static_cast<uint32_t>(executed_ & 0xffff) << 16 | static_cast<uint32_t>(opcode) << 4);
    written.end = executed_ + 1;
    pending_.push_back(written);
  }
  void complete_with_error() {
    const auto opcode = mep::gpu_queue::CompletionOpcode::kRequestError;
    failed_ ? complete_with(opcode, kVendorOfFlushed, kFlushed)
            : complete_with(opcode, vendor, syndrome);
  }

  void carry_out(const Request& request) {
    const auto control = mep::gpu_queue::get_segment<mep::gpu_queue::ControlSegment>(request, 0);
    uint64_t remote = 0;
    if (!check(control) || !carry_out(request, control, &remote)) return;
    if (control.completion != 0) complete_with(mep::gpu_queue::CompletionOpcode::kRequest, 0, 0);
    if (on_executed) on_executed(executed_, remote);
  }

  bool check(const mep::gpu_queue::ControlSegment& control) {
    const uint32_t first = control.index_opcode.value();
    if (first >> 24 != 0) return refuse("modifier 0x%x", first >> 24);
    if ((first >> 8 & 0xffff) != (executed_ & 0xffff))
      return refuse("index 0x%x", first >> 8 & 0xffff);
    if (control.queue_segments.value() >> 8 != w_.queue_pair) return refuse("another queue pair");
    if ((control.signature | control.stream[0] | control.stream[1]) != 0)
      return refuse("reserved bytes");
    if (control.completion != 0 && control.completion != 8)
      return refuse("fm_ce_se 0x%x", control.completion);
    if (control.immediate.raw != 0 && (first & 0xff) != 0x09) return refuse("an immediate");
    return true;
  }

  bool carry_out(const Request& request, const mep::gpu_queue::ControlSegment& control,
                 uint64_t* remote) {
    const uint32_t segments = control.queue_segments.value() & 0xff;
    switch (control.index_opcode.value() & 0xff) {
      case 0x00:
        return segments == 1 || refuse("a nop of %u segments", segments);
      case 0x08:
      case 0x09:
        return write(request, segments, remote);
      case 0x12:
        return segments == 4 ? add(request, remote) : refuse("an atomic of %u segments", segments);
      default:
        return refuse("opcode 0x%x", control.index_opcode.value() & 0xff);
    }
  }

  uint8_t* reach(const NicMemory& memory, uint32_t key, uint64_t address, uint64_t bytes) {
    const auto begin = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(memory.begin));
    const bool inside =
        address >= begin && bytes <= memory.bytes && address - begin <= memory.bytes - bytes;
    if (key != memory.key || !inside) {
      refuse("key %u, %llu bytes at %llx", key, static_cast<unsigned long long>(bytes),
             static_cast<unsigned long long>(address));
      return nullptr;
    }
    return static_cast<uint8_t*>(memory.begin) + (address - begin);
  }
  uint8_t* reach_remote(const Request& request, uint64_t bytes, uint64_t* remote) {
    const auto segment = mep::gpu_queue::get_segment<mep::gpu_queue::RemoteSegment>(request, 1);
    if (segment.reserved.raw != 0) refuse("reserved bytes of the remote segment");
    *remote = segment.address.value();
    return reach(remote_, segment.key.value(), *remote, bytes);
  }
  uint8_t* reach_local(const Request& request, uint32_t at, uint32_t* bytes) {
    const auto segment = mep::gpu_queue::get_segment<mep::gpu_queue::DataSegment>(request, at);
    *bytes = segment.bytes.value();
    if (*bytes == 0 || *bytes > 1u << 30) refuse("%u bytes", *bytes);
    return reach(local_, segment.key.value(), segment.address.value(), *bytes);
  }

  bool write(const Request& request, uint32_t segments, uint64_t* remote) {
    uint32_t bytes = __builtin_bswap32(request.words[8]);
    const uint8_t* from;
    if ((bytes >> 31) != 0) {
      bytes &= 0x7fffffff;
      if (bytes == 0 || bytes > 28 || segments != 2 + (4 + bytes + 15) / 16) {
        return refuse("%u bytes inline in %u segments", bytes, segments);
      }
      from = reinterpret_cast<const uint8_t*>(&request.words[9]);
    } else {
      if (segments != 3) return refuse("a write of %u segments", segments);
      from = reach_local(request, 2, &bytes);
    }
    uint8_t* to = reach_remote(request, bytes, remote);
    if (from == nullptr || to == nullptr) return false;
    if (bytes == 8 && *remote % 8 == 0) {
      uint64_t value;
      memcpy(&value, from, 8);
      // Publishes the writes before it to the peer that polls the word.
      __atomic_store_n(reinterpret_cast<uint64_t*>(to), value, __ATOMIC_RELEASE);
    } else {
      memcpy(to, from, bytes);
    }
    return true;
  }
  bool add(const Request& request, uint64_t* remote) {
    const auto operands = mep::gpu_queue::get_segment<mep::gpu_queue::AtomicSegment>(request, 2);
    if (operands.compare.raw != 0) return refuse("an addition that compares");
    uint32_t bytes = 0;
    uint8_t* before = reach_local(request, 3, &bytes);
    uint8_t* to = reach_remote(request, 8, remote);
    if (before == nullptr || to == nullptr) return false;
    if (bytes != 8 || *remote % 8 != 0) return refuse("an atomic of %u bytes", bytes);
    const uint64_t old = __atomic_fetch_add(reinterpret_cast<uint64_t*>(to),
                                            __builtin_bswap64(operands.add.raw), __ATOMIC_ACQ_REL);
    const uint64_t turned = __builtin_bswap64(old);
    memcpy(before, &turned, 8);
    return true;
  }

  NicWiring w_;
  NicMemory local_;
  NicMemory remote_;
  uint64_t doorbell_;
  uint64_t told_;  // by doorbells
  uint64_t executed_;
  uint64_t completed_;  // what completions that were written cover
  bool failed_ = false;
  bool half_written_ = false;
  Written last_{};
  std::deque<Written> pending_;
  std::deque<Written> history_;
  std::string violation_;
};

}  // namespace mep_test
