// labels: quick
// Combining rows and copying them, at every SIMD level against plain loops in which product and sum
// are rounded one after the other.
#include <memory>

#include "kernel_fixture.hpp"

using namespace mep_test;

namespace {

constexpr mep_dtype_t kTokenTypes[] = {MEP_BFLOAT16, MEP_FLOAT16, MEP_FLOAT32};
constexpr size_t kHidden[] = {0, 1, 4, 8, 24, 63, 64, 65, 127, 128, 136, 1000, 2880, 7168};
constexpr size_t kRowCounts[] = {0, 1, 2, 3, 4, 6, 8, 9, 16, 17, 20};
constexpr size_t kMaxRows = 20;
constexpr size_t kMaxBytes = 7168 * 4;

std::vector<uint8_t> combine_plainly(mep_dtype_t dtype, const std::vector<const void*>& rows,
                                     const float* weights, size_t hidden) {
  RowSum sum(dtype, hidden);
  for (size_t row = 0; row < rows.size(); ++row) {
    sum.add(rows[row], weights != nullptr ? weights[row] : 1);
  }
  return sum.row();
}

struct Fixture {
  std::vector<std::unique_ptr<GuardedMemory>> memory;
  GuardedMemory out{kMaxBytes + 256};
  Fixture() {
    for (size_t i = 0; i < kMaxRows; ++i) {
      memory.push_back(std::make_unique<GuardedMemory>(kMaxBytes));
    }
  }
};

void check_combine(Fixture& fixture, mep_dtype_t dtype, size_t n_rows, size_t hidden,
                   RandomStream& random) {
  const size_t bytes = hidden * element_bytes(dtype);
  std::vector<const void*> rows;
  std::vector<float> weights;
  for (size_t row = 0; row < n_rows; ++row) {
    uint8_t* to = fixture.memory[row]->at_end(bytes);
    for (size_t i = 0; i < hidden; ++i) {
      uint8_t* place = to + i * element_bytes(dtype);
      store_number(dtype, static_cast<float>(random.real(-4, 4)), place);
      if (random.below(64) == 0) make_element(dtype, random.bits(), 0, place);
    }
    rows.push_back(to);
    weights.push_back(static_cast<float>(random.real(-1, 1)));
  }
  for (const bool weighted : {false, true}) {
    const float* used_weights = weighted ? weights.data() : nullptr;
    const std::vector<uint8_t> expected = combine_plainly(dtype, rows, used_weights, hidden);
    for (const Level& level : levels()) {
      for (const bool non_temporal : {false, true}) {
        const size_t places[] = {0, 16, 1 + random.below(63)};
        uint8_t* out = fixture.out.at_start() + places[random.below(3)];
        if (random.below(4) == 0) out = fixture.out.at_end(bytes);
        fixture.out.paint();
        level.kernels->combine[dtype](out, rows.data(), used_weights, n_rows, hidden, non_temporal);
        check_bytes(expected.data(), out, bytes, "%s dtype %u rows %zu hidden %zu weights %d nt %d",
                    level.name, dtype, n_rows, hidden, weighted, non_temporal);
        assert_true(fixture.out.intact_outside(out, bytes));
      }
    }
  }
}

void combine_every_shape(void**) {
  RandomStream random(mix(test_seed(), 1));
  Fixture fixture;
  for (const mep_dtype_t dtype : kTokenTypes) {
    for (const size_t hidden : kHidden) {
      for (const size_t n_rows : kRowCounts) {
        check_combine(fixture, dtype, hidden == 7168 ? n_rows % 10 : n_rows, hidden, random);
      }
    }
  }
}

void combine_in_place_of_a_row(void**) {
  RandomStream random(mix(test_seed(), 2));
  for (const Level& level : levels()) {
    for (size_t place = 0; place < 3; ++place) {
      std::vector<float> rows[3];
      for (auto& row : rows) {
        for (size_t i = 0; i < 333; ++i) row.push_back(static_cast<float>(random.real(-1, 1)));
      }
      const float weights[3] = {0.3f, 0.7f, -0.2f};
      const std::vector<const void*> pointers = {rows[0].data(), rows[1].data(), rows[2].data()};
      const auto expected = combine_plainly(MEP_FLOAT32, pointers, weights, 333);
      level.kernels->combine[MEP_FLOAT32](rows[place].data(), pointers.data(), weights, 3, 333,
                                          false);
      check_bytes(expected.data(), reinterpret_cast<const uint8_t*>(rows[place].data()), 333 * 4,
                  "%s in place of %zu", level.name, place);
    }
  }
}

// (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24 when fused, 0 when the product is rounded first.
void product_is_rounded_before_the_sum(void**) {
  const float one = 0x1.001p0f;
  const float two = -0x1.002p0f;
  std::vector<float> first(64, two);
  std::vector<float> second(64, one);
  const void* rows[2] = {first.data(), second.data()};
  const float weights[2] = {1, one};
  for (const Level& level : levels()) {
    float out[64];
    level.kernels->combine[MEP_FLOAT32](out, rows, weights, 2, 64, false);
    for (const float value : out) assert_true(value == 0);
  }
  float out[64];
  mep::combine_rows(MEP_FLOAT32, out, rows, weights, 2, 64, true);
  for (const float value : out) assert_true(value == 0);
}

void sum_begins_with_plus_zero(void**) {
  const float minus = -0.0f;
  const void* row = &minus;
  for (const Level& level : levels()) {
    float out = 1;
    level.kernels->combine[MEP_FLOAT32](&out, &row, nullptr, 1, 1, false);
    assert_true(out == 0 && !std::signbit(out));
  }
}

void copies(void**) {
  RandomStream random(mix(test_seed(), 3));
  GuardedMemory from(32768);
  GuardedMemory to(32768);
  std::vector<uint8_t> content(32768);
  for (uint8_t& byte : content) byte = static_cast<uint8_t>(random.bits());
  const auto check = [&](void (*copy)(void*, const void*, size_t), size_t bytes, size_t place) {
    uint8_t* source = from.at_end(bytes);
    if (bytes != 0) std::memcpy(source, content.data(), bytes);
    uint8_t* target = place == 64 ? to.at_end(bytes) : to.at_start() + place;
    to.paint();
    copy(target, source, bytes);
    check_bytes(content.data(), target, bytes, "copy of %zu to place %zu", bytes, place);
    assert_true(to.intact_outside(target, bytes));
  };
  const auto plain = [](void* target, const void* source, size_t bytes) {
    mep::copy_row(target, source, bytes, false);
  };
  const auto streamed = [](void* target, const void* source, size_t bytes) {
    mep::copy_row(target, source, bytes, true);
  };
  for (size_t bytes = 0; bytes < 400; ++bytes) {
    const size_t place = random.below(65);
    for (const Level& level : levels()) check(level.kernels->copy_past_caches, bytes, place);
    check(plain, bytes, place);
    check(streamed, bytes, place);
  }
  for (const size_t bytes : {size_t{2048}, size_t{14336}, size_t{14337}, size_t{28672}}) {
    for (const Level& level : levels()) {
      for (const size_t place : {0, 16, 1, 63, 64}) {
        check(level.kernels->copy_past_caches, bytes, place);
      }
    }
  }
}

}  // namespace

int main() {
  test_seed();
  const CMUnitTest tests[] = {
      cmocka_unit_test(combine_every_shape), cmocka_unit_test(combine_in_place_of_a_row),
      cmocka_unit_test(product_is_rounded_before_the_sum),
      cmocka_unit_test(sum_begins_with_plus_zero), cmocka_unit_test(copies)};
  return cmocka_run_group_tests_name("kernel_combine", tests, nullptr, nullptr);
}
