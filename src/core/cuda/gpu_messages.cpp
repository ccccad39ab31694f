#include "core/cuda/gpu_messages.hpp"

#include <algorithm>

#include "base/status.hpp"
#include "core/cuda/pinned_word.hpp"

namespace mep {

using device::MessagePair;
using device::MessageState;

mep_result_t GpuMessages::open(int32_t device, const device::CollState* coll) {
  MEP_TRY(DeviceMemory::create(device, sizeof(MessageState), &memory_));
  MEP_TRY(PinnedMemory::create(sizeof(device::MessagePost), &pinned_));
  state_ = reinterpret_cast<MessageState*>(memory_->data());
  post_ = static_cast<device::MessagePost*>(pinned_->data());
  MessageState first{};
  first.post = post_;
  first.coll = coll;
  return copy_to_device(state_, &first, sizeof first);
}

// The same on both ranks of a pair, another one when either of them was replaced.
uint64_t GpuMessages::mark_of(uint64_t incarnation) const {
  const uint64_t both = comm_.world().identity().incarnation ^ incarnation;
  constexpr uint32_t kMarkBits = 64 - device::kMessageMarkShift;
  return (both * 0x9e3779b97f4a7c15u) >> (64 - kMarkBits) | 1;
}

mep_result_t GpuMessages::meet(const CommView& view, void* stream) {
  for (const uint32_t rank : view.live) {
    const uint64_t mark = mark_of(view.incarnations[rank]);
    if (marks_[rank].load(std::memory_order_relaxed) == mark) continue;
    MessagePair pair{};
    pair.mark = mark;
    MEP_TRY(copy_in_order(&state_->pair[rank], &pair, sizeof pair, stream));
    marks_[rank].store(mark, std::memory_order_relaxed);
  }
  return MEP_SUCCESS;
}

mep_result_t GpuMessages::enqueue(std::span<device::Message> messages, uint32_t most_ctas,
                                  void* stream) {
  MEP_TRY(device::launch_messages(messages, state_, most_ctas, stream));
  bool capturing = false;
  MEP_TRY(is_capturing(stream, &capturing));
  return capturing ? MEP_SUCCESS : last_[stream].record(stream);
}

mep_result_t GpuMessages::take_failure() {
  const uint64_t count = load_pinned(&post_->failures);
  if (count == failures_told_) return MEP_SUCCESS;
  const uint64_t oldest = count > device::kMessageFailures ? count - device::kMessageFailures : 0;
  const uint64_t first = std::max(failures_told_, oldest) + 1;
  failures_told_ = count;
  const auto result = static_cast<mep_result_t>(post_->results[first % device::kMessageFailures]);
  return fail(result, "a message on the GPU of comm %s ended with %s", comm_.name().c_str(),
              mep_result_string(result));
}

bool GpuMessages::busy() const {
  return std::any_of(last_.begin(), last_.end(),
                     [](const auto& each) { return !each.second.has_passed(); });
}

void GpuMessages::keep(const CommView& view) {
  for (uint32_t rank = 0; rank < marks_.size(); ++rank) {
    const uint64_t mark = marks_[rank].load(std::memory_order_relaxed);
    const bool stays = view.is_live(rank) && mark_of(view.incarnations[rank]) == mark;
    if (mark != 0 && !stays) store_pinned(&post_->gone[rank], mark);
  }
}

void GpuMessages::end(mep_result_t result) {
  store_pinned(reinterpret_cast<uint64_t*>(&post_->ended),
               static_cast<uint64_t>(static_cast<int64_t>(result)));
}

}  // namespace mep
