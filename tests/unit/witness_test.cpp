// The register of the outside witness: written once, by one of those who try at the same time.
// labels: quick threads tsan
#include "core/world/witness.hpp"

#include <sys/stat.h>

#include <atomic>
#include <barrier>
#include <fstream>
#include <thread>
#include <vector>

#include "support/temporary_folder.hpp"

using namespace mep;
using mep_test::TemporaryFolder;

namespace {

size_t files_in(const std::string& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

void the_first_digest_stays(void**) {
  const TemporaryFolder folder;
  uint64_t held = 0;
  assert_int_equal(witness_store(folder.path(), "view.2", 0xabc, &held), MEP_SUCCESS);
  assert_int_equal(held, 0xabc);
  assert_int_equal(witness_store(folder.path(), "view.2", 0xffffffffffffffff, &held), MEP_SUCCESS);
  assert_int_equal(held, 0xabc);
  assert_int_equal(witness_store(folder.path(), "view.3", 7, &held), MEP_SUCCESS);
  assert_int_equal(held, 7);
  assert_int_equal(files_in(folder.path()), 2);  // no draft is left
}

void all_who_try_at_once_find_the_same(void**) {
  constexpr size_t kThreads = 8;
  constexpr size_t kRounds = 50;
  const TemporaryFolder folder;
  std::barrier together(kThreads);
  std::vector<std::vector<uint64_t>> held(kRounds, std::vector<uint64_t>(kThreads));
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (size_t own = 0; own < kThreads; ++own) {
    threads.emplace_back([&, own] {
      for (size_t round = 0; round < kRounds; ++round) {
        together.arrive_and_wait();
        const std::string name = "view." + std::to_string(round);
        if (witness_store(folder.path(), name, own + 1, &held[round][own]) != MEP_SUCCESS)
          ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  assert_int_equal(failures.load(), 0);
  for (const std::vector<uint64_t>& round : held) {
    assert_in_range(round[0], 1, kThreads);
    for (const uint64_t each : round) assert_int_equal(each, round[0]);
  }
  assert_int_equal(files_in(folder.path()), kRounds);
}

void what_is_no_digest_is_none(void**) {
  const TemporaryFolder folder;
  for (const char* text : {"", "12", "000000000000000g", "00000000000000001"}) {
    std::ofstream(folder.path() + "/view.2", std::ios::trunc) << text;
    uint64_t held = 0;
    assert_int_equal(witness_store(folder.path(), "view.2", 1, &held), MEP_ERR_SYSTEM);
  }
  uint64_t held = 0;
  assert_int_equal(witness_store(folder.path() + "/none", "view.2", 1, &held), MEP_ERR_SYSTEM);
}

void names_tell_views_apart(void**) {
  membership::View view;
  view.epoch = 1;
  view.put({0, 11, 1});
  view.put({1, 12, 1});
  const std::string name = witness_name(view, 2);
  assert_string_equal(witness_name(view, 2).c_str(), name.c_str());
  assert_string_not_equal(witness_name(view, 3).c_str(), name.c_str());
  view.put({1, 13, 1});
  assert_string_not_equal(witness_name(view, 2).c_str(), name.c_str());
}

// The directory goes away and comes back: the answer comes then.
void it_tries_until_it_can(void**) {
  const TemporaryFolder folder;
  const std::string inner = folder.path() + "/shared";
  std::filesystem::create_directory(inner);
  std::atomic<uint64_t> answer{0};
  std::unique_ptr<Witness> witness;
  assert_int_equal(Witness::open(
                       inner, [&](uint64_t, uint64_t digest) { answer.store(digest); }, &witness),
                   MEP_SUCCESS);
  std::filesystem::rename(inner, folder.path() + "/away");
  membership::View view;
  view.put({0, 11, 1});
  witness->ask(view, 2, 5);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // some tries; not what is tested
  assert_int_equal(answer.load(), 0);
  std::filesystem::rename(folder.path() + "/away", inner);
  for (int i = 0; i < 60'000 && answer.load() == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  assert_int_equal(answer.load(), 5);
  witness.reset();
}

void a_bad_directory_is_named(void**) {
  const TemporaryFolder folder;
  std::unique_ptr<Witness> witness;
  assert_int_equal(Witness::open(folder.path() + "/none", nullptr, &witness), MEP_ERR_NOT_FOUND);
  std::ofstream(folder.path() + "/mep-witness") << "a file";
  assert_int_equal(Witness::open(folder.path(), nullptr, &witness), MEP_ERR_DENIED);
  assert_null(witness.get());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(the_first_digest_stays),
      cmocka_unit_test(all_who_try_at_once_find_the_same),
      cmocka_unit_test(what_is_no_digest_is_none),
      cmocka_unit_test(names_tell_views_apart),
      cmocka_unit_test(it_tries_until_it_can),
      cmocka_unit_test(a_bad_directory_is_named),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
