#include "base/test_delay.hpp"

#if defined(MEP_TEST_HOOKS)

#include <sched.h>
#include <time.h>

#include <atomic>

namespace mep {
namespace {

// All relaxed: they steer delays and order nothing.
std::atomic<uint64_t> delay_seed{0};
std::atomic<uint32_t> delay_one_in{0};
std::atomic<uint64_t> thread_count{0};
std::atomic<uint64_t> passages{0};

uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace

void test_delays_enable(uint64_t seed, uint32_t one_in) {
  delay_seed.store(seed, std::memory_order_relaxed);
  delay_one_in.store(one_in, std::memory_order_relaxed);
}

uint64_t test_delay_passages() {
  return passages.load(std::memory_order_relaxed);
}

void test_delay_point(const char* name) {
  const uint32_t one_in = delay_one_in.load(std::memory_order_relaxed);
  if (one_in == 0) return;
  thread_local const uint64_t thread = thread_count.fetch_add(1, std::memory_order_relaxed);
  thread_local uint64_t count = 0;
  passages.fetch_add(1, std::memory_order_relaxed);
  uint64_t draw = mixed(delay_seed.load(std::memory_order_relaxed) + thread * 0x9e3779b97f4a7c15u);
  for (const char* letter = name; *letter != '\0'; ++letter) {
    draw = draw * 31 + static_cast<unsigned char>(*letter);
  }
  draw = mixed(draw + ++count * 0xd1342543de82ef95u);
  if (draw % one_in != 0) return;
  draw >>= 32;
  if (draw % 4 != 0) {
    for (uint64_t yields = draw / 4 % 8; yields != 0; --yields) sched_yield();
    return;
  }
  constexpr uint64_t kLongestNs = 300'000;
  const timespec pause{0, static_cast<long>(draw / 4 % kLongestNs)};
  nanosleep(&pause, nullptr);
}

}  // namespace mep

#endif
