// labels: quick threads tsan asan
// A window is found among thousands in a few steps, while others come and go.
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "support/transport_rig.hpp"
#include "transport/window_table.hpp"

namespace {

using mep::RemoteWindow;
using mep::WindowTable;

constexpr uint64_t kWindows = 20000;

// How ids look: counted, aligned, hashes, counted in their upper half.
uint64_t id_of(uint32_t kind, uint64_t index) {
  std::mt19937_64 random(mep::test::test_seed() + index);
  switch (kind) {
    case 0:
      return index;
    case 1:
      return index << 12;
    case 2:
      return random() >> 1;
    default:
      return index << 40;
  }
}

std::byte* address_of(uint64_t id) {
  return reinterpret_cast<std::byte*>(id + 1);
}

void many_windows_are_found_in_few_steps(void**) {
  for (uint32_t kind = 0; kind < 4; ++kind) {
    WindowTable table;
    uint64_t steps = 0;
    uint64_t most = 0;
    for (uint64_t i = 0; i < kWindows; ++i)
      table.add(id_of(kind, i), {address_of(i), 8, 0, {}, {}});
    for (uint64_t i = 0; i < kWindows; ++i) {
      const RemoteWindow* window = table.find(id_of(kind, i));
      assert_non_null(window);
      assert_ptr_equal(window->data, address_of(i));
      const uint64_t here = table.steps(id_of(kind, i));
      steps += here;
      most = std::max(most, here);
    }
    assert_null(table.find(id_of(kind, kWindows)));
    if (steps > 3 * kWindows || most > 24) {
      fail_msg("ids of kind %u: %llu steps for %llu windows, %llu at most", kind,
               static_cast<unsigned long long>(steps), static_cast<unsigned long long>(kWindows),
               static_cast<unsigned long long>(most));
    }
  }
}

// Dropped records are used again, whatever ids follow.
void records_do_not_pile_up(void**) {
  WindowTable table;
  std::mt19937_64 random(mep::test::test_seed());
  std::vector<uint64_t> live;
  for (int round = 0; round < 200000; ++round) {
    if (live.size() == 50) {
      const size_t victim = random() % live.size();
      assert_true(table.drop(live[victim]));
      assert_null(table.find(live[victim]));
      assert_false(table.drop(live[victim]));
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    live.push_back(random() >> 1);
    table.add(live.back(), {address_of(7), 8, 0, {}, {}});
  }
  for (const uint64_t id : live) assert_non_null(table.find(id));
  assert_true(table.records() < 1000);
}

void searches_go_on_while_others_come_and_go(void**) {
  WindowTable table;
  constexpr uint64_t kKept = 16;
  for (uint64_t id = 0; id < kKept; ++id) table.add(id, {address_of(id), 8, 0, {}, {}});
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> found{0};
  std::atomic<bool> wrong{false};
  std::thread searching([&] {
    do {
      for (uint64_t id = 0; id < kKept; ++id) {
        const RemoteWindow* window = table.find(id);
        if (window == nullptr || window->data != address_of(id)) wrong.store(true);
        found.fetch_add(1, std::memory_order_relaxed);
      }
    } while (!stop.load());
  });
  for (uint64_t round = 0; round < 20; ++round) {
    for (uint64_t id = 1000; id < 3000; ++id)
      table.add(id * (round + 1), {address_of(id), 8, 0, {}, {}});
    for (uint64_t id = 1000; id < 3000; ++id) assert_true(table.drop(id * (round + 1)));
  }
  while (found.load() == 0) std::this_thread::yield();
  stop.store(true);
  searching.join();
  assert_false(wrong.load());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(many_windows_are_found_in_few_steps),
      cmocka_unit_test(records_do_not_pile_up),
      cmocka_unit_test(searches_go_on_while_others_come_and_go),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
