// Two ends over the software NIC, which copies by the processor: it is there on every machine.
#pragma once

#include <memory>

#include "queue/ends.hpp"

namespace mep::perf {

// `span` bytes of memory for source and for target of each end.
std::unique_ptr<Ends> make_soft_ends(size_t span);

}  // namespace mep::perf
