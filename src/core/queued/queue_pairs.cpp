#include "core/queued/queue_pairs.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/guarded.hpp"
#include "base/status.hpp"

namespace mep {
namespace {

constexpr uint64_t kFailMs = 1000;  // for all pairs that a call ends
constexpr size_t kGoneBytes =
    1;  // a note of such a length: the object has ended. No address of a pair is so short

}  // namespace

QueuePairs::~QueuePairs() {
  finish();
  tell_joiners();
  end();
  if (windows_.own() != nullptr) comm_.world().windows().set_fence(windows_.own()->id(), {});
  windows_.flush_puts();
}

// A joiner may have heard of this object, and wait for an address.
void QueuePairs::tell_joiners() {
  if (windows_.own() == nullptr || !nic_->is_adapter()) return;
  (void)guarded([&]() -> mep_result_t {
    WorldWindows& windows = comm_.world().windows();
    std::vector<uint32_t> slots;
    {
      const std::lock_guard lock(mutex_);
      for (uint32_t rank = 0; rank < pairs_.size(); ++rank) {
        if (!has_pair(rank) || pairs_[rank].served != 0) continue;
        slots.push_back(comm_.slots()[rank]);
        windows.set_note(windows_.own()->id(), slots.back(), std::vector<std::byte>(kGoneBytes));
      }
    }
    return slots.empty() ? MEP_SUCCESS : windows.send(windows_.own(), slots);
  });
}

size_t QueuePairs::ring_bytes(uint32_t ranks, uint32_t entries) const {
  return ranks * nic_->bytes_of(entries);
}

bool QueuePairs::has_pair(uint32_t rank) const {
  return rank != comm_.rank() && (mapped_.empty() || !mapped_[rank]);
}

mep_result_t QueuePairs::use_inbox(const gpu_queue::MemoryRange& inbox) {
  MEP_TRY(nic_->use_window(inbox));
  inbox_ = static_cast<std::byte*>(inbox.address);
  return MEP_SUCCESS;
}

// A window carries the addresses of pairs, also where the inbox lies elsewhere.
mep_result_t QueuePairs::offer(uint64_t id, size_t inbox_bytes, const Memory& memory) {
  const bool has_inbox = inbox_ != nullptr;
  MEP_TRY(windows_.create(id, has_inbox ? sizeof(uint64_t) : inbox_bytes));
  if (!has_inbox) MEP_TRY(use_inbox({windows_.data(), inbox_bytes}));
  memory_ = memory;
  queues_.resize(comm_.size());
  reached_.resize(comm_.size());
  pairs_.resize(comm_.size());
  fenced_.resize(comm_.size());
  for (uint32_t rank = 0; rank < comm_.size(); ++rank) {
    if (has_pair(rank)) MEP_TRY(make_pair(rank));
  }
  if (nic_->is_adapter()) {
    comm_.world().windows().set_fence(
        id, [this](uint32_t slot, uint64_t incarnation) { return fence(slot, incarnation); });
  }
  return comm_.world().windows().offer(windows_.own(), comm_.slots());
}

// Its address goes to the peer with each offer of the window.
mep_result_t QueuePairs::make_pair(uint32_t rank) {
  const size_t bytes = nic_->bytes_of(memory_.entries);
  std::byte* ring = memory_.rings + rank * bytes;
  std::memset(ring, 0, bytes);
  gpu_queue::Queue queue{};
  std::unique_ptr<gpu_queue::NicPair> pair;
  MEP_TRY(nic_->make({ring, memory_.entries, memory_.ready + size_t{rank} * memory_.entries,
                      comm_.world().config().suspect_ms},
                     &queue, &pair));
  comm_.world().windows().set_note(windows_.own()->id(), comm_.slots()[rank], pair->address());
  const std::lock_guard lock(mutex_);
  queues_[rank] = queue;
  pairs_[rank] = {std::move(pair)};
  return MEP_SUCCESS;
}

mep_result_t QueuePairs::connect(const CommView& view, const Deadline& deadline) {
  MEP_TRY(windows_.receive(view.incarnations, deadline));
  World& world = comm_.world();
  for (const uint32_t rank : view.live) {
    if (!windows_.has(rank)) continue;
    const mep_result_t reached = reach(rank, view, deadline);
    // A joiner that is not in the view yet goes on without a member that leaves it meanwhile, and with an object that members
    // have destroyed meanwhile: it ends with the comm.
    const bool has_left =
        world.view().snapshot().incarnation(comm_.slots()[rank]) != view.incarnations[rank];
    if (world.admissions().entering() && (has_left || reached == MEP_ERR_NOT_FOUND)) continue;
    MEP_TRY(reached);
  }
  return MEP_SUCCESS;
}

bool QueuePairs::reaches(const CommView& view) const {
  return std::all_of(view.live.begin(), view.live.end(),
                     [&](uint32_t rank) { return reaches(view, rank); });
}

bool QueuePairs::has_ended(const CommView& view) const {
  for (uint32_t rank = 0; rank < pairs_.size(); ++rank) {
    if (pairs_[rank].is_used && !reaches(view, rank)) return true;
  }
  return false;
}

mep_result_t QueuePairs::reach(const CommView& view, const Deadline& deadline,
                               std::vector<uint32_t>* added) {
  MEP_TRY(replace_ended(view));
  MEP_TRY(windows_.reach_joiners(view, deadline, "queues of GPUs"));
  for (const uint32_t rank : view.live) {
    if (reaches(view, rank) || !windows_.reaches(rank, view.incarnations[rank])) continue;
    const mep_result_t reached = reach(rank, view, deadline);
    if (reached == MEP_ERR_NOT_FOUND) continue;
    MEP_TRY(reached);
    if (has_pair(rank)) added->push_back(rank);
  }
  return MEP_SUCCESS;
}

// A process that has come before there was another pair got no address with the window: it gets the window once more.
mep_result_t QueuePairs::replace_ended(const CommView& view) {
  for (uint32_t rank = 0; rank < pairs_.size(); ++rank) {
    if (!pairs_[rank].is_used || reaches(view, rank)) continue;
    std::unique_ptr<gpu_queue::NicPair> ended;
    {
      const std::lock_guard lock(mutex_);
      // Unless keep() has been called for the view.
      if (pairs_[rank].served != 0) (void)fail(rank, Deadline::after_ms(kFailMs));
      ended = std::exchange(pairs_[rank], {}).pair;
    }
    ended.reset();
    reached_[rank] = 0;
    MEP_TRY(make_pair(rank));
    if (!nic_->is_adapter()) continue;
    MEP_TRY(comm_.world().windows().send(windows_.own(), {&comm_.slots()[rank], 1}));
  }
  return MEP_SUCCESS;
}

mep_result_t QueuePairs::reach(uint32_t rank, const CommView& view, const Deadline& deadline) {
  const uint64_t incarnation = view.incarnations[rank];
  if (has_pair(rank)) {
    const Remote& remote = windows_[rank];
    std::vector<std::byte> address;
    if (nic_->is_adapter()) {
      MEP_TRY(comm_.world().windows().await_note(remote.slot, incarnation, remote.window, deadline,
                                                 &address));
      if (address.size() == kGoneBytes) {
        return mep::fail(MEP_ERR_NOT_FOUND, "rank %u has destroyed what the queue is of", rank);
      }
    }
    const mep_result_t served =
        serve({remote.mapped, remote.transport, remote.slot, remote.window, address}, rank, view);
    if (served != MEP_SUCCESS) return add_context(served, "queue to rank %u", rank);
  }
  reached_[rank] = incarnation;
  return MEP_SUCCESS;
}

mep_result_t QueuePairs::serve(const gpu_queue::PeerEnd& peer, uint32_t rank,
                               const CommView& view) {
  {
    const std::lock_guard lock(mutex_);
    const bool has_left = kept_epoch_ > view.epoch && members_[rank] != view.incarnations[rank];
    if (has_ended_ || has_left || fenced_[rank] == view.incarnations[rank]) return MEP_SUCCESS;
    pairs_[rank].is_used = true;
    pairs_[rank].served = view.incarnations[rank];
  }
  // Without the mutex, which the control thread takes: an adapter may be slow.
  return pairs_[rank].pair->connect(peer, &queues_[rank]);
}

bool QueuePairs::find_error(uint32_t rank, gpu_queue::QueueError* error) {
  using gpu_queue::CompletionOpcode;
  const std::lock_guard lock(mutex_);
  if (pairs_[rank].served == 0) return false;
  const gpu_queue::CompletionEntry* entry = queues_[rank].completion;
  const auto word = gpu_queue::SystemMemory::load_completion(&entry->counter_opcode);
  const CompletionOpcode opcode = opcode_of(word);
  if (opcode == CompletionOpcode::kInvalid || opcode == CompletionOpcode::kRequest) return false;
  const auto syndromes = gpu_queue::SystemMemory::load_completion(&entry->syndromes);
  *error = gpu_queue::unpack_error(gpu_queue::pack_error(word, syndromes));
  return true;
}

void QueuePairs::finish() const {
  for (const Pair& pair : pairs_) {
    if (pair.is_used) pair.pair->finish();
  }
}

void QueuePairs::keep(const CommView& view) {
  const std::lock_guard lock(mutex_);
  const Deadline deadline = Deadline::after_ms(kFailMs);
  members_ = view.incarnations;
  kept_epoch_ = view.epoch;
  for (uint32_t rank = 0; rank < pairs_.size(); ++rank) {
    const uint64_t served = pairs_[rank].served;
    if (served != 0 && served != members_[rank]) (void)fail(rank, deadline);
  }
}

mep_result_t QueuePairs::fence(uint32_t slot, uint64_t incarnation) {
  const std::vector<uint32_t>& slots = comm_.slots();
  const auto found = std::find(slots.begin(), slots.end(), slot);
  if (found == slots.end()) return MEP_SUCCESS;
  const auto rank = static_cast<uint32_t>(found - slots.begin());
  const std::lock_guard lock(mutex_);
  fenced_[rank] = incarnation;
  return pairs_[rank].served == incarnation ? fail(rank, Deadline::after_ms(kFailMs)) : MEP_SUCCESS;
}

void QueuePairs::end() {
  const std::lock_guard lock(mutex_);
  const Deadline deadline = Deadline::after_ms(kFailMs);
  has_ended_ = true;
  for (uint32_t rank = 0; rank < pairs_.size(); ++rank) {
    if (pairs_[rank].served != 0) (void)fail(rank, deadline);
  }
}

// Under the mutex. The next process in this place does not get the pair's address.
mep_result_t QueuePairs::fail(uint32_t rank, const Deadline& deadline) {
  pairs_[rank].served = 0;
  comm_.world().windows().set_note(windows_.own()->id(), comm_.slots()[rank], {});
  return pairs_[rank].pair->fail(deadline);
}

}  // namespace mep
