// labels: quick
// Detection against what the kernel says in /proc/cpuinfo, decisions for made-up CPUs, and
// MEP_SIMD.
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "base/cpu_features.hpp"
#include "support/cmocka_cpp.hpp"

namespace {

using mep::CpuFeatures;
using mep::CpuidWords;
using mep::SimdLevel;

constexpr uint32_t kLeaf1All = (1u << 27) | (1u << 28) | (1u << 29);  // OSXSAVE, AVX, F16C
constexpr uint32_t kLeaf7Avx2 = 1u << 5;
constexpr uint32_t kLeaf7Avx512 = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31);
constexpr uint64_t kSavesAvx = 0x7;
constexpr uint64_t kSavesAvx512 = 0xe7;

SimdLevel level_of(uint32_t leaf1_ecx, uint32_t leaf7_ebx, uint64_t xcr0) {
  return mep::highest_simd_level(mep::decode_cpu_features(CpuidWords{leaf1_ecx, leaf7_ebx, xcr0}));
}

void detection_agrees_with_the_kernel(void**) {
  std::ifstream file("/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) flags.insert(word);
    break;
  }
  if (flags.empty()) skip();  // not an x86 kernel
  const CpuFeatures& features = mep::cpu_features();
  assert_int_equal(features.avx2, flags.count("avx2"));
  assert_int_equal(features.f16c, flags.count("f16c"));
  assert_int_equal(features.avx512f, flags.count("avx512f"));
  assert_int_equal(features.avx512bw, flags.count("avx512bw"));
  assert_int_equal(features.avx512vl, flags.count("avx512vl"));
  assert_int_equal(features.avx512dq, flags.count("avx512dq"));
}

void the_system_must_save_the_registers(void**) {
  const uint32_t leaf7 = kLeaf7Avx2 | kLeaf7Avx512;
  assert_true(level_of(kLeaf1All, leaf7, kSavesAvx512) == SimdLevel::kAvx512);
  assert_true(level_of(kLeaf1All, leaf7, kSavesAvx) == SimdLevel::kAvx2);
  for (uint64_t missing : {0x20u, 0x40u, 0x80u}) {
    assert_true(level_of(kLeaf1All, leaf7, kSavesAvx512 & ~missing) == SimdLevel::kAvx2);
  }
  assert_true(level_of(kLeaf1All, leaf7, 0xe3) == SimdLevel::kPortable);
  assert_true(level_of(kLeaf1All, leaf7, 0) == SimdLevel::kPortable);
  assert_true(level_of(kLeaf1All & ~(1u << 27), leaf7, kSavesAvx512) == SimdLevel::kPortable);
}

void every_part_of_a_level_is_needed(void**) {
  assert_true(level_of(kLeaf1All, kLeaf7Avx2, kSavesAvx512) == SimdLevel::kAvx2);
  assert_true(level_of(kLeaf1All & ~(1u << 28), kLeaf7Avx2, kSavesAvx) == SimdLevel::kPortable);
  assert_true(level_of(kLeaf1All & ~(1u << 29), kLeaf7Avx2, kSavesAvx) == SimdLevel::kPortable);
  assert_true(level_of(kLeaf1All, kLeaf7Avx512, kSavesAvx512) == SimdLevel::kPortable);
  for (unsigned bit : {16u, 17u, 30u, 31u}) {
    const uint32_t leaf7 = (kLeaf7Avx2 | kLeaf7Avx512) & ~(1u << bit);
    assert_true(level_of(kLeaf1All, leaf7, kSavesAvx512) == SimdLevel::kAvx2);
  }
}

void names_and_levels_match(void**) {
  for (SimdLevel level : {SimdLevel::kPortable, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    SimdLevel parsed = SimdLevel::kPortable;
    assert_true(mep::parse_simd_level(mep::simd_level_name(level), &parsed));
    assert_true(parsed == level);
  }
  SimdLevel parsed = SimdLevel::kAvx2;
  for (const char* text : {"", "AVX2", "avx", "avx5120", "sse"}) {
    assert_false(mep::parse_simd_level(text, &parsed));
  }
  assert_true(parsed == SimdLevel::kAvx2);
}

// simd_level() decides once a process: a child tells by its exit status.
SimdLevel level_with(const char* text) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    setenv("MEP_SIMD", text, 1);
    setenv("MEP_LOG", "error", 1);
    _exit(static_cast<int>(mep::simd_level()));
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  return static_cast<SimdLevel>(WEXITSTATUS(status));
}

void environment_lowers_and_never_raises(void**) {
  const SimdLevel highest = mep::highest_simd_level(mep::cpu_features());
  assert_true(level_with("") == highest);
  assert_true(level_with("nonsense") == highest);
  for (SimdLevel wanted : {SimdLevel::kPortable, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    const SimdLevel expected = wanted < highest ? wanted : highest;
    assert_true(level_with(mep::simd_level_name(wanted)) == expected);
  }
}

void a_cpu_without_the_wanted_level_keeps_its_own(void**) {
  const SimdLevel levels[] = {SimdLevel::kPortable, SimdLevel::kAvx2, SimdLevel::kAvx512};
  for (SimdLevel highest : levels) {
    for (SimdLevel wanted : levels) {
      const SimdLevel expected = wanted < highest ? wanted : highest;
      assert_true(mep::limit_simd_level(highest, mep::simd_level_name(wanted)) == expected);
    }
    assert_true(mep::limit_simd_level(highest, "sse9") == highest);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(detection_agrees_with_the_kernel),
      cmocka_unit_test(the_system_must_save_the_registers),
      cmocka_unit_test(every_part_of_a_level_is_needed),
      cmocka_unit_test(names_and_levels_match),
      cmocka_unit_test(a_cpu_without_the_wanted_level_keeps_its_own),
      cmocka_unit_test(environment_lowers_and_never_raises),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
