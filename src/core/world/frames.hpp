// Frames of the control thread. Each payload is written field by field, see byte_codec.hpp.
#pragma once

#include <cstdint>

#include "core/bootstrap/control_link.hpp"

namespace mep {

enum WorldFrame : uint16_t {
  kFrameWindow = kFirstWorldFrame,  // u64 id, u64 bytes, u32 generation, block blob; [descriptor]
  kFrameWindowTaken,                // u64 id, u32 generation
  kFrameRow,                        // membership::encode_row
  kFrameHeartbeat,                  // empty
  kFrameFlush,        // u64 comm, u64 channel, u64 seq, u32 source, then the contribution
  kFrameFlushEnd,     // u64 comm, u64 channel, u64 to_seq
  kFrameLeaving,      // u32 count, then per channel: u64 comm, u64 channel, u64 done
  kFrameLeavingHeld,  // empty: this rank holds all that the leaving one has completed
  // For and from newcomers.
  kFrameView,  // membership::encode_view
  kFrameComms,  // u32 count, then per comm: u64 id, text name, u64 epoch, u32 splits, u32 EP objects made,
                // u32 ranks, u32 slot each, u32 objects, block each
  kFrameReady,       // empty: the newcomer has taken all windows that it was offered
  kFrameOffered,     // empty: the newcomer was offered all windows that this rank shares with it
  kFrameCommEpochs,  // u32 count, then per comm: u64 id, u64 epoch; now
};

}  // namespace mep
