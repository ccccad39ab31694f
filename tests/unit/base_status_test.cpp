// fail(), add_context() and the thread's error text: nesting, truncation, threads.
// labels: quick threads tsan
#include <stdint.h>

#include <cstring>
#include <string>
#include <thread>

#include "base/status.hpp"
#include "support/cmocka_cpp.hpp"

namespace {

mep_result_t inner(mep_result_t result) {
  if (result != MEP_SUCCESS) return mep::fail(result, "inner failed on item %d", 7);
  return MEP_SUCCESS;
}

mep_result_t outer(mep_result_t result, bool* passed) {
  MEP_TRY(inner(result));
  *passed = true;
  return MEP_SUCCESS;
}

void fail_sets_text_and_code(void**) {
  assert_int_equal(mep::fail(MEP_ERR_SYSTEM, "open %s: %d", "/x", 13), MEP_ERR_SYSTEM);
  assert_string_equal(mep::last_error_text(), "open /x: 13");
}

void try_leaves_at_the_first_error(void**) {
  bool passed = false;
  assert_int_equal(outer(MEP_ERR_TIMEOUT, &passed), MEP_ERR_TIMEOUT);
  assert_false(passed);
  assert_string_equal(mep::last_error_text(), "inner failed on item 7");
  assert_int_equal(outer(MEP_SUCCESS, &passed), MEP_SUCCESS);
  assert_true(passed);
}

void context_goes_in_front(void**) {
  assert_int_equal(mep::add_context(mep::fail(MEP_ERR_DENIED, "no"), "rank %d", 3), MEP_ERR_DENIED);
  assert_string_equal(mep::last_error_text(), "rank 3: no");
  assert_int_equal(mep::add_context(MEP_ERR_DENIED, "start"), MEP_ERR_DENIED);
  assert_string_equal(mep::last_error_text(), "start: rank 3: no");
}

void present_text_may_be_an_argument(void**) {
  (void)mep::fail(MEP_ERR_SYSTEM, "first");
  (void)mep::fail(MEP_ERR_SYSTEM, "second after (%s)", mep::last_error_text());
  assert_string_equal(mep::last_error_text(), "second after (first)");
  mep::set_last_error_text(mep::last_error_text() + 7);
  assert_string_equal(mep::last_error_text(), "after (first)");
  mep::set_last_error_text(nullptr);
  assert_string_equal(mep::last_error_text(), "");
}

void long_texts_are_cut_and_marked(void**) {
  const std::string text(5000, 'a');
  for (int form = 0; form < 3; ++form) {
    mep::set_last_error_text("short");
    if (form == 0) (void)mep::fail(MEP_ERR_SYSTEM, "%s", text.c_str());
    if (form == 1) (void)mep::add_context(MEP_ERR_SYSTEM, "%s", text.c_str());
    if (form == 2) mep::set_last_error_text(text.c_str());
    const std::string cut = mep::last_error_text();
    assert_int_equal(cut.size(), 1023);
    assert_string_equal(cut.c_str() + 1020, "...");
    assert_int_equal(cut[1019], 'a');
  }
  // A context that fits, before a text that then does not.
  mep::set_last_error_text(std::string(1000, 'b').c_str());
  (void)mep::add_context(MEP_ERR_SYSTEM, "%s", std::string(100, 'c').c_str());
  const std::string cut = mep::last_error_text();
  assert_int_equal(cut.size(), 1023);
  assert_string_equal(cut.c_str() + 1020, "...");
  assert_memory_equal(cut.c_str() + 99, "c: b", 4);
}

void texts_belong_to_threads(void**) {
  (void)mep::fail(MEP_ERR_SYSTEM, "of main");
  std::string before;
  std::string after;
  std::thread other([&] {
    before = mep::last_error_text();
    (void)mep::fail(MEP_ERR_SYSTEM, "of other");
    after = mep::last_error_text();
  });
  other.join();
  assert_string_equal(before.c_str(), "");
  assert_string_equal(after.c_str(), "of other");
  assert_string_equal(mep::last_error_text(), "of main");
}

void only_negative_results_are_errors(void**) {
  assert_false(mep::is_error(MEP_SUCCESS));
  assert_false(mep::is_error(MEP_PARTIAL));
  assert_true(mep::is_error(MEP_ERR_INVALID_ARGUMENT));
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(fail_sets_text_and_code),
      cmocka_unit_test(try_leaves_at_the_first_error),
      cmocka_unit_test(context_goes_in_front),
      cmocka_unit_test(present_text_may_be_an_argument),
      cmocka_unit_test(long_texts_are_cut_and_marked),
      cmocka_unit_test(texts_belong_to_threads),
      cmocka_unit_test(only_negative_results_are_errors),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
