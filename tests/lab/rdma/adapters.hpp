// For tests of verbs: the devices to use, in place of those near this process.
#pragma once

#include <string>

#include "transport/transport.hpp"

namespace mep::test {

inline std::function<mep_result_t(NearAdapters*)> only_adapters(const std::string& names) {
  return [names](NearAdapters* out) {
    *out = {names, 0};
    return MEP_SUCCESS;
  };
}

}  // namespace mep::test
