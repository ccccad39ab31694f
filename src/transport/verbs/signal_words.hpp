// Signals as they travel with a put: the put's one message carries them as a code in its immediate data.
//
// Immediate data has 32 bits, a signal says more: a window, an offset, a word. So both ends keep a table
// of the words that the one signalled at the other. A word that is new in the table is sent whole, as a
// definition; from then on a code names its entry and by how much the word has grown.
//
// Invariants
//   - Both tables change in the order in which the sender posts: the lane keeps it.
//   - Nothing is written but 8 aligned bytes of a window that was offered to this peer and still exists.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>

#include "transport/window.hpp"

namespace mep::verbs {

// Immediate data: a mark with the low bits of its number, or a signal's code.
constexpr uint32_t kMarkBit = 0x80000000;
constexpr uint32_t kSignalBit = 0x40000000;
constexpr uint32_t kSignalEntries = 512;

// A signal that is sent whole.
struct SignalDefinition {
  uint64_t window = 0;
  uint64_t offset = 0;
  uint64_t word = 0;
  uint64_t entry = 0;
};

// The sender's side of one peer's signals. The owner calls it under its lock.
class SentSignals {
 public:
  // True: *code is all that the peer must be told; false: it must be sent *definition.
  bool encode(uint64_t window, uint64_t offset, uint64_t word, uint32_t* code,
              SignalDefinition* definition);
  // The peer may come to have another window of this id.
  void forget(uint64_t window);
  // Whether anything was ever encoded.
  bool in_use() const { return in_use_; }

 private:
  struct Entry {
    bool is_set = false;
    uint64_t window = 0;
    uint64_t offset = 0;
    uint64_t word = 0;
  };
  bool in_use_ = false;
  std::array<Entry, kSignalEntries> entries_;
};

// The receiver's side of one peer's signals: writes the words, and remembers the last mark.
class ArrivedSignals {
 public:
  // The peer may signal in this window from now on.
  void offer(const std::shared_ptr<Window>& window);
  // Immediate data, which may be anything. True: it was a mark.
  bool take_code(uint32_t code);
  // A definition, which may be anything.
  void take_definition(std::span<const std::byte> bytes);
  uint64_t marked() const { return marked_.load(std::memory_order_acquire); }

 private:
  struct Entry {
    std::weak_ptr<Window> window;
    uint64_t offset = 0;
    uint64_t word = 0;
  };
  static void write(const Entry& entry);
  void take_mark(uint32_t code);

  std::mutex mutex_;  // guards the two below
  std::array<Entry, kSignalEntries> entries_;
  std::unordered_map<uint64_t, std::weak_ptr<Window>> windows_;
  size_t sweep_at_ = 16;
  // Release/acquire: what was put before the mark is visible to who reads it.
  std::atomic<uint64_t> marked_{0};
};

}  // namespace mep::verbs
