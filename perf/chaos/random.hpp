// Numbers that follow from a seed: what a program is made of, and every byte that its ranks give.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mep::programs {

constexpr uint64_t scrambled(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

constexpr uint64_t mixed(uint64_t a, uint64_t b, uint64_t c = 0, uint64_t d = 0) {
  return scrambled(scrambled(scrambled(scrambled(a) ^ b) ^ c) ^ d);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(scrambled(seed)) {}
  uint64_t bits() { return scrambled(state_ += 0x9e3779b97f4a7c15u); }
  uint64_t below(uint64_t limit) { return limit == 0 ? 0 : bits() % limit; }
  uint32_t between(uint32_t low, uint32_t high) {
    return low + static_cast<uint32_t>(below(uint64_t{high} - low + 1));
  }
  bool percent(uint32_t chance) { return below(100) < chance; }
  template <typename Container>
  const typename Container::value_type& one_of(const Container& values) {
    return values[static_cast<size_t>(below(values.size()))];
  }

 private:
  uint64_t state_;
};

}  // namespace mep::programs
