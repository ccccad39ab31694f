#include "transport/verbs/signal_words.hpp"

#include <cstring>

#include "base/log.hpp"

namespace mep::verbs {
namespace {

// A code: entry, growth of the word's upper 40 bits (a tag, which counts), and of its lower 24, as in
// protocol/signal_word.hpp. Other words are right too, and sent whole.
constexpr unsigned kLowBits = 24;
constexpr uint64_t kLowMask = (uint64_t{1} << kLowBits) - 1;
constexpr uint64_t kHighMask = UINT64_MAX >> kLowBits;
constexpr unsigned kHighGrowthBits = 7;
constexpr unsigned kLowGrowthBits = 14;
constexpr uint64_t kLowGrowthBias = uint64_t{1} << (kLowGrowthBits - 1);
constexpr unsigned kEntryBits = 9;
static_assert(kSignalEntries == 1u << kEntryBits);
static_assert(kEntryBits + kHighGrowthBits + kLowGrowthBits == 30);

uint32_t entry_of(uint64_t window, uint64_t offset) {
  const uint64_t mixed = (window * 0x9e3779b97f4a7c15u + (offset >> 3)) * 0xbf58476d1ce4e5b9u;
  return static_cast<uint32_t>(mixed >> (64 - kEntryBits));
}

}  // namespace

bool SentSignals::encode(uint64_t window, uint64_t offset, uint64_t word, uint32_t* code,
                         SignalDefinition* definition) {
  in_use_ = true;
  const uint32_t index = entry_of(window, offset);
  Entry& entry = entries_[index];
  // Both around their ends; the lower one may shrink, hence the bias.
  const uint64_t high = ((word >> kLowBits) - (entry.word >> kLowBits)) & kHighMask;
  const uint64_t low = (word - entry.word + kLowGrowthBias) & kLowMask;
  const bool fits = entry.is_set && entry.window == window && entry.offset == offset &&
                    high >> kHighGrowthBits == 0 && low >> kLowGrowthBits == 0;
  entry = {true, window, offset, word};
  if (fits) {
    *code = kSignalBit | index << (kHighGrowthBits + kLowGrowthBits) |
            static_cast<uint32_t>(high) << kLowGrowthBits | static_cast<uint32_t>(low);
  } else {
    *definition = {window, offset, word, index};
  }
  return fits;
}

void SentSignals::forget(uint64_t window) {
  for (Entry& entry : entries_) {
    if (entry.window == window) entry.is_set = false;
  }
}

void ArrivedSignals::offer(const std::shared_ptr<Window>& window) {
  const std::lock_guard lock(mutex_);
  windows_[window->id()] = window;
  if (windows_.size() < sweep_at_) return;
  std::erase_if(windows_, [](const auto& entry) { return entry.second.expired(); });
  sweep_at_ = 2 * windows_.size() + 16;
}

bool ArrivedSignals::take_code(uint32_t code) {
  if ((code & kMarkBit) != 0) {
    take_mark(code);
    return true;
  }
  if ((code & kSignalBit) == 0) return false;
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[(code & (kSignalBit - 1)) >> (kHighGrowthBits + kLowGrowthBits)];
  const uint64_t high = (code >> kLowGrowthBits) & ((1u << kHighGrowthBits) - 1);
  const uint64_t low = (code & ((1u << kLowGrowthBits) - 1)) - kLowGrowthBias;
  entry.word = ((entry.word >> kLowBits) + high) << kLowBits | ((entry.word + low) & kLowMask);
  write(entry);
  return false;
}

void ArrivedSignals::take_definition(std::span<const std::byte> bytes) {
  SignalDefinition told;
  if (bytes.size() != sizeof told) return;
  std::memcpy(&told, bytes.data(), sizeof told);
  if (told.entry >= kSignalEntries) return;
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[told.entry];
  entry = {};
  const auto offered = windows_.find(told.window);
  if (offered == windows_.end()) return;
  const std::shared_ptr<Window> window = offered->second.lock();
  if (window == nullptr || told.offset % sizeof told.word != 0 || told.offset > window->bytes() ||
      window->bytes() - told.offset < sizeof told.word) {
    log(LogLevel::kDebug, "verbs: a signal for no word of window %llu is left out",
        static_cast<unsigned long long>(told.window));
    return;
  }
  entry = {window, told.offset, told.word};
  write(entry);
}

void ArrivedSignals::write(const Entry& entry) {
  const std::shared_ptr<Window> window = entry.window.lock();
  if (window == nullptr) return;
  // Release: the puts before it, which the HCA has written before it told of the signal.
  reinterpret_cast<std::atomic<uint64_t>*>(window->data() + entry.offset)
      ->store(entry.word, std::memory_order_release);
}

// Numbers grow and are never far apart: the lowest one above the last that ends in these bits. One
// thread at a time takes what arrives of one queue pair.
void ArrivedSignals::take_mark(uint32_t code) {
  constexpr uint64_t kRange = kMarkBit;
  const uint64_t last = marked_.load(std::memory_order_relaxed);
  uint64_t number = (last & ~(kRange - 1)) | (code & (kMarkBit - 1));
  if (number < last) number += kRange;
  marked_.store(number, std::memory_order_release);
}

}  // namespace mep::verbs
