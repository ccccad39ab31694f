// How the tool itself fails: one exception with a text for people, caught once a rank.
#pragma once

#include <stdexcept>
#include <string>

#include "mep.h"

namespace mep::perf {

class PerfError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws when a call of the library failed; `what` names the call.
inline void require(mep_result_t result, const char* what) {
  if (result >= 0) return;
  throw PerfError(std::string(what) + ": " + mep_result_string(result) + ": " + mep_last_error());
}

}  // namespace mep::perf
