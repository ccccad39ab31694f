// The form that a queue is compared with: the same ring, completions and doorbell, and a mutex that is held from the index to
// the doorbell. Threads of the host post.
#pragma once

#include <cstdint>
#include <mutex>

#include "transport/gpu_queue/send_queue.hpp"

namespace mep::perf {

template <typename Memory>
class LockedPeer {
 public:
  LockedPeer(gpu_queue::Queue* queue, std::mutex* mutex, const gpu_queue::Patience& patience)
      : q_(queue), mutex_(mutex), patience_(patience) {}

  gpu_queue::Status signal(const gpu_queue::RemoteMemory& word, uint64_t value) {
    uint64_t index = 0;
    return post(gpu_queue::write_word(word, value), gpu_queue::Completion::kOnError, &index);
  }
  gpu_queue::Status flush() {
    uint64_t index = 0;
    Status status = post(gpu_queue::nop(), gpu_queue::Completion::kAlways, &index);
    // Acquire: the NIC reads requests before `done` no more.
    for (uint32_t polls = 1; status == Status::kOk && Memory::load_acquire(&q_->done) <= index;
         ++polls) {
      status = keep_waiting(polls);
    }
    return status;
  }

 private:
  using Status = gpu_queue::Status;

  // Each thread that has the mutex gives it up by the deadline, so waiting for it ends.
  Status post(const gpu_queue::Request& built, gpu_queue::Completion completion, uint64_t* index) {
    gpu_queue::Request request = built;
    const std::lock_guard lock(*mutex_);
    const uint64_t next = q_->reserved;
    for (uint32_t polls = 1; next - Memory::load_acquire(&q_->done) >= q_->entries; ++polls) {
      const Status status = keep_waiting(polls);
      if (status != Status::kOk) return status;
    }
    if (Memory::load(&q_->error) != 0) return Status::kFailed;
    const bool is_due = (next + 1) % (q_->entries / 4) == 0;
    auto control = gpu_queue::get_segment<gpu_queue::ControlSegment>(request, 0);
    const auto opcode = static_cast<gpu_queue::Opcode>(control.index_opcode.value() & 0xff);
    control.index_opcode = gpu_queue::index_opcode(next, opcode);
    control.queue_segments =
        gpu_queue::Big32(q_->queue_pair << 8 | gpu_queue::segments_of(request));
    control.completion = static_cast<uint8_t>(is_due ? gpu_queue::Completion::kAlways : completion);
    gpu_queue::set_segment(&request, 0, control);
    Memory::fill(&q_->ring[next & (q_->entries - 1)], request);
    // A poster without the mutex finds the queue as if it had been rung by its like.
    q_->reserved = q_->rung = next + 1;
    Memory::store_record(&q_->record->send, gpu_queue::record_of(next + 1));
    Memory::ring(q_->doorbell, gpu_queue::doorbell_of(next + 1, q_->queue_pair));
    *index = next;
    return Status::kOk;
  }

  Status keep_waiting(uint32_t polls) {
    const uint64_t done = Memory::load_acquire(&q_->done);
    const gpu_queue::Big32 word = Memory::load_completion(&q_->completion->counter_opcode);
    if (gpu_queue::opcode_of(word) == gpu_queue::CompletionOpcode::kRequest) {
      const auto more = static_cast<uint16_t>(gpu_queue::counter_of(word) + 1 - done);
      if (more != 0 && more <= q_->entries) Memory::raise(&q_->done, done + more);
    } else if (gpu_queue::opcode_of(word) != gpu_queue::CompletionOpcode::kInvalid) {
      const gpu_queue::Big32 syndromes = Memory::load_completion(&q_->completion->syndromes);
      Memory::store_first(&q_->error, gpu_queue::pack_error(word, syndromes));
      return Status::kFailed;
    }
    Memory::pause(polls);
    if (polls % Memory::kPollsPerLook != 0) return Status::kOk;
    if (Memory::nanoseconds() > patience_.deadline) return Status::kTimedOut;
    return Memory::load_abort(patience_.abort_word) < patience_.epoch ? Status::kOk
                                                                      : Status::kAborted;
  }

  gpu_queue::Queue* q_;
  std::mutex* mutex_;
  gpu_queue::Patience patience_;
};

}  // namespace mep::perf
