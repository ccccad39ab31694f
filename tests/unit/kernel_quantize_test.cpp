// labels: gate
// Quantising to each format of rows with scales, against the formulas evaluated one value at
// a time: all lengths up to three groups and real hidden sizes, all token types and SIMD levels.
#include <cfloat>

#include "kernel_fixture.hpp"

using namespace mep_test;

namespace {

constexpr mep_dtype_t kTokenTypes[] = {MEP_BFLOAT16, MEP_FLOAT16, MEP_FLOAT32};
constexpr size_t kMaxHidden = 7168;

struct Format {
  const char* name;
  mep_dtype_t value;
  mep_scale_type_t scale_type;
  size_t scale_bytes;
};
constexpr Format kFormats[] = {{"e4m3", MEP_FLOAT8_E4M3, MEP_SCALE_FLOAT32, 4},
                               {"e4m3_ue8m0", MEP_FLOAT8_E4M3, MEP_SCALE_UE8M0, 1},
                               {"mxfp8", MEP_FLOAT8_E4M3, MEP_SCALE_UE8M0_32, 1}};

constexpr const mep::RowFormat& kFloatScales = mep::row_format(MEP_FLOAT8_E4M3, MEP_SCALE_FLOAT32);
constexpr const mep::RowFormat& kMxfp8 = mep::row_format(MEP_FLOAT8_E4M3, MEP_SCALE_UE8M0_32);
constexpr const mep::RowFormat& kPowerScales = mep::row_format(MEP_FLOAT8_E4M3, MEP_SCALE_UE8M0);

struct Expected {
  const Format& format;
  std::vector<uint8_t> q, scales;
};

// Rows of very different size per group; `kind` chooses what is special about them.
std::vector<uint8_t> make_row(mep_dtype_t dtype, size_t hidden, size_t kind, RandomStream& random) {
  std::vector<uint8_t> row(hidden * element_bytes(dtype));
  double magnitude = 1;
  for (size_t i = 0; i < hidden; ++i) {
    if (i % 128 == 0) magnitude = std::ldexp(1.0, static_cast<int>(random.below(40)) - 25);
    uint8_t* to = row.data() + i * element_bytes(dtype);
    store_number(dtype, static_cast<float>(random.real(-magnitude, magnitude)), to);
    if (kind == 1) make_element(dtype, random.bits(), 0, to);
    if (kind == 2) store_number(dtype, i % 3 == 0 ? -0.0f : 0.0f, to);
    if (kind == 3 && i == hidden / 2) store_number(dtype, NAN, to);
    if (kind == 4 && i == hidden / 2) store_number(dtype, -HUGE_VALF, to);
    if (kind == 6 && dtype != MEP_FLOAT16) {
      store_number(dtype, static_cast<float>(random.real(-3.38e38, 3.38e38)), to);
    }
    if (kind == 5) store_number(dtype, std::ldexp(448.0f, static_cast<int>(i / 128) - 8), to);
  }
  return row;
}

void check_quantize(const Level& level, mep_dtype_t dtype, const std::vector<uint8_t>& row,
                    const Expected& expected, RandomStream& random) {
  static GuardedMemory in(kMaxHidden * 4);
  static GuardedMemory out(kMaxHidden + 4096);
  static GuardedMemory scale_memory(4096);
  const size_t hidden = expected.q.size();
  const size_t bytes = expected.scales.size();
  const mep::RowFormat& format = mep::row_format(expected.format.value, expected.format.scale_type);
  const mep::QuantizeFunction kernel =
      level.kernels->quantize[static_cast<size_t>(format.kind)][dtype];
  uint8_t* x = random.below(3) != 0 ? in.at_end(row.size()) : in.at_start() + random.below(16);
  if (x + row.size() > in.at_end(0)) x = in.at_start();
  if (!row.empty()) std::memcpy(x, row.data(), row.size());
  constexpr size_t kAtEnd = SIZE_MAX;
  const size_t places[] = {0, 16, 64, 1 + random.below(63), kAtEnd};
  for (const bool non_temporal : {false, true}) {
    for (const size_t place : places) {
      out.paint();
      scale_memory.paint();
      uint8_t* q = place == kAtEnd ? out.at_end(hidden) : out.at_start() + place;
      uint8_t* scales = scale_memory.at_end(bytes);
      kernel(x, hidden, q, scales, non_temporal);
      check_bytes(expected.q.data(), q, hidden, "%s %s q dtype %u hidden %zu place %zu nt %d",
                  level.name, expected.format.name, dtype, hidden, place, non_temporal);
      check_bytes(expected.scales.data(), scales, bytes, "%s %s scales dtype %u hidden %zu",
                  level.name, expected.format.name, dtype, hidden);
      assert_true(out.intact_outside(q, hidden));
      assert_true(scale_memory.intact_outside(scales, bytes));
    }
  }
}

float decoded(uint8_t q, float scale) {
  return static_cast<float>(small_format(MEP_FLOAT8_E4M3)->decode(q)) * scale;
}

void check_row(mep_dtype_t dtype, size_t hidden, size_t kind, RandomStream& random) {
  const std::vector<uint8_t> row = make_row(dtype, hidden, kind, random);
  for (const Format& format : kFormats) {
    Expected expected{
        format, std::vector<uint8_t>(hidden),
        std::vector<uint8_t>(scale_count(format.scale_type, hidden) * format.scale_bytes)};
    quantize(dtype, row.data(), hidden, format.value, format.scale_type, expected.q.data(),
             expected.scales.data());
    for (const Level& level : levels()) check_quantize(level, dtype, row, expected, random);
  }
}

void short_rows(void**) {
  RandomStream random(mix(test_seed(), 1));
  for (const mep_dtype_t dtype : kTokenTypes) {
    for (size_t hidden = 0; hidden < 390; hidden += 1 + random.below(4)) {
      check_row(dtype, hidden, random.below(7), random);
    }
  }
}

void real_rows(void**) {
  RandomStream random(mix(test_seed(), 2));
  for (const mep_dtype_t dtype : kTokenTypes) {
    for (const size_t hidden : {size_t{128}, size_t{1000}, size_t{2048}, size_t{7168}}) {
      for (size_t kind = 0; kind < 7; ++kind) check_row(dtype, hidden, kind, random);
    }
  }
}

void nan_and_infinity_are_not_hidden(void**) {
  float x[128] = {};
  x[5] = NAN;
  x[6] = 3;
  uint8_t q[128];
  float scale = 0;
  mep::quantize_row(kFloatScales, MEP_FLOAT32, x, 128, q, &scale, false);
  assert_int_equal(q[5], 0x7f);
  assert_int_equal(q[6], 0x7e);
  x[7] = HUGE_VALF;
  uint8_t power = 0;
  mep::quantize_row(kFloatScales, MEP_FLOAT32, x, 128, q, &scale, true);
  for (const uint8_t code : q) assert_true(std::isnan(decoded(code, scale)));
  mep::quantize_row(kPowerScales, MEP_FLOAT32, x, 128, q, &power, true);
  assert_int_equal(power, 255);  // NaN
  uint8_t powers[4];
  mep::quantize_row(kMxfp8, MEP_FLOAT32, x, 128, q, powers, false);
  assert_int_equal(powers[0], 255);
  for (size_t group = 1; group < 4; ++group) assert_true(powers[group] < 247);
  assert_int_equal(q[5], 0x7f);
}

void large_finite_values_stay_finite(void**) {
  for (const float large : {3.29e38f, 3.3e38f, 3.38e38f, FLT_MAX}) {
    // A whole group, which may be streamed, and part of one.
    for (const size_t hidden : {size_t{128}, size_t{21}}) {
      std::vector<float> x(hidden, 1e37f);
      x[3] = large;
      x[4] = -large;
      x[5] = NAN;
      alignas(64) uint8_t q[128];
      uint8_t power = 0;
      for (const bool non_temporal : {false, true}) {
        mep::quantize_row(kPowerScales, MEP_FLOAT32, x.data(), hidden, q, &power, non_temporal);
        assert_int_equal(power, 247);
        assert_int_equal(q[3], 0x77);
        assert_int_equal(q[4], 0xf7);
        assert_int_equal(q[5], 0x7f);
        const float scale = std::ldexp(1.0f, 120);
        assert_true(decoded(q[3], scale) == 240 * scale && decoded(q[4], scale) == -240 * scale);
        assert_true(decoded(q[6], scale) > 0.9e37f && decoded(q[6], scale) < 1.1e37f);
      }
    }
  }
}

}  // namespace

int main() {
  test_seed();
  const CMUnitTest tests[] = {cmocka_unit_test(short_rows), cmocka_unit_test(real_rows),
                              cmocka_unit_test(large_finite_values_stay_finite),
                              cmocka_unit_test(nan_and_infinity_are_not_hidden)};
  return cmocka_run_group_tests_name("kernel_quantize", tests, nullptr, nullptr);
}
