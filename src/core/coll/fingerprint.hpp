// The hash that shows whether ranks made the same call: 22 bits of each contribution's signal word.
#pragma once

#include <cstdint>

#include "core/coll/operation.hpp"

namespace mep {

inline constexpr uint32_t kFingerprintMask = 0x3fffff;

// A digest of all that must be the same on all ranks.
uint32_t fingerprint_of(Collective kind, const CollectiveArgs& args);
// The same for a small call in which only the root gives. From it and the root the whole call can be read.
uint32_t fingerprint_from_root(Collective kind, const CollectiveArgs& args);
// The call of a rank that was its root. False: no call has this fingerprint.
bool read_call_of_root(uint32_t fingerprint, uint32_t root, Collective* kind, CollectiveArgs* args);

}  // namespace mep
