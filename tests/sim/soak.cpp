#include "sim/soak.hpp"

namespace mep::sim {

int run_soak() { return 1; }

}  // namespace mep::sim
