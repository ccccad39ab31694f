#include "core/coll/landings.hpp"

#include <algorithm>

#include "base/status.hpp"
#include "base/test_delay.hpp"

namespace mep {

void Landings::open(const std::vector<Remote>* remotes) {
  remotes_ = remotes;
  numbers_.assign(remotes->size(), 0);
  sent_.assign(remotes->size(), {});
}

void Landings::begin() {
  close();
  std::fill(sent_.begin(), sent_.end(), Sent{});
}

void Landings::offer(uint32_t source, std::byte* memory, size_t bytes) {
  const Remote& remote = (*remotes_)[source];
  if (remote.mapped != nullptr || remote.transport == nullptr) return;
  is_open_ = true;
  numbers_[source] = remote.transport->open_target(remote.slot, memory, bytes);
}

void Landings::close() {
  if (!is_open_) [[likely]]
    return;
  for (uint32_t source = 0; source < numbers_.size(); ++source) {
    if (numbers_[source] == 0) continue;
    MEP_TEST_DELAY_POINT("landing ends");
    const Remote& remote = (*remotes_)[source];
    remote.transport->close_target(remote.slot, numbers_[source]);
    numbers_[source] = 0;
  }
  is_open_ = false;
}

mep_result_t Landings::put_part(uint32_t target, uint64_t number, const std::byte* block,
                                size_t bytes, bool* moved) {
  Sent& sent = sent_[target];
  const Remote& remote = (*remotes_)[target];
  *moved = false;
  Completion completion;
  if (sent.posted != 0) {
    // A peer that is lost takes what is put to it; the membership judges.
    const bool is_known =
        remote.transport->completion(remote.slot, false, &completion) == MEP_SUCCESS;
    if (is_known && completion.completed < sent.posted) return MEP_SUCCESS;
    sent.posted = 0;
  }
  const size_t part = std::min(kPartBytes, bytes - sent.bytes);
  MEP_TRY(remote.put_to_target(number, sent.bytes, block + sent.bytes, part));
  sent.bytes += part;
  *moved = true;
  if (remote.transport->completion(remote.slot, false, &completion) == MEP_SUCCESS) {
    sent.posted = completion.posted;
  }
  return MEP_SUCCESS;
}

}  // namespace mep
