// labels: gate
// Reductions: every type, operator, size, number of inputs and SIMD level against plain loops, bit
// by bit; aliasing, alignment, memory bounds and the caller's floating-point mode.
#include <memory>

#include "kernel_oracle.hpp"

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

// The pairs that mep.h promises, spelled out.
bool promised(mep_dtype_t dtype, mep_op_t op) {
  switch (op) {
    case MEP_SUM:
    case MEP_PROD:
      return dtype != MEP_BOOL;
    case MEP_MIN:
    case MEP_MAX:
      return true;
    case MEP_AVG:
      return is_floating(dtype);
    default:
      return !is_floating(dtype);
  }
}

template <class T>
T combine_float(mep_op_t op, T a, T b) {
  volatile T result = 0;
  if (op == MEP_SUM || op == MEP_AVG) {
    result = a + b;
  } else if (op == MEP_PROD) {
    result = a * b;
  } else if (std::isnan(a) || std::isnan(b)) {
    result = std::numeric_limits<T>::quiet_NaN();
  } else {
    const bool a_first = a < b || (a == b && std::signbit(a));
    result = (op == MEP_MIN) == a_first ? a : b;
  }
  return result;
}

using Inputs = std::vector<const void*>;

const uint8_t* element(const Inputs& inputs, size_t input, size_t offset) {
  return static_cast<const uint8_t*>(inputs[input]) + offset;
}

template <class T>
void expect_integer(mep_dtype_t dtype, mep_op_t op, const Inputs& inputs, size_t offset,
                    uint8_t* to) {
  T total = load_as<T>(element(inputs, 0, offset));
  for (size_t i = 1; i < inputs.size(); ++i) {
    total = mep_reference::combine_integers<T>(dtype, op, total,
                                               load_as<T>(element(inputs, i, offset)));
  }
  store_as(to, total);
}

void expect_bool(mep_op_t op, const Inputs& inputs, size_t offset, uint8_t* to) {
  size_t trues = 0;
  for (size_t i = 0; i < inputs.size(); ++i) trues += *element(inputs, i, offset) != 0 ? 1 : 0;
  bool result = trues % 2 != 0;
  if (op == MEP_AND || op == MEP_MIN) result = trues == inputs.size();
  if (op == MEP_OR || op == MEP_MAX) result = trues != 0;
  *to = result ? 1 : 0;
}

void expect_double(mep_op_t op, const Inputs& inputs, size_t offset, uint32_t divisor,
                   uint8_t* to) {
  double total = load_as<double>(element(inputs, 0, offset));
  for (size_t i = 1; i < inputs.size(); ++i) {
    total = combine_float<double>(op, total, load_as<double>(element(inputs, i, offset)));
  }
  if (op == MEP_AVG) total /= divisor;
  if (std::isnan(total)) {
    store_as<uint64_t>(to, 0x7ff8000000000000ull);
  } else {
    store_as(to, total);
  }
}

void expect_element(mep_dtype_t dtype, mep_op_t op, const Inputs& inputs, size_t offset,
                    uint32_t divisor, uint8_t* to) {
  mep_reference::with_integer(
      dtype, [&](auto zero) { expect_integer<decltype(zero)>(dtype, op, inputs, offset, to); });
  if (dtype == MEP_BOOL) return expect_bool(op, inputs, offset, to);
  if (dtype == MEP_FLOAT64) return expect_double(op, inputs, offset, divisor, to);
  if (!is_floating(dtype)) return;
  float total = element_to_float(dtype, element(inputs, 0, offset));
  for (size_t i = 1; i < inputs.size(); ++i) {
    total = combine_float<float>(op, total, element_to_float(dtype, element(inputs, i, offset)));
  }
  if (op == MEP_AVG) {
    const volatile float quotient = total / static_cast<float>(divisor);
    total = quotient;
  }
  float_to_element(dtype, total, to);
}

void fill(mep_dtype_t dtype, RandomStream& random, uint8_t* to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    uint8_t* place = to + i * size_of(dtype);
    if (is_floating(dtype)) {
      fill_float_element(dtype, random, place);
    } else {
      const uint64_t bits = random.bits();
      std::memcpy(place, &bits, size_of(dtype));
      if (dtype == MEP_BOOL && random.below(4) != 0) *place = random.below(8) != 0 ? 1 : 0;
    }
  }
}

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
  const size_t bytes = count * size_of(dtype);
  const uint32_t divisor = 1 + static_cast<uint32_t>(random.below(20));
  std::vector<uint8_t> expected(bytes + 1);
  Inputs inputs = fixture.place(n_inputs, bytes, random.below(4) != 0);
  for (size_t i = 0; i < count; ++i) {
    const size_t offset = i * size_of(dtype);
    expect_element(dtype, op, inputs, offset, divisor, expected.data() + offset);
  }
  for (const Level& level : levels()) {
    const mep::ReduceFunction reduce = level.kernels->reduce[dtype][op];
    uint8_t* out = random.below(2) != 0 ? fixture.out.at_end(bytes)
                                        : fixture.out.at_start() + random.below(65);
    fixture.out.paint();
    reduce(out, inputs.data(), n_inputs, count, divisor);
    check_bytes(expected.data(), out, bytes, "%s dtype %u op %u inputs %zu count %zu", level.name,
                dtype, op, n_inputs, count);
    if (!fixture.out.intact_outside(out, bytes)) {
      fail_msg("%s dtype %u op %u count %zu: wrote outside", level.name, dtype, op, count);
    }
    // In place of a random input, which is put back for the next level.
    const size_t place = random.below(n_inputs);
    uint8_t* alias = static_cast<uint8_t*>(const_cast<void*>(inputs[place]));
    reduce(alias, inputs.data(), n_inputs, count, divisor);
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
  for (auto& content : fixture.content) fill(dtype, random, content.data(), kMaxCount);
  for (mep_op_t op = MEP_SUM; op <= MEP_XOR; ++op) {
    if (!promised(dtype, op)) continue;
    for (const size_t n_inputs : kInputCounts) {
      for (const size_t count : kSizes) check_case(fixture, dtype, op, n_inputs, count, random);
    }
  }
}

void supported_pairs_have_kernels(void**) {
  for (mep_dtype_t dtype = 0; dtype < 40; ++dtype) {
    for (mep_op_t op = 0; op < 40; ++op) {
      const bool exists =
          size_of(dtype) != 0 && op >= MEP_SUM && op <= MEP_XOR && promised(dtype, op);
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
