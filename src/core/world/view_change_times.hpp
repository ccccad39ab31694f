// When the steps of one view change happened on this rank: now_ns(), which is comparable between the
// processes of a host. Kept by the control thread, for the log and for mep_chaos.
#pragma once

#include <cstdint>

namespace mep {

struct ViewChangeTimes {
  uint64_t world_epoch = 0;  // of the new view; 0: none was installed yet
  uint64_t evidence_ns =
      0;  // the first sign of a death or a broken link; the freeze if there was none
  uint64_t freeze_ns = 0;     // all channels are stopped from here ...
  uint64_t frozen_ns = 0;     // ... to here
  uint64_t agreed_ns = 0;     // the proposal is known: catch-up, fence and prepare begin
  uint64_t prepared_ns = 0;   // this rank has accepted
  uint64_t committed_ns = 0;  // the decision is known
  uint64_t installed_ns = 0;  // user threads go on
};

}  // namespace mep
