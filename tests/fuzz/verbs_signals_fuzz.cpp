// A peer's signals over verbs: a sequence of codes (0, 4 bytes) and definitions (1, 32 bytes; else that
// many bytes, fewer at the end). The peer was offered window 9 and not window 8.
#include <algorithm>
#include <cstring>

#include "fuzz/fuzz_target.hpp"
#include "transport/verbs/signal_words.hpp"

namespace fuzz {
namespace {

constexpr size_t kBytes = 1000;  // the window ends within its page
constexpr size_t kPage = 4096;

std::shared_ptr<mep::Window> make_window(uint64_t id) {
  std::shared_ptr<mep::Window> window;
  require(mep::Window::create(id, kBytes, &window) == MEP_SUCCESS);
  return window;
}

bool is_zero(const std::byte* begin, const std::byte* end) {
  return std::all_of(begin, end, [](std::byte value) { return value == std::byte{0}; });
}

template <typename Value>
void append(std::vector<std::byte>* bytes, std::byte kind, const Value& value) {
  bytes->push_back(kind);
  const auto raw = std::as_bytes(std::span(&value, 1));
  bytes->insert(bytes->end(), raw.begin(), raw.end());
}

}  // namespace

void one(std::span<const std::byte> input) {
  static const std::shared_ptr<mep::Window> offered = make_window(9);
  static const std::shared_ptr<mep::Window> other = make_window(8);
  std::memset(offered->data(), 0, kBytes);
  const auto arrived = std::make_unique<mep::verbs::ArrivedSignals>();
  arrived->offer(offered);
  while (!input.empty()) {
    const auto kind = static_cast<size_t>(input[0]);
    input = input.subspan(1);
    const size_t wanted = kind == 0   ? sizeof(uint32_t)
                          : kind == 1 ? sizeof(mep::verbs::SignalDefinition)
                                      : kind;
    const auto part = input.first(std::min(wanted, input.size()));
    input = input.subspan(part.size());
    if (kind == 0) {
      uint32_t code = 0;
      std::memcpy(&code, part.data(), part.size());
      const uint64_t before = arrived->marked();
      const bool is_mark = arrived->take_code(code);
      require(is_mark || arrived->marked() == before);
      require(arrived->marked() >= before);
    } else {
      arrived->take_definition(part);
    }
  }
  require(is_zero(offered->data() + kBytes, offered->data() + kPage));
  require(is_zero(other->data(), other->data() + kPage));
}

void seeds(const Sink& sink) {
  const auto sent = std::make_unique<mep::verbs::SentSignals>();
  std::vector<std::byte> bytes;
  for (uint64_t i = 0; i < 12; ++i) {
    mep::verbs::SignalDefinition whole;
    uint32_t code = 0;
    if (sent->encode(9 - i / 11, i % 3 * 8, (i << 24) + i, &code, &whole)) {
      append(&bytes, std::byte{0}, code);
    } else {
      append(&bytes, std::byte{1}, whole);
    }
  }
  sink("signals", bytes);
  bytes.clear();
  append(&bytes, std::byte{0}, mep::verbs::kMarkBit | 5);
  append(&bytes, std::byte{0}, mep::verbs::kMarkBit | 3);
  sink("marks", bytes);
}

}  // namespace fuzz
