// labels: quick
// Conversions: every code of every small type, every rounding boundary of every small type, and
// random float32, at all SIMD levels and in the scalar functions, against a search in the table of
// values.
#include "kernel_fixture.hpp"
#include "kernels/host/scalar_convert.hpp"

using namespace mep_test;

namespace {

constexpr mep_dtype_t kSmallTypes[] = {MEP_FLOAT16, MEP_BFLOAT16, MEP_FLOAT8_E4M3, MEP_FLOAT8_E5M2};

uint32_t scalar_encode(mep_dtype_t dtype, float value) {
  switch (dtype) {
    case MEP_FLOAT16:
      return mep::f32_to_f16(value);
    case MEP_BFLOAT16:
      return mep::f32_to_bf16(value);
    case MEP_FLOAT8_E4M3:
      return mep::f32_to_e4m3(value);
    default:
      return mep::f32_to_e5m2(value);
  }
}

float scalar_decode(mep_dtype_t dtype, uint32_t code) {
  switch (dtype) {
    case MEP_FLOAT16:
      return mep::f16_to_f32(static_cast<uint16_t>(code));
    case MEP_BFLOAT16:
      return mep::bf16_to_f32(static_cast<uint16_t>(code));
    case MEP_FLOAT8_E4M3:
      return mep::e4m3_to_f32(static_cast<uint8_t>(code));
    default:
      return mep::e5m2_to_f32(static_cast<uint8_t>(code));
  }
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

std::vector<uint8_t> expected_codes(mep_dtype_t dtype, const std::vector<float>& values) {
  std::vector<uint8_t> codes(values.size() * element_bytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    store_number(dtype, values[i], codes.data() + i * element_bytes(dtype));
    uint32_t code = 0;
    std::memcpy(&code, codes.data() + i * element_bytes(dtype), element_bytes(dtype));
    if (dtype != MEP_FLOAT32 && scalar_encode(dtype, values[i]) != code) {
      fail_msg("scalar, dtype %u: %a became 0x%x, not 0x%x", dtype, static_cast<double>(values[i]),
               scalar_encode(dtype, values[i]), code);
    }
  }
  return codes;
}

void check_encode(mep_dtype_t dtype, const std::vector<float>& values) {
  const std::vector<uint8_t> expected = expected_codes(dtype, values);
  for (const Level& level : levels()) {
    std::vector<uint8_t> actual(expected.size());
    level.kernels->from_f32[dtype](values.data(), actual.data(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t at = i * element_bytes(dtype);
      check_bytes(expected.data() + at, actual.data() + at, element_bytes(dtype),
                  "%s dtype %u of %a", level.name, dtype, static_cast<double>(values[i]));
    }
  }
}

// Each value, each midpoint between neighbours and its float32 neighbours, with both signs.
void boundaries_round_to_even(void**) {
  for (const mep_dtype_t dtype : kSmallTypes) {
    const SmallFormat& format = *small_format(dtype);
    std::vector<float> values;
    for (uint32_t code = 0; code < format.finite_codes(); ++code) {
      const double low = format.value(code);
      const double high = code + 1 < format.finite_codes() ? format.value(code + 1)
                                                           : 2 * low - format.value(code - 1);
      const double middle = (low + high) / 2;
      for (const double point : {low, middle, high}) {
        const float near = static_cast<float>(point);
        for (const float value :
             {near, std::nextafterf(near, 0), std::nextafterf(near, HUGE_VALF)}) {
          values.push_back(value);
          values.push_back(-value);
        }
      }
    }
    check_encode(dtype, values);
  }
}

void special_and_random_values(void**) {
  RandomStream random(mix(test_seed(), 1));
  std::vector<float> values = {0.0f,   -0.0f,   HUGE_VALF,     -HUGE_VALF, NAN,  -NAN,
                               1e-45f, -1e-45f, 3.4028235e38f, 448,        464,  465,
                               57344,  61440,   65504,         65519,      65520};
  const uint32_t odd_nans[] = {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7fbfffffu};
  for (const uint32_t bits : odd_nans) {
    values.push_back(load<float>(reinterpret_cast<const uint8_t*>(&bits)));
  }
  for (size_t i = 0; i < 300000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(random.bits());
    values.push_back(load<float>(reinterpret_cast<const uint8_t*>(&bits)));
    values.push_back(static_cast<float>(random.real(-70000, 70000)));
    values.push_back(static_cast<float>(
        std::ldexp(random.real(-2, 2), static_cast<int>(random.below(50)) - 30)));
  }
  for (const mep_dtype_t dtype : kSmallTypes) check_encode(dtype, values);
  check_encode(MEP_FLOAT32, values);
}

void every_code_decodes(void**) {
  for (const mep_dtype_t dtype : kSmallTypes) {
    const uint32_t count = element_bytes(dtype) == 1 ? 256 : 65536;
    std::vector<uint8_t> codes(count * element_bytes(dtype));
    for (uint32_t code = 0; code < count; ++code) {
      std::memcpy(codes.data() + code * element_bytes(dtype), &code, element_bytes(dtype));
    }
    for (const Level& level : levels()) {
      std::vector<float> actual(count);
      level.kernels->to_f32[dtype](codes.data(), actual.data(), count);
      for (uint32_t code = 0; code < count; ++code) {
        const double value = small_format(dtype)->decode(code);
        const uint32_t expected =
            std::isnan(value) ? 0x7fc00000u : bits_of(static_cast<float>(value));
        if (bits_of(actual[code]) != expected || bits_of(scalar_decode(dtype, code)) != expected) {
          fail_msg("%s dtype %u code 0x%x: 0x%x, scalar 0x%x, expected 0x%x", level.name, dtype,
                   code, bits_of(actual[code]), bits_of(scalar_decode(dtype, code)), expected);
        }
      }
    }
  }
}

void lengths_and_bounds(void**) {
  RandomStream random(mix(test_seed(), 2));
  GuardedMemory in(4096);
  GuardedMemory out(4096);
  for (const mep_dtype_t dtype : kAllTypes) {
    if (!is_float(dtype) || dtype == MEP_FLOAT64) continue;
    for (size_t count = 0; count < 150; ++count) {
      std::vector<float> values(count);
      for (float& value : values) value = static_cast<float>(random.real(-500, 500));
      const std::vector<uint8_t> codes = expected_codes(dtype, values);
      for (const Level& level : levels()) {
        uint8_t* from = random.below(2) != 0 ? in.at_end(count * 4) : in.at_start() + 3;
        if (count != 0) std::memcpy(from, values.data(), count * 4);
        out.paint();
        uint8_t* to = random.below(2) != 0 ? out.at_end(codes.size()) : out.at_start() + 5;
        level.kernels->from_f32[dtype](reinterpret_cast<const float*>(from), to, count);
        check_bytes(codes.data(), to, codes.size(), "%s dtype %u count %zu", level.name, dtype,
                    count);
        assert_true(out.intact_outside(to, codes.size()));
        // And back, from the end of one memory to the end of the other.
        from = in.at_end(codes.size());
        if (!codes.empty()) std::memcpy(from, codes.data(), codes.size());
        out.paint();
        to = out.at_end(count * 4);
        level.kernels->to_f32[dtype](from, reinterpret_cast<float*>(to), count);
        for (size_t i = 0; i < count; ++i) {
          const float expected = load_number(dtype, codes.data() + i * element_bytes(dtype));
          assert_int_equal(bits_of(load<float>(to + 4 * i)), bits_of(expected));
        }
        assert_true(out.intact_outside(to, count * 4));
      }
    }
  }
}

void public_functions(void**) {
  const float values[5] = {1, -2.5f, 0.1f, 1e9f, NAN};
  for (const mep_dtype_t dtype : kSmallTypes) {
    uint8_t expected[10];
    uint8_t actual[10];
    float back[5];
    for (size_t i = 0; i < 5; ++i)
      store_number(dtype, values[i], expected + i * element_bytes(dtype));
    mep::convert_from_f32(dtype, values, actual, 5);
    assert_memory_equal(actual, expected, 5 * element_bytes(dtype));
    mep::convert_to_f32(dtype, actual, back, 5);
    for (size_t i = 0; i < 4; ++i) {
      assert_int_equal(bits_of(back[i]),
                       bits_of(load_number(dtype, expected + i * element_bytes(dtype))));
    }
    assert_int_equal(bits_of(back[4]), 0x7fc00000u);
  }
}

}  // namespace

int main() {
  test_seed();
  const CMUnitTest tests[] = {
      cmocka_unit_test(boundaries_round_to_even), cmocka_unit_test(special_and_random_values),
      cmocka_unit_test(every_code_decodes), cmocka_unit_test(lengths_and_bounds),
      cmocka_unit_test(public_functions)};
  return cmocka_run_group_tests_name("kernel_convert", tests, nullptr, nullptr);
}
