// The transports that work in this process, in order of preference.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/peer_memory.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "mep.h"
#include "transport/transport.hpp"

namespace mep {

struct TransportSet {
  struct Opened {
    std::unique_ptr<Transport> transport;
    std::vector<std::byte> offer;
  };
  std::vector<Opened> all;
  std::string unusable;  // " (NAME: why)" of each that is wanted and does not work here
  bool puts_only = false;
  WatchedWord
      word;  // by which peers find that they can read this process; not made: none may, and it reads none
  [[nodiscard]] mep_result_t open(const ResolvedConfig& config);
  // A rank's offer to its peers when they connect: its cores and the transports' addresses.
  [[nodiscard]] mep_result_t make_offer(std::vector<std::byte>* offer) const;
};

}  // namespace mep
