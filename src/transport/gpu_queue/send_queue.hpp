// A send queue of a NIC that many posters use: warps of a GPU, or threads of a host in their role.
//
//   poster    reserves an index, fills the slot, says that it is ready, and rings if nobody does
//   ringer    the poster that found `ringing` 0: tells the NIC how far the requests reach that are there without a gap
//   NIC       executes in order; one completion stands for all requests before it
//
// Invariants
//   - reserved - done <= entries. Room is tested before an index is taken, so a poster that gives up holds none.
//   - A slot is ready for the index that its word in `ready` names. Words of earlier laps name other ones, so nothing is
//     cleared and a request that is not there yet stops the ringer. They lie where the posters are: the ring may lie
//     across a bus, and is never read by a poster.
//   - Nobody waits for the ringer. A poster that finds one leaves, and the ringer looks once more after it has ended.
//   - Every quarter of the ring has a request that completes in any case, so waiting for room ends.
//   - Every wait ends: by a completion, an error of the queue, the deadline or the abort word. An error stays.
#pragma once

#include <cstdint>

#include "protocol/host_device.hpp"
#include "transport/gpu_queue/memory_operations.hpp"
#include "transport/gpu_queue/work_request.hpp"

namespace mep::gpu_queue {

// Indices are compared modulo 2^16: what lies ahead is less than half of that, the rest lies behind.
constexpr uint32_t kMaxEntries = 16384;

// Lies where the posters are: in the GPU's memory for warps.
struct Queue {
  // Fixed. The ring, the completion entry and the record may lie on the GPU or the host; the NIC reaches all three.
  Request* ring;
  const CompletionEntry* completion;  // a collapsed queue: the last one lies here
  DoorbellRecord* record;
  uint64_t* doorbell;
  // [entries] zeros at first; then index + 1 of the request in each slot.
  uint64_t* ready;
  // The peer's window begins at window_base under window_key; requests name the local memory by its addresses.
  uint64_t window_base;
  uint32_t window_key;
  uint32_t source_key;
  uint32_t queue_pair;
  uint32_t entries;  // power of two, 2 .. kMaxEntries

  // Counts of requests since the queue pair was made; they never wrap.
  alignas(128) uint64_t reserved;  // posters take indices from it
  alignas(128) uint64_t
      done;        // raised by those that read a completion; its readers may fill the slots again
  uint64_t error;  // 0, or the first error that was read; see pack_error
  alignas(128) uint32_t ringing;  // 1: a poster is the ringer, and `rung` is its own
  uint64_t rung;                  // the NIC knows of the requests before
};

// Before the queue pair is told of this memory, by whoever can write it. `first` is the first index: 0 for a new pair.
inline void make_empty(Queue* queue, CompletionEntry* completion, uint64_t first) {
  __builtin_memset(static_cast<void*>(completion), 0xff, sizeof *completion);
  *queue->record = DoorbellRecord{Big32(0), record_of(first)};
  queue->completion = completion;
  queue->reserved = queue->done = queue->rung = first;
  queue->error = queue->ringing = 0;
}

enum class Status : uint32_t {
  kOk = 0,
  kFailed,    // the NIC has reported an error: Queue::error has it
  kTimedOut,  // the deadline has passed
  kAborted,   // the abort word has reached this epoch
};

// How long a thread waits. Made once at the start of a kernel.
struct Patience {
  uint64_t deadline = UINT64_MAX;        // by nanoseconds()
  const uint64_t* abort_word = nullptr;  // the host raises it to the last epoch that ends here
  uint64_t epoch = 0;
};

constexpr uint64_t kErrorIsThere = uint64_t{1} << 63;
MEP_HOST_DEVICE constexpr uint64_t pack_error(Big32 counter_opcode, Big32 syndromes) {
  return kErrorIsThere | uint64_t{counter_of(counter_opcode)} << 16 | (syndromes.value() & 0xffff);
}
// The low 32 bits of that, from which unpack_error makes it again.
MEP_HOST_DEVICE constexpr uint32_t pack_error(const QueueError& error) {
  return uint32_t{error.wqe_counter} << 16 | uint32_t{error.vendor} << 8 | error.syndrome;
}
MEP_HOST_DEVICE constexpr QueueError unpack_error(uint64_t error) {
  return {static_cast<uint8_t>(error), static_cast<uint8_t>(error >> 8),
          static_cast<uint16_t>(error >> 16)};
}

template <typename Memory = SystemMemory>
class SendQueue {
 public:
  MEP_HOST_DEVICE SendQueue(Queue* queue, const Patience& patience)
      : q_(queue), patience_(patience) {}

  // Waits for room. Publishes to the NIC, with the request, what this thread has stored in its local memory.
  // If it does not give kOk, nothing was posted.
  MEP_HOST_DEVICE Status post(const Request& request) {
    uint64_t index;
    return post(request, Completion::kOnError, &index);
  }

  // The same of each lane of a warp that wants it, in the order of the lanes, with one look at the ring and one doorbell.
  // A thread of the host is one lane. The lanes are at most three quarters of the ring's entries: so much room comes.
  MEP_HOST_DEVICE Status post_lanes(bool wants, const Request& request) {
    const uint32_t posting = Memory::ballot(wants);
    if (posting == 0) return Status::kOk;
    const bool leads = Memory::lane() == 0;
    uint64_t index = 0;
    Status status = Status::kOk;
    if (leads) status = reserve(count_bits(posting), &index);
    status = static_cast<Status>(Memory::from_first(static_cast<uint32_t>(status)));
    if (status != Status::kOk) return status;
    const uint64_t high = Memory::from_first(static_cast<uint32_t>(index >> 32));
    index = high << 32 | Memory::from_first(static_cast<uint32_t>(index));
    index += count_bits(posting & ((1u << Memory::lane()) - 1));
    if (wants)
      publish(index, request, completes(index) ? Completion::kAlways : Completion::kOnError);
    Memory::meet();
    if (leads) ring();
    return Status::kOk;
  }

  // Until all is done whose post has returned before, by whichever thread this one has met since. Local memory is then
  // free; remote memory has been written, but only a signal tells the peer's threads.
  MEP_HOST_DEVICE Status flush() {
    uint64_t end = Memory::load(&q_->reserved);
    if (Memory::load_acquire(&q_->done) >= end) return Status::kOk;
    poll();  // an error is read before that of the request that follows takes its place
    if (!completes(end - 1)) {
      uint64_t index;
      const Status status = post(nop(), Completion::kAlways, &index);
      if (status != Status::kOk) return status;
      end = index + 1;
    }
    return wait_done(end);
  }

  // The peer's window from `offset`, and local memory, as requests of this queue name them.
  MEP_HOST_DEVICE RemoteMemory in_window(uint64_t offset) const {
    return {q_->window_base + offset, q_->window_key};
  }
  MEP_HOST_DEVICE LocalMemory in_source(const void* address) const {
    return {address, q_->source_key};
  }

  MEP_HOST_DEVICE bool error(QueueError* error) const {
    const uint64_t word = Memory::load(&q_->error);
    *error = unpack_error(word);
    return word != 0;
  }

 private:
  struct Waited {
    uint32_t polls = 0;
    uint64_t next_abort_look = 0;
  };

  MEP_HOST_DEVICE Request* slot(uint64_t index) const {
    return &q_->ring[index & (q_->entries - 1)];
  }
  MEP_HOST_DEVICE uint64_t* ready_word(uint64_t index) const {
    return &q_->ready[index & (q_->entries - 1)];
  }
  MEP_HOST_DEVICE static uint32_t count_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return static_cast<uint32_t>(__popc(bits));
#else
    return static_cast<uint32_t>(__builtin_popcount(bits));
#endif
  }

  // Whether a request completes in any case for its place alone.
  MEP_HOST_DEVICE bool completes(uint64_t index) const {
    const uint64_t interval = q_->entries < 4 ? 1 : q_->entries / 4;
    return (index & (interval - 1)) == interval - 1;
  }

  MEP_HOST_DEVICE Status post(const Request& request, Completion completion, uint64_t* index) {
    const Status status = reserve(1, index);
    if (status != Status::kOk) return status;
    publish(*index, request, completes(*index) ? Completion::kAlways : completion);
    ring();
    return Status::kOk;
  }

  // So many indices from *index on; no more than the ring has entries.
  MEP_HOST_DEVICE Status reserve(uint32_t count, uint64_t* index) {
    Waited waited;
    *index = Memory::load(&q_->reserved);
    for (;;) {
      // Acquire: the NIC has read the request that was in the slot.
      const uint64_t done = Memory::load_acquire(&q_->done);
      if (Memory::load(&q_->error) != 0) return Status::kFailed;
      if (*index + count - done <= q_->entries) {
        if (Memory::take(&q_->reserved, index, *index + count)) return Status::kOk;
        continue;
      }
      const Status status = keep_waiting(&waited);
      if (status != Status::kOk) return status;
      *index = Memory::load(&q_->reserved);
    }
  }

  // Publishes the request, and what it speaks of, to the ringer.
  MEP_HOST_DEVICE void publish(uint64_t index, const Request& built, Completion completion) {
    Request request = built;
    auto control = get_segment<ControlSegment>(request, 0);
    const auto opcode = static_cast<Opcode>(control.index_opcode.value() & 0xff);
    control.index_opcode = index_opcode(index, opcode);
    control.queue_segments = Big32(q_->queue_pair << 8 | segments_of(request));
    control.completion = static_cast<uint8_t>(completion);
    set_segment(&request, 0, control);
    Memory::fill(slot(index), request);
    Memory::store_release(ready_word(index), index + 1);
  }

  MEP_HOST_DEVICE bool is_ready(uint64_t index) const {
    return Memory::load_acquire(ready_word(index)) == index + 1;
  }

  // A poster that comes while there is a ringer is seen by the exchange with which the ringer ends, and so is its
  // request in the look after that.
  MEP_HOST_DEVICE void ring() {
    uint64_t end;
    do {
      if (Memory::exchange(&q_->ringing, 1) != 0) return;
      end = ring_prefix();
      Memory::exchange(&q_->ringing, 0);
    } while (is_ready(end));
  }

  MEP_HOST_DEVICE uint64_t ring_prefix() {
    uint64_t end = q_->rung;
    while (is_ready(end)) ++end;
    if (end == q_->rung) return end;
    q_->rung = end;
    Memory::store_record(&q_->record->send, record_of(end));
    Memory::ring(q_->doorbell, doorbell_of(end, q_->queue_pair));
    return end;
  }

  // One load of 32 bits has the counter and the opcode. `done` is loaded first, so the completion is not older, unless
  // the NIC repeats one, which then lies behind.
  MEP_HOST_DEVICE void poll() {
    const uint64_t done = Memory::load_acquire(&q_->done);
    const Big32 word = Memory::load_completion(&q_->completion->counter_opcode);
    if (opcode_of(word) == CompletionOpcode::kInvalid) return;
    if (opcode_of(word) != CompletionOpcode::kRequest) return keep_error(word);
    const auto more = static_cast<uint16_t>(counter_of(word) + 1 - done);
    if (more != 0 && more <= q_->entries) Memory::raise(&q_->done, done + more);
  }

  // The rest of the entry may be of a later error already: the NIC flushes what is behind the request that failed.
  MEP_HOST_DEVICE void keep_error(Big32 word) {
    const Big32 syndromes = Memory::load_completion(&q_->completion->syndromes);
    Memory::store_first(&q_->error, pack_error(word, syndromes));
  }

  MEP_HOST_DEVICE Status wait_done(uint64_t end) {
    Waited waited;
    for (;;) {
      if (Memory::load_acquire(&q_->done) >= end) return Status::kOk;
      if (Memory::load(&q_->error) != 0) return Status::kFailed;
      const Status status = keep_waiting(&waited);
      if (status != Status::kOk) return status;
    }
  }

  // Polls once. The caller looks at `done` and `error` again.
  MEP_HOST_DEVICE Status keep_waiting(Waited* waited) {
    poll();
    Memory::pause(++waited->polls);
    if (waited->polls % Memory::kPollsPerLook != 0) return Status::kOk;
    const uint64_t now = Memory::nanoseconds();
    if (now > patience_.deadline) return Status::kTimedOut;
    if (patience_.abort_word == nullptr || now < waited->next_abort_look) return Status::kOk;
    waited->next_abort_look = now + Memory::kAbortLookNs;
    return Memory::load_abort(patience_.abort_word) < patience_.epoch ? Status::kOk
                                                                      : Status::kAborted;
  }

  Queue* q_;
  Patience patience_;
};

}  // namespace mep::gpu_queue
