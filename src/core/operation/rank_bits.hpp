// A set of ranks as words of 64 bits, in the form that the ABI gives away.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mep {

using RankBits = std::vector<uint64_t>;

constexpr size_t rank_words(size_t ranks) {
  return (ranks + 63) / 64;
}
inline bool has_rank(const RankBits& bits, uint32_t rank) {
  return rank / 64 < bits.size() && ((bits[rank / 64] >> (rank % 64)) & 1u) != 0;
}
inline void add_rank(RankBits* bits, uint32_t rank) {
  (*bits)[rank / 64] |= uint64_t{1} << (rank % 64);
}

}  // namespace mep
