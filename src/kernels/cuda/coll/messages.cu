// The kernel of messages. A lane of a queue is a worker; a CTA has one or several, and looks at the words of all of
// them before it moves a slot of each that can go on. So no worker holds up another, however few CTAs there are.
#include <cuda_runtime.h>

#include <algorithm>

#include "base/status.hpp"
#include "kernels/cuda/coll/copy.cuh"
#include "kernels/cuda/coll/messages.hpp"

namespace mep::device {
namespace {

constexpr uint32_t kMostWorkers = kMostQueues * kMessageLanes;
constexpr uint32_t kLeastCtas = 16;
constexpr uint32_t kThreads = 256;
constexpr uint32_t kWorkersOfCta = (kMostWorkers + kLeastCtas - 1) / kLeastCtas;
static_assert(kWorkersOfCta <= kThreads, "each worker has a thread");
// A look at the host crosses the bus, and one at the clock takes as long as many at words.
constexpr uint32_t kLooksPerHostLook = 64;

__device__ Team team() {
  return {threadIdx.x, kThreads, kDataBarrier};
}

uint32_t queue_of(const Message& message) {
  return message.peer * 2u + message.is_send;
}

// The same in all lanes of a message.
struct MessageHead {
  uint64_t bytes;
  uint32_t tag;
  uint32_t dtype;
};
static_assert(sizeof(MessageHead) == kMessageHeadBytes);

// One lane of one queue. Its owner is thread 0 between barriers; all threads read it.
struct Worker {
  uint32_t message, end;  // of the batch: the one that is under way, and behind the queue's last
  uint32_t lane;
  uint32_t slot;    // of the message
  uint64_t number;  // of the slot, since the pair met
  uint64_t bytes;   // a receive: of the message that is under way
  int32_t refused;  // why it is not taken into the buffer; 0: it is
  int32_t result;   // of the worker: an error ends it
  uint64_t since;   // when it was seen to wait for its next slot; 0: it was not
};

struct Cta {
  Worker worker[kWorkersOfCta];
  uint32_t ready[kWorkersOfCta];
  uint32_t workers, left;
};

// A message goes by as many lanes as it has pieces for. A piece fills the threads of a block once.
__device__ uint64_t chunk_of(const CollLayout& layout, uint64_t bytes) {
  constexpr uint64_t kLeast = uint64_t{kThreads} * 16;
  constexpr uint64_t kLines = uint64_t{kMessageLanes} * 16;
  const uint64_t even = (bytes + kLines - 1) / kLines * 16;
  return even <= kLeast ? kLeast : min(even, layout.message_chunk_bytes);
}

__device__ uint64_t slots_of(const CollLayout& layout, uint64_t bytes, uint32_t lane) {
  const uint64_t chunk = chunk_of(layout, bytes);
  const uint64_t chunks = (bytes + chunk - 1) / chunk;
  return chunks <= lane ? 1 : (chunks - lane + kMessageLanes - 1) / kMessageLanes;
}

// The arguments that all threads of the kernel have in common.
struct Batch {
  uint32_t queues;
  const uint16_t* first;
  const Message* messages;
  MessageState* state;
  const CollState* coll;

  __device__ const Message& message(const Worker& worker) const { return messages[worker.message]; }
  __device__ MessagePair& pair(const Worker& worker) const {
    return state->pair[message(worker).peer];
  }
  __device__ uint8_t* own() const { return coll->windows[coll->rank]; }
  // The word that the worker waits for, in this rank's window, and the one that it writes, in the peer's.
  __device__ const uint64_t* word_here(const Worker& worker) const {
    const Message& m = message(worker);
    return reinterpret_cast<const uint64_t*>(
        own() + coll->layout.message_word(m.is_send != 0, m.peer, worker.lane));
  }
  __device__ uint64_t* word_there(const Worker& worker) const {
    const Message& m = message(worker);
    return reinterpret_cast<uint64_t*>(
        coll->windows[m.peer] + coll->layout.message_word(m.is_send == 0, coll->rank, worker.lane));
  }
  __device__ uint8_t* slot(const Worker& worker) const {
    const Message& m = message(worker);
    const bool sends = m.is_send != 0;
    return coll->windows[sends ? m.peer : coll->rank] +
           coll->layout.message_slot(sends ? coll->rank : m.peer, worker.lane,
                                     worker.number % kMessageSlots);
  }
};

// --- Waiting --------------------------------------------------------------------------------------

// The word here: slots of the peer, and whether it has given up.
struct Seen {
  uint64_t slots;
  bool is_broken;
};
__device__ Seen read_word(uint64_t word, uint64_t mark) {
  if (word >> kMessageMarkShift != mark) return {0, false};  // nothing yet
  return {word & (kMessageBroken - 1), (word & kMessageBroken) != 0};
}

// Why a worker that cannot go on gives up; 0: it waits on.
__device__ int32_t outlook(const Batch& b, Worker& worker, bool is_broken) {
  if (is_broken) return MEP_ERR_TIMEOUT;  // the peer waited too long
  const MessagePost* post = b.state->post;
  const auto ended =
      static_cast<int64_t>(load_word(reinterpret_cast<const uint64_t*>(&post->ended)));
  if (ended != 0) return static_cast<int32_t>(ended);
  if (load_word(&post->gone[b.message(worker).peer]) == b.pair(worker).mark) {
    return MEP_ERR_PEER_FAILED;
  }
  const uint64_t patience = b.coll->timeout_ns;
  const uint64_t now = nanoseconds();
  if (worker.since == 0) worker.since = now;
  const bool is_late = patience != 0 && now - worker.since > patience;
  return is_late ? int32_t{MEP_ERR_TIMEOUT} : 0;
}

// By the thread of a worker: whether a slot can be moved now.
__device__ bool is_ready(const Batch& b, Worker* worker, bool looks_at_host) {
  const Seen seen = read_word(load_word_acquire(b.word_here(*worker)), b.pair(*worker).mark);
  const bool sends = b.message(*worker).is_send != 0;
  const bool ready = sends ? worker->number - seen.slots < kMessageSlots && !seen.is_broken
                           : seen.slots > worker->number;
  if (!ready && (looks_at_host || seen.is_broken)) {
    worker->result = outlook(b, *worker, seen.is_broken);
  }
  return ready;
}

// --- Slots ----------------------------------------------------------------------------------------

// The part of a message of `bytes` that the worker's slot has.
struct Part {
  uint64_t at, bytes;
};
__device__ Part part_of(const CollLayout& layout, const Worker& worker, uint64_t bytes) {
  const uint64_t chunk = chunk_of(layout, bytes);
  const uint64_t at = (worker.lane + uint64_t{worker.slot} * kMessageLanes) * chunk;
  const uint64_t left = bytes > at ? bytes - at : 0;
  return {at, left < chunk ? left : chunk};
}

__device__ void fill_slot(const Batch& b, const Worker& worker) {
  const Message& m = b.message(worker);
  uint8_t* slot = b.slot(worker);
  if (worker.slot == 0 && threadIdx.x == 0) {
    *reinterpret_cast<MessageHead*>(slot) = {m.bytes, static_cast<uint32_t>(m.tag), m.dtype};
  }
  const Part part = part_of(b.coll->layout, worker, m.bytes);
  move_from_user(
      team(), static_cast<const uint8_t*>(m.buffer), part.at, m.bytes, 0, part.bytes,
      [&](uint64_t i, const uint4& pack) { store_window(slot + sizeof(MessageHead) + i, pack); });
}

// By thread 0, before the first slot of a message is emptied.
__device__ void read_head(const Batch& b, Worker* worker) {
  const Message& m = b.message(*worker);
  const uint4 bits = load_window(b.slot(*worker));
  worker->bytes = bits.x | uint64_t{bits.y} << 32;
  const bool is_other_tag = m.tag != MEP_ANY_TAG && static_cast<uint32_t>(m.tag) != bits.z;
  worker->refused = 0;
  if (worker->bytes > m.bytes) worker->refused = MEP_ERR_CAPACITY;
  if (bits.w != m.dtype || is_other_tag) worker->refused = MEP_ERR_MISMATCH;
}

__device__ void empty_slot(const Batch& b, const Worker& worker) {
  if (worker.refused != 0) return;
  const Message& m = b.message(worker);
  const Part part = part_of(b.coll->layout, worker, worker.bytes);
  move_to_user(team(), b.slot(worker) + sizeof(MessageHead), static_cast<uint8_t*>(m.buffer),
               part.at, worker.bytes, 0, part.bytes);
}

// By one thread.
__device__ void tell_failure(MessageState* state, int32_t result) {
  MessagePost* post = state->post;
  const uint64_t number =
      atomicAdd(reinterpret_cast<unsigned long long*>(&state->failures), 1ull) + 1;
  while (load_gpu_acquire(&state->told_failures) != number - 1) let_others_run();
  *static_cast<volatile int32_t*>(&post->results[number % kMessageFailures]) = result;
  store_system_release(&post->failures, number);
  __threadfence();
  store_gpu(&state->told_failures, number);
}

// By thread 0, behind a barrier after the slot was moved.
__device__ void advance(const Batch& b, Worker* worker) {
  const Message& m = b.message(*worker);
  ++worker->number;
  store_word_release(b.word_there(*worker),
                     b.pair(*worker).mark << kMessageMarkShift | worker->number);
  worker->since = 0;
  const uint64_t bytes = m.is_send != 0 ? m.bytes : worker->bytes;
  if (++worker->slot < slots_of(b.coll->layout, bytes, worker->lane)) return;
  // All lanes have the same head.
  if (m.is_send == 0 && worker->lane == 0 && worker->refused != 0) {
    tell_failure(b.state, worker->refused);
  }
  worker->slot = 0;
  ++worker->message;
}

// By the worker's thread: it has given up. The first of its pair and way tells the host; each tells its peer, whose lane is
// out of step like this one.
__device__ void give_up(const Batch& b, Worker* worker) {
  MessagePair& pair = b.pair(*worker);
  const int32_t result = worker->result;
  if (result != MEP_ERR_PEER_FAILED) {
    store_word_release(b.word_there(*worker),
                       pair.mark << kMessageMarkShift | kMessageBroken | worker->number);
  }
  if (atomicCAS(&pair.broken[b.message(*worker).is_send], 0, result) == 0) {
    tell_failure(b.state, result);
  }
  worker->end = worker->message;
}

// --- The kernel -----------------------------------------------------------------------------------

__device__ void begin_workers(const Batch& b, Cta* cta) {
  const uint32_t all = b.queues * kMessageLanes;
  if (threadIdx.x == 0) {
    cta->workers = blockIdx.x < all ? (all - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
  }
  team().sync();
  const uint32_t i = threadIdx.x;
  if (i < cta->workers) {
    const uint32_t index = blockIdx.x + i * gridDim.x;
    const uint32_t queue = index / kMessageLanes;
    Worker& worker = cta->worker[i];
    worker = {b.first[queue], b.first[queue + 1], index % kMessageLanes, 0, 0, 0, 0, 0, 0};
    const uint32_t sends = b.message(worker).is_send;
    const MessagePair& pair = b.pair(worker);
    worker.number = sends != 0 ? pair.sent[worker.lane] : pair.received[worker.lane];
    worker.result = pair.mark == 0 ? int32_t{MEP_ERR_PEER_FAILED} : pair.broken[sends];
    if (worker.result != 0) {
      if (worker.lane == 0) tell_failure(b.state, worker.result);
      worker.end = worker.message;
    }
  }
  team().sync();
}

// All data threads: a slot of each worker that can go on.
__device__ void move_slots(const Batch& b, Cta* cta) {
  for (uint32_t i = 0; i < cta->workers; ++i) {
    if (cta->ready[i] == 0) continue;
    Worker& worker = cta->worker[i];
    if (b.message(worker).is_send != 0) {
      fill_slot(b, worker);
    } else {
      if (threadIdx.x == 0 && worker.slot == 0) read_head(b, &worker);
      team().sync();
      empty_slot(b, worker);
    }
    team().sync();
    if (threadIdx.x == 0) advance(b, &worker);
  }
}

__device__ void work(const Batch& b, Cta* cta) {
  begin_workers(b, cta);
  for (uint32_t looks = 1;; ++looks) {
    const bool looks_at_host = looks % kLooksPerHostLook == 0;
    if (threadIdx.x == 0) cta->left = 0;
    team().sync();
    const uint32_t i = threadIdx.x;
    if (i < cta->workers) {
      Worker& worker = cta->worker[i];
      const bool works = worker.message < worker.end;
      cta->ready[i] = works && is_ready(b, &worker, looks_at_host) ? 1 : 0;
      if (works && cta->ready[i] == 0 && worker.result != 0) {
        give_up(b, &worker);
      } else if (works) {
        atomicAdd(&cta->left, 1u);
      }
    }
    team().sync();
    if (cta->left == 0) break;
    move_slots(b, cta);
    let_others_run();
    team().sync();
  }
  const uint32_t i = threadIdx.x;
  if (i >= cta->workers) return;
  const Worker& worker = cta->worker[i];
  const uint32_t index = blockIdx.x + i * gridDim.x;
  const Message& m = b.messages[b.first[index / kMessageLanes]];
  MessagePair& pair = b.state->pair[m.peer];
  (m.is_send != 0 ? pair.sent : pair.received)[worker.lane] = worker.number;
}

template <uint32_t kMost>
__global__ void __launch_bounds__(kThreads)
    messages_entry(const __grid_constant__ MessageBatch<kMost> batch, MessageState* state) {
  __shared__ Cta cta;
  work({batch.queues, batch.first, batch.message, state, state->coll}, &cta);
}

template <uint32_t kMost>
void launch_batch(std::span<const Message> messages, MessageState* state, uint32_t most_ctas,
                  void* stream) {
  MessageBatch<kMost> batch;
  batch.messages = static_cast<uint32_t>(messages.size());
  batch.queues = 0;
  std::copy(messages.begin(), messages.end(), batch.message);
  for (uint32_t i = 0; i < batch.messages; ++i) {
    const bool begins = i == 0 || queue_of(messages[i]) != queue_of(messages[i - 1]);
    if (begins) batch.first[batch.queues++] = static_cast<uint16_t>(i);
  }
  batch.first[batch.queues] = static_cast<uint16_t>(batch.messages);
  const uint32_t ctas = std::min(batch.queues * kMessageLanes, std::max(most_ctas, kLeastCtas));
  launch_kernel(messages_entry<kMost>, ctas, kThreads, 0, static_cast<cudaStream_t>(stream), batch,
                state);
}

#if CUDART_VERSION >= 12010
constexpr uint32_t kMostMessages = kManyMessages;
#else
constexpr uint32_t kMostMessages = kFewMessages;
#endif

}  // namespace

std::span<const void* const> messages_kernels() {
  static const void* const kernels[] = {
      reinterpret_cast<const void*>(messages_entry<kFewMessages>),
      reinterpret_cast<const void*>(messages_entry<kMostMessages>)};
  return kernels;
}

uint32_t most_messages() {
  return kMostMessages;
}

mep_result_t launch_messages(std::span<Message> messages, MessageState* state, uint32_t most_ctas,
                             void* stream) {
  std::stable_sort(messages.begin(), messages.end(),
                   [](const Message& a, const Message& b) { return queue_of(a) < queue_of(b); });
  if (messages.size() <= kFewMessages) {
    launch_batch<kFewMessages>(messages, state, most_ctas, stream);
  } else {
    launch_batch<kMostMessages>(messages, state, most_ctas, stream);
  }
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return MEP_SUCCESS;
  return mep::fail(MEP_ERR_DEVICE, "messages cannot be launched: %s", cudaGetErrorString(error));
}

}  // namespace mep::device
