// The kernels for AVX2 and F16C; this file alone is compiled for them.
#include "kernels/host/level_table.hpp"

#if !defined(MEP_SIMD_AVX2)
#error "compile this file with -mavx2 -mf16c"
#endif

namespace mep {

extern const KernelTable kAvx2Kernels;
constinit const KernelTable kAvx2Kernels = make_kernel_table();

}  // namespace mep
