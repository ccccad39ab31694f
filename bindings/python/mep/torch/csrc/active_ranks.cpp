#include "active_ranks.hpp"

#include <cstring>

#include <c10/util/Exception.h>

namespace mep_torch {
namespace {

bool has_bit(const std::vector<uint64_t>& bits, int rank) {
  const auto at = static_cast<size_t>(rank);
  return at / 64 < bits.size() && (bits[at / 64] >> (at % 64) & 1) != 0;
}

}  // namespace

ActiveRanks::ActiveRanks(at::Tensor mirror, int size) : mirror_(std::move(mirror)) {
  TORCH_CHECK_VALUE(mirror_.scalar_type() == at::kInt && mirror_.is_contiguous(),
                    "mep: active_ranks must be a contiguous tensor of int32");
  TORCH_CHECK_VALUE(mirror_.numel() >= size, "mep: active_ranks has ", mirror_.numel(),
                    " entries for ", size, " ranks");
  ranks_ = at::zeros({mirror_.numel()}, at::kInt);
}

void ActiveRanks::show(const std::vector<int>& living) {
  const std::lock_guard lock(mutex_);
  ranks_.zero_();
  for (const int rank : living) ranks_.data_ptr<int32_t>()[rank] = 1;
  publish();
}

void ActiveRanks::keep(const std::vector<int>& living) {
  const std::lock_guard lock(mutex_);
  const at::Tensor before = ranks_.clone();
  ranks_.zero_();
  for (const int rank : living) {
    ranks_.data_ptr<int32_t>()[rank] = before.data_ptr<int32_t>()[rank];
  }
  publish();
}

void ActiveRanks::lose(const std::vector<uint64_t>& failed) {
  const std::lock_guard lock(mutex_);
  for (int rank = 0; rank < static_cast<int>(ranks_.numel()); ++rank) {
    if (has_bit(failed, rank)) ranks_.data_ptr<int32_t>()[rank] = 0;
  }
  publish();
}

at::Tensor ActiveRanks::hint(const std::vector<uint64_t>& failed) const {
  at::Tensor hint = at::zeros({mirror_.numel()}, at::kInt);
  for (int rank = 0; rank < static_cast<int>(hint.numel()); ++rank) {
    if (has_bit(failed, rank)) hint.data_ptr<int32_t>()[rank] = 1;
  }
  return hint;
}

void ActiveRanks::publish() {
  if (mirror_.is_cpu()) {
    // Also where PyTorch's inference mode forbids copy_().
    std::memcpy(mirror_.data_ptr(), ranks_.data_ptr(), ranks_.nbytes());
  } else {
    mirror_.view(-1).copy_(ranks_);
  }
}

}  // namespace mep_torch
