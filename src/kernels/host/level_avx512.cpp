// The kernels for AVX-512 F, BW, DQ and VL; this file alone is compiled for them.
#include "kernels/host/level_table.hpp"

#if !defined(MEP_SIMD_AVX512)
#error "compile this file with -mavx512f -mavx512bw -mavx512dq -mavx512vl"
#endif

namespace mep {

extern const KernelTable kAvx512Kernels;
constinit const KernelTable kAvx512Kernels = make_kernel_table();

}  // namespace mep
