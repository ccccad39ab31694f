// The kernels that every processor can run.
#define MEP_SIMD_PORTABLE 1
#include "kernels/host/level_table.hpp"

namespace mep {

extern const KernelTable kPortableKernels;
constinit const KernelTable kPortableKernels = make_kernel_table();

}  // namespace mep
