// Where kernels leave an operation's status. Plain C++.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/control.hpp"
#include "mep.h"

namespace mep::device {

// A record of the caller's or of the library's; null: none is wanted. `words` of its bitmap are written.
struct OpStatusPlace {
  mep_op_status_t* record;
  uint32_t words;
};

// bytes: at `record`, the header at least.
inline OpStatusPlace op_status_place(mep_op_status_t* record, uint64_t bytes, uint32_t ranks) {
  if (record == nullptr) return {};
  const uint64_t room = (bytes - sizeof(mep_op_status_t)) / sizeof(uint64_t);
  return {record, static_cast<uint32_t>(std::min<uint64_t>(room, (ranks + 63) / 64))};
}

// The library's own, for any ranks that kernels know.
struct OpStatus {
  mep_op_status_t head;
  uint64_t failed[kMaskWords];  // head.failed_words of them
};
static_assert(offsetof(OpStatus, failed) == sizeof(mep_op_status_t));

}  // namespace mep::device
