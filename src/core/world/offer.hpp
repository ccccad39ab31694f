// A rank's offer to its peers when they connect: the cores that it may use, and how its transports are reached. The
// handshake carries it sealed, in Details::offer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "transport/transport.hpp"

namespace mep {

// With whom a rank can share its windows, as far as they do the same.
enum class Shares : uint8_t { kNothing, kProcess, kHost };

struct Offer {
  std::vector<uint64_t> affinity;
  uint32_t quota = 0;  // whole cores, 0: none
  struct Entry {
    std::string name;
    std::vector<std::byte> blob;
  };
  std::vector<Entry> transports;
  Shares shares = Shares::kNothing;
  // Where this process's watched word is and what it shows (peer_memory.hpp); 0: nobody may read its memory.
  uint64_t word_at = 0;
  uint64_t word = 0;

  // See Remote.
  uint64_t sharing(const PeerIdentity& identity) const;
};

std::vector<std::byte> encode_offer(const Offer& offer);
// Safe on any bytes. False: nothing of `out` may be used.
bool decode_offer(std::span<const std::byte> bytes, Offer* out);

}  // namespace mep
