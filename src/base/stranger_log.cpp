#include "base/stranger_log.hpp"

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>

#include "base/clock.hpp"
#include "base/log.hpp"

namespace mep {
namespace {

constexpr uint64_t kEveryNs = 60'000'000'000;

// Both publish nothing but themselves, to the other threads that log strangers.
std::atomic<uint64_t> next_ns{0};
std::atomic<uint64_t> left_out{0};

}  // namespace

void allow_stranger_line_for_test() {
  next_ns.store(0, std::memory_order_relaxed);
}

void log_stranger(const char* format, ...) {
  if (!log_enabled(LogLevel::kWarn)) return;
  const uint64_t now = now_ns();
  uint64_t next = next_ns.load(std::memory_order_relaxed);
  if (now < next ||
      !next_ns.compare_exchange_strong(next, now + kEveryNs, std::memory_order_relaxed)) {
    left_out.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (length < 0) return;
  const uint64_t more = left_out.exchange(0, std::memory_order_relaxed);
  if (more == 0) {
    log(LogLevel::kWarn, "%s", text);
  } else {
    log(LogLevel::kWarn, "%s (and %llu more since the last such line)", text,
        static_cast<unsigned long long>(more));
  }
}

}  // namespace mep
