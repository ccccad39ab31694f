// FNV-1a, for names and fingerprints: the same on all ranks of a job. It protects from mistakes, not from
// somebody who looks for collisions.
// Source of the constants: RFC 9923.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mep {

class Hash {
 public:
  explicit Hash(uint64_t seed = 0) : value_(0xcbf29ce484222325u ^ seed) {}

  void bytes(const void* data, size_t count) {
    const auto* from = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < count; ++i) value_ = (value_ ^ from[i]) * 0x100000001b3u;
  }
  void word(uint64_t word) { bytes(&word, sizeof word); }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_;
};

inline uint64_t hash_bytes(uint64_t seed, const void* data, size_t count) {
  Hash hash(seed);
  hash.bytes(data, count);
  return hash.value();
}

inline uint64_t hash_text(std::string_view text, uint64_t seed = 0) {
  return hash_bytes(seed, text.data(), text.size());
}

}  // namespace mep
