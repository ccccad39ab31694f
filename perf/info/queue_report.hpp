// Which adapters can execute queues that a GPU posts to, for mep_info --queues.
#pragma once

namespace mep {

void print_queues();

}  // namespace mep
