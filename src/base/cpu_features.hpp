// Which instruction set the kernels use. Every level gives the same bits; the level is only a
// matter of speed. MEP_SIMD=portable|avx2|avx512 lowers it (never raises it above what CPU and OS
// support).
#pragma once

#include <cstdint>

namespace mep {

enum class SimdLevel {
  kPortable,  // baseline of the architecture
  kAvx2,      // AVX2 and F16C
  kAvx512,    // the above and AVX-512 F, BW, VL, DQ
};

// Features that the CPU offers and whose registers the operating system saves on a context switch.
struct CpuFeatures {
  bool avx2 = false;
  bool f16c = false;
  bool avx512f = false;
  bool avx512bw = false;
  bool avx512vl = false;
  bool avx512dq = false;
};

// The words that CPUID and XGETBV give, so that a decision for any CPU can be tested on any other.
struct CpuidWords {
  uint32_t leaf1_ecx = 0;
  uint32_t leaf7_ebx = 0;
  uint64_t xcr0 = 0;  // 0 unless leaf1_ecx has OSXSAVE
};

CpuFeatures decode_cpu_features(const CpuidWords& words);
SimdLevel highest_simd_level(const CpuFeatures& features);

const CpuFeatures& cpu_features();

// The level that MEP_SIMD=`text` gives on a CPU of level `highest`; warns where it is ignored.
SimdLevel limit_simd_level(SimdLevel highest, const char* text);

// The level in force: decided at the first call, fixed for the life of the process. A MEP_SIMD that
// is malformed or above the CPU's level is reported by one warning and otherwise ignored.
SimdLevel simd_level();

// False: `text` is no level's name.
bool parse_simd_level(const char* text, SimdLevel* level);
const char* simd_level_name(SimdLevel level);

}  // namespace mep
