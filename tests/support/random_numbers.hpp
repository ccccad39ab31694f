// Numbers that follow from a seed, the same on every machine: of tests, of mep_perf and of mep_chaos.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <type_traits>

namespace mep_reference {

// The finalizer of splitmix64: a bijection in which every bit depends on every bit.
constexpr uint64_t scrambled(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

constexpr uint64_t mix(uint64_t a, uint64_t b, uint64_t c = 0, uint64_t d = 0) {
  return scrambled(scrambled(scrambled(scrambled(a) ^ b) ^ c) ^ d);
}

class RandomStream {
 public:
  explicit RandomStream(uint64_t seed) : state_(scrambled(seed)) {}
  uint64_t bits() { return scrambled(state_ += 0x9e3779b97f4a7c15u); }
  // In [0, limit).
  template <class Int>
  auto below(Int limit) {
    using Drawn = std::make_unsigned_t<Int>;
    return static_cast<Drawn>(limit == 0 ? 0 : bits() % static_cast<uint64_t>(limit));
  }
  // In [low, high].
  template <class Low, class High>
  auto between(Low low, High high) {
    using Drawn = std::make_unsigned_t<std::common_type_t<Low, High>>;
    return static_cast<Drawn>(low + below(uint64_t{high - Drawn(low)} + 1));
  }
  double real(double low, double high) {
    return low + (high - low) * (static_cast<double>(bits() >> 11) * 0x1p-53);
  }
  bool one_in(uint64_t n) { return below(n) == 0; }
  bool percent(uint32_t chance) { return below(100) < chance; }
  template <class Container>
  const typename Container::value_type& one_of(const Container& values) {
    return values.begin()[below(values.size())];
  }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return one_of(values);
  }

 private:
  uint64_t state_;
};

// MEP_TEST_SEED, which replays a run, else `otherwise`. It is printed.
inline uint64_t seed_of_run(uint64_t otherwise = std::random_device{}()) {
  const char* text = std::getenv("MEP_TEST_SEED");  // NOLINT(concurrency-mt-unsafe): none is set
  const uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 0) : otherwise;
  std::printf("MEP_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  (void)std::fflush(stdout);
  return seed;
}

}  // namespace mep_reference
