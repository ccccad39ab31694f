// Notes what this rank has completed on channels that it has closed. A peer that is still in the last operation of
// such a channel needs it of the others, so this rank may not be gone before the peer has it: a rank that leaves
// tells what it has done on them. It is asked as soon as the channel is closed, and what all peers hold is forgotten:
// what is kept is what somebody still waits for, however many channels come and go.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "core/membership/row.hpp"
#include "core/membership/slot_set.hpp"

namespace mep {

class ClosedChannels {
 public:
  // Channels closed together, by their number; `awaited`: the peers that are to be asked for it. 0: there
  // is nothing to ask for.
  uint64_t add(std::vector<membership::ChannelState> channels, const membership::SlotSet& awaited);
  // The peer holds all of them; a number that is not known is ignored, for it comes from the peer.
  void held(uint32_t slot, uint64_t number);
  // Members that are gone need nothing.
  void keep(const membership::SlotSet& members);
  void append_to(std::vector<membership::ChannelState>* channels) const;
  size_t size() const { return closed_.size(); }

 private:
  struct Closed {
    std::vector<membership::ChannelState> channels;
    membership::SlotSet awaited;
  };
  std::map<uint64_t, Closed> closed_;  // by number
  uint64_t last_number_ = 0;
};

}  // namespace mep
