// labels: gate
// Reductions: every type, operator, size, number of inputs and SIMD level against plain loops, bit
// by bit; aliasing, alignment, memory bounds and the caller's floating-point mode.
#include <memory>

#include "kernel_fixture.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

using namespace mep_test;

namespace {

constexpr size_t kSizes[] = {0,  1,  2,  3,   7,   8,   15,  16,   17,  31,
                             33, 63, 65, 127, 128, 129, 255, 4095, 4096};
constexpr size_t kMaxCount = 4096;
constexpr size_t kInputCounts[] = {1, 2, 3, 4, 7, 8, 17};
constexpr size_t kMaxInputs = 17;

using Inputs = std::vector<const uint8_t*>;

// The memory of one case: inputs that end at a faulting page, and an output between canaries.
struct Fixture {
  std::vector<std::vector<uint8_t>> content;
  std::vector<std::unique_ptr<GuardedMemory>> memory;
  GuardedMemory out{kMaxCount * 8 + 256};
  Fixture() : content(kMaxInputs, std::vector<uint8_t>(kMaxCount * 8)) {
    for (size_t i = 0; i < kMaxInputs; ++i) {
      memory.push_back(std::make_unique<GuardedMemory>(kMaxCount * 8));
    }
  }
  // The first `bytes` of the content of each input, at the start or the end of its memory.
  Inputs place(size_t n_inputs, size_t bytes, bool at_end) {
    Inputs inputs;
    for (size_t i = 0; i < n_inputs; ++i) {
      uint8_t* to = at_end ? memory[i]->at_end(bytes) : memory[i]->at_start();
      std::memcpy(to, content[i].data(), bytes);
      inputs.push_back(to);
    }
    return inputs;
  }
};

void check_case(Fixture& fixture, mep_dtype_t dtype, mep_op_t op, size_t n_inputs, size_t count,
                RandomStream& random) {
  const size_t bytes = count * element_bytes(dtype);
  const uint32_t divisor = 1 + static_cast<uint32_t>(random.below(20));
  std::vector<uint8_t> expected(bytes + 1);
  Inputs inputs = fixture.place(n_inputs, bytes, random.below(4) != 0);
  const std::vector<const void*> pointers(inputs.begin(), inputs.end());
  mep_reference::reduce(dtype, op, inputs.data(), n_inputs, count, divisor, expected.data());
  for (const Level& level : levels()) {
    const mep::ReduceFunction reduce = level.kernels->reduce[dtype][op];
    uint8_t* out = random.below(2) != 0 ? fixture.out.at_end(bytes)
                                        : fixture.out.at_start() + random.below(65);
    fixture.out.paint();
    reduce(out, pointers.data(), n_inputs, count, divisor);
    check_bytes(expected.data(), out, bytes, "%s dtype %u op %u inputs %zu count %zu", level.name,
                dtype, op, n_inputs, count);
    if (!fixture.out.intact_outside(out, bytes)) {
      fail_msg("%s dtype %u op %u count %zu: wrote outside", level.name, dtype, op, count);
    }
    // In place of a random input, which is put back for the next level.
    const size_t place = random.below(n_inputs);
    uint8_t* alias = const_cast<uint8_t*>(inputs[place]);
    reduce(alias, pointers.data(), n_inputs, count, divisor);
    check_bytes(expected.data(), alias, bytes,
                "%s in place of %zu: dtype %u op %u inputs %zu count %zu", level.name, place, dtype,
                op, n_inputs, count);
    std::memcpy(alias, fixture.content[place].data(), bytes);
  }
}

void check_dtype(void** state) {
  const mep_dtype_t dtype = *static_cast<const mep_dtype_t*>(*state);
  RandomStream random(mix(test_seed(), dtype));
  Fixture fixture;
  for (auto& content : fixture.content)
    make_elements(dtype, random.bits(), kMaxCount, content.data());
  for (mep_op_t op = MEP_SUM; op <= MEP_XOR; ++op) {
    if (!pair_exists(dtype, op)) continue;
    for (const size_t n_inputs : kInputCounts) {
      for (const size_t count : kSizes) check_case(fixture, dtype, op, n_inputs, count, random);
    }
  }
}

void supported_pairs_have_kernels(void**) {
  for (mep_dtype_t dtype = 0; dtype < 40; ++dtype) {
    for (mep_op_t op = 0; op < 40; ++op) {
      const bool exists =
          element_bytes(dtype) != 0 && op >= MEP_SUM && op <= MEP_XOR && pair_exists(dtype, op);
      assert_int_equal(mep::reduce_supported(dtype, op), exists);
      if (dtype >= mep::kDtypeSlots || op >= mep::kOpSlots) continue;
      for (const Level& level : levels()) {
        assert_int_equal(level.kernels->reduce[dtype][op] != nullptr, exists);
      }
    }
  }
}

void unsupported_leaves_output(void**) {
  uint8_t out[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const uint8_t before[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const void* input = before;
  mep::reduce_rows(MEP_FLOAT32, MEP_AND, out, &input, 1, 2, 1);
  mep::reduce_rows(99, MEP_SUM, out, &input, 1, 1, 1);
  mep::reduce_rows(MEP_INT8, 99, out, &input, 1, 1, 1);
  assert_memory_equal(out, before, 8);
}

void zeros_and_nan_in_min_max(void**) {
  const float minus = -0.0f;
  const float plus = 0.0f;
  const float nan = -std::numeric_limits<float>::quiet_NaN();
  const float one = 1;
  const float* pairs[][2] = {{&minus, &plus}, {&plus, &minus}, {&nan, &one}, {&one, &nan}};
  for (const Level& level : levels()) {
    for (const auto& pair : pairs) {
      const void* inputs[2] = {pair[0], pair[1]};
      float low = 7;
      float high = 7;
      level.kernels->reduce[MEP_FLOAT32][MEP_MIN](&low, inputs, 2, 1, 1);
      level.kernels->reduce[MEP_FLOAT32][MEP_MAX](&high, inputs, 2, 1, 1);
      const bool has_nan = std::isnan(*pair[0]) || std::isnan(*pair[1]);
      uint32_t bits[2];
      std::memcpy(&bits[0], &low, 4);
      std::memcpy(&bits[1], &high, 4);
      assert_int_equal(bits[0], has_nan ? 0x7fc00000u : 0x80000000u);
      assert_int_equal(bits[1], has_nan ? 0x7fc00000u : 0u);
    }
  }
}

// A Fortran run time flushes denormals, a debugger run may unmask exceptions: no result changes.
void float_mode_of_the_caller(void**) {
#if defined(__x86_64__)
  const float a[4] = {1e-40f, 1, 1e-45f, std::numeric_limits<float>::infinity()};
  const float b[4] = {2e-40f, 0x1.0p-24f, 1e-45f, -std::numeric_limits<float>::infinity()};
  const void* inputs[2] = {a, b};
  float expected[4];
  float actual[4];
  mep::reduce_rows(MEP_FLOAT32, MEP_SUM, expected, inputs, 2, 4, 1);
  assert_true(expected[0] > 2.9e-40f && expected[1] == 1);
  const unsigned before = _mm_getcsr();
  const unsigned strange = 0x8040u | 0x4000u;  // flush to zero, denormals are zero, round up, trap
  _mm_setcsr(strange);
  mep::reduce_rows(MEP_FLOAT32, MEP_SUM, actual, inputs, 2, 4, 1);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  assert_int_equal(after, strange);
  assert_memory_equal(actual, expected, sizeof actual);
#endif
}

}  // namespace

int main() {
  std::vector<CMUnitTest> tests = {
      cmocka_unit_test(supported_pairs_have_kernels), cmocka_unit_test(unsupported_leaves_output),
      cmocka_unit_test(zeros_and_nan_in_min_max), cmocka_unit_test(float_mode_of_the_caller)};
  static mep_dtype_t dtypes[mep::kDtypeSlots];
#define MEP_TYPE_TEST(with, number, constant, kind, element, arithmetic, name, ...) \
  dtypes[number] = MEP_##constant;                                                  \
  tests.push_back({#name, check_dtype, nullptr, nullptr, &dtypes[number]});
  MEP_TYPES(MEP_TYPE_TEST, )
#undef MEP_TYPE_TEST
  test_seed();
  return _cmocka_run_group_tests("kernel_reduce", tests.data(), tests.size(), nullptr, nullptr);
}
