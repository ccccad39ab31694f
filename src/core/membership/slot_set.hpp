// A set of slots as a growable bit string; a slot beyond its words counts as absent, so sets of
// different capacity compare and combine by value. At most kMaxSlots slots.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mep.h"

namespace mep::membership {

constexpr uint32_t kMaxSlots = MEP_MAX_RANKS;
constexpr uint32_t kNoSlot = UINT32_MAX;

class SlotSet {
 public:
  SlotSet() = default;
  static SlotSet first(uint32_t count) {
    SlotSet set;
    for (uint32_t slot = 0; slot < count; ++slot) set.add(slot);
    return set;
  }

  bool has(uint32_t slot) const { return ((word(slot / 64) >> (slot % 64)) & 1u) != 0; }
  void add(uint32_t slot) { at(slot / 64) |= uint64_t{1} << (slot % 64); }
  void remove(uint32_t slot) {
    if (slot / 64 < words()) at(slot / 64) &= ~(uint64_t{1} << (slot % 64));
  }
  void clear() {
    first_ = 0;
    rest_.clear();
  }

  uint32_t count() const {
    int sum = std::popcount(first_);
    for (const uint64_t word : rest_) sum += std::popcount(word);
    return static_cast<uint32_t>(sum);
  }
  // The number of slots that are in both sets. GCC 14 warns, in false alarm, where the set of both is made to be counted.
  uint32_t count_shared(const SlotSet& other) const {
    int sum = 0;
    for (size_t i = 0; i < words(); ++i) sum += std::popcount(word(i) & other.word(i));
    return static_cast<uint32_t>(sum);
  }
  bool empty() const {
    for (const uint64_t word : rest_)
      if (word != 0) return false;
    return first_ == 0;
  }
  // The lowest slot, or kNoSlot.
  uint32_t lowest() const { return next(0); }
  // The lowest slot >= `from`, or kNoSlot.
  uint32_t next(uint32_t from) const {
    size_t index = from / 64;
    if (index >= words()) return kNoSlot;
    uint64_t bits = word(index) & (~uint64_t{0} << (from % 64));
    while (bits == 0) {
      if (++index >= words()) return kNoSlot;
      bits = word(index);
    }
    return static_cast<uint32_t>(index * 64 + static_cast<size_t>(std::countr_zero(bits)));
  }
  bool contains(const SlotSet& other) const {
    for (size_t i = 0; i < other.words(); ++i)
      if ((other.word(i) & ~word(i)) != 0) return false;
    return true;
  }
  bool intersects(const SlotSet& other) const {
    for (size_t i = 0; i < words(); ++i)
      if ((other.word(i) & word(i)) != 0) return true;
    return false;
  }

  SlotSet& operator|=(const SlotSet& other) {
    for (size_t i = 0; i < other.words(); ++i) at(i) |= other.word(i);
    return *this;
  }
  SlotSet& operator&=(const SlotSet& other) {
    for (size_t i = 0; i < words(); ++i) at(i) &= other.word(i);
    return *this;
  }
  SlotSet& operator-=(const SlotSet& other) {
    for (size_t i = 0; i < words(); ++i) at(i) &= ~other.word(i);
    return *this;
  }
  friend SlotSet operator|(SlotSet a, const SlotSet& b) { return a |= b; }
  friend SlotSet operator&(SlotSet a, const SlotSet& b) { return a &= b; }
  friend SlotSet operator-(SlotSet a, const SlotSet& b) { return a -= b; }
  friend bool operator==(const SlotSet& a, const SlotSet& b) {
    return a.contains(b) && b.contains(a);
  }

  // Calls f(slot) in rising order. The set must not change meanwhile.
  template <typename F>
  void each(F&& f) const {
    for (size_t i = 0; i < words(); ++i)
      for (uint64_t bits = word(i); bits != 0; bits &= bits - 1)
        f(static_cast<uint32_t>(i * 64 + static_cast<size_t>(std::countr_zero(bits))));
  }

 private:
  size_t words() const { return 1 + rest_.size(); }
  uint64_t word(size_t i) const {
    if (i == 0) return first_;
    return i <= rest_.size() ? rest_[i - 1] : 0;
  }
  uint64_t& at(size_t i) {
    if (i == 0) return first_;
    if (i > rest_.size()) rest_.resize(i, 0);
    return rest_[i - 1];
  }

  uint64_t first_ = 0;  // slots 0..63 need no memory
  std::vector<uint64_t> rest_;
};

}  // namespace mep::membership
