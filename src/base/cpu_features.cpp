#include "base/cpu_features.hpp"

#include <cstring>
#include <string>

#include "base/env.hpp"
#include "base/log.hpp"
#include "base/status.hpp"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#define MEP_X86 1
#else
#define MEP_X86 0
#endif

namespace mep {
namespace {

struct LevelName {
  SimdLevel level;
  const char* name;
};

constexpr LevelName kSimdLevelNames[] = {
    {SimdLevel::kPortable, "portable"},
    {SimdLevel::kAvx2, "avx2"},
    {SimdLevel::kAvx512, "avx512"},
};

constexpr bool bit(uint64_t word, unsigned position) {
  return ((word >> position) & 1u) != 0;
}

CpuidWords read_cpuid() {
  CpuidWords words;
#if MEP_X86
  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) words.leaf1_ecx = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) words.leaf7_ebx = ebx;
  if (bit(words.leaf1_ecx, 27)) {  // OSXSAVE: without it XGETBV is an illegal instruction
    uint32_t low = 0;
    uint32_t high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    words.xcr0 = (static_cast<uint64_t>(high) << 32) | low;
  }
#endif
  return words;
}

SimdLevel choose_simd_level() {
  const SimdLevel highest = highest_simd_level(cpu_features());
  std::string text;
  bool is_set = false;
  if (is_error(env_string("MEP_SIMD", &text, &is_set)) || !is_set) return highest;
  return limit_simd_level(highest, text.c_str());
}

}  // namespace

CpuFeatures decode_cpu_features(const CpuidWords& words) {
  // XCR0 says which registers the system saves: SSE and AVX (bits 1, 2), and for AVX-512 the mask
  // registers and both parts of the wide ones (bits 5 to 7) too.
  const bool saves_avx = bit(words.leaf1_ecx, 27) && (words.xcr0 & 0x6u) == 0x6u;
  const bool saves_avx512 = saves_avx && (words.xcr0 & 0xe0u) == 0xe0u;
  const bool avx = saves_avx && bit(words.leaf1_ecx, 28);
  CpuFeatures features;
  features.f16c = avx && bit(words.leaf1_ecx, 29);
  features.avx2 = avx && bit(words.leaf7_ebx, 5);
  features.avx512f = avx && saves_avx512 && bit(words.leaf7_ebx, 16);
  features.avx512dq = features.avx512f && bit(words.leaf7_ebx, 17);
  features.avx512bw = features.avx512f && bit(words.leaf7_ebx, 30);
  features.avx512vl = features.avx512f && bit(words.leaf7_ebx, 31);
  return features;
}

SimdLevel highest_simd_level(const CpuFeatures& features) {
  if (!features.avx2 || !features.f16c) return SimdLevel::kPortable;
  if (features.avx512f && features.avx512bw && features.avx512vl && features.avx512dq) {
    return SimdLevel::kAvx512;
  }
  return SimdLevel::kAvx2;
}

SimdLevel limit_simd_level(SimdLevel highest, const char* text) {
  SimdLevel wanted = highest;
  if (!parse_simd_level(text, &wanted)) return highest;  // check_environment() refuses it
  if (wanted > highest) {
    log(LogLevel::kWarn, "MEP_SIMD=%s is more than this CPU supports; using %s", text,
        simd_level_name(highest));
    return highest;
  }
  return wanted;
}

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = decode_cpu_features(read_cpuid());
  return features;
}

SimdLevel simd_level() {
  static const SimdLevel level = choose_simd_level();
  return level;
}

bool parse_simd_level(const char* text, SimdLevel* level) {
  for (const LevelName& entry : kSimdLevelNames) {
    if (std::strcmp(text, entry.name) == 0) {
      *level = entry.level;
      return true;
    }
  }
  return false;
}

const char* simd_level_name(SimdLevel level) {
  for (const LevelName& entry : kSimdLevelNames) {
    if (entry.level == level) return entry.name;
  }
  return "unknown";
}

}  // namespace mep
