// The data of large operations over several hosts, see host_pipeline.hpp: the phase between the empty
// contributions at the beginning and the "finished" words. kDone: this rank has all its data, and has forwarded all
// that others get from it; its chunks are counted.
#pragma once

#include "core/coll/operation.hpp"

namespace mep {

class Collectives;

[[nodiscard]] Step broadcast_over_hosts(Collectives& comm, Operation& operation);
[[nodiscard]] Step allgather_over_hosts(Collectives& comm, Operation& operation);
[[nodiscard]] Step allreduce_over_hosts(Collectives& comm, Operation& operation);

}  // namespace mep
