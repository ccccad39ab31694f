#pragma once

namespace mep::sim {

// One view change in worlds of up to 4096 ranks: messages, bytes and rounds against the rank count.
int run_soak();

}  // namespace mep::sim
