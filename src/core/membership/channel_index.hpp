// Finds the entries of a list of channels by (comm, channel). Worlds have tens of thousands of channels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace mep::membership {

using ChannelKey = std::pair<uint64_t, uint64_t>;  // comm, channel

// Holds places in the list, not the list: it is for every copy of it with the same keys. Made in
// n log n, or by one look over a list in order.
class ChannelIndex {
 public:
  template <typename Entry>
  explicit ChannelIndex(const std::vector<Entry>& entries) {
    const auto before = [&](size_t left, size_t right) {
      return key(entries[left]) < key(entries[right]);
    };
    bool in_order = true;
    for (size_t i = 1; i < entries.size() && in_order; ++i) in_order = !before(i, i - 1);
    if (in_order) return;
    places_.resize(entries.size());
    for (size_t i = 0; i < places_.size(); ++i) places_[i] = i;
    std::stable_sort(places_.begin(), places_.end(), before);
  }

  // The first entry of the key in `entries`, null: there is none.
  template <typename Entry>
  const Entry* find(const std::vector<Entry>& entries, uint64_t comm, uint64_t channel) const {
    const ChannelKey wanted{comm, channel};
    size_t low = 0;
    size_t high = entries.size();
    while (low < high) {
      const size_t middle = low + (high - low) / 2;
      if (key(entries[place(middle)]) < wanted) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low == entries.size() || key(entries[place(low)]) != wanted) return nullptr;
    return &entries[place(low)];
  }

 private:
  template <typename Entry>
  static ChannelKey key(const Entry& entry) {
    return {entry.comm, entry.channel};
  }
  size_t place(size_t rank) const { return places_.empty() ? rank : places_[rank]; }

  std::vector<size_t> places_;  // in the order of their keys; empty: the list is in order
};

}  // namespace mep::membership
