// The GPUs that CUDA finds, for mep_info.
#pragma once

namespace mep {

// Prints the GPUs as CUDA numbers them: what each is, which HCA is nearest, and which reach each other's memory,
// hence what ranks on them use; or why none can be used.
void print_gpus();

}  // namespace mep
