// The environment's options for the connections of the tcp transport.
#pragma once

#include <string>

#include "mep.h"

namespace mep::tcp {

struct Options {
  std::string interfaces;          // MEP_NET_IF: globs of interface names; empty: all that are up
  bool encrypts = false;           // MEP_ENCRYPT: frames are encrypted too
  bool authenticates_all = false;  // MEP_AUTHENTICATE: those between ranks of one host too
};

[[nodiscard]] mep_result_t read_options(Options* out);

}  // namespace mep::tcp
