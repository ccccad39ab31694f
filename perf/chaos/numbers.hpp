// The references that mep_chaos shares with the tests. Nothing here is the library's.
#pragma once

#include "support/coll_reference.hpp"

namespace mep::programs {

using mep_reference::element_bytes;
using mep_reference::make_element;
using mep_reference::make_elements;
using mep_reference::mix;
using mep_reference::RandomStream;
using mep_reference::scrambled;

}  // namespace mep::programs
