// labels: quick
// Environment variables: the table, and texts that are right, wrong, or at the edge of a range.
#include <stdint.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "base/env.hpp"
#include "base/status.hpp"
#include "support/cmocka_cpp.hpp"

namespace {

constexpr const char* kName = "MEP_TIMEOUT_MS";

void expect_text_has(const char* part) {
  if (std::strstr(mep::last_error_text(), part) == nullptr) {
    fail_msg("the error text \"%s\" lacks \"%s\"", mep::last_error_text(), part);
  }
}

void table_is_complete_and_without_doubles(void**) {
  std::set<std::string> names;
  for (const mep::EnvVariable& variable : mep::env_table()) {
    assert_true(names.insert(variable.name).second);
    assert_non_null(variable.default_text);
    assert_true(std::strlen(variable.help) > 0);
  }
  for (const char* name : {"MEP_RANK", "MEP_SIZE", "MEP_JOB", "MEP_LOG", "MEP_SIMD"}) {
    assert_int_equal(names.count(name), 1);
  }
}

void unset_and_empty_leave_the_value(void**) {
  for (const char* text : {static_cast<const char*>(nullptr), ""}) {
    if (text == nullptr) {
      unsetenv(kName);
    } else {
      setenv(kName, text, 1);
    }
    uint64_t number = 17;
    bool flag = true;
    std::string string = "kept";
    bool is_set = true;
    assert_int_equal(mep::env_uint(kName, 20, 30, &number, &is_set), MEP_SUCCESS);
    assert_false(is_set);
    is_set = true;
    assert_int_equal(mep::env_bool(kName, &flag, &is_set), MEP_SUCCESS);
    assert_false(is_set);
    is_set = true;
    assert_int_equal(mep::env_string(kName, &string, &is_set), MEP_SUCCESS);
    assert_false(is_set);
    assert_int_equal(number, 17);
    assert_true(flag);
    assert_string_equal(string.c_str(), "kept");
  }
}

void numbers_are_whole_and_in_range(void**) {
  struct Case {
    const char* text;
    bool is_right;
    uint64_t value;
  };
  const Case cases[] = {
      {"5", true, 5},
      {"20", true, 20},
      {"007", true, 7},
      {"4", false, 0},
      {"21", false, 0},
      {"12x", false, 0},
      {" 12", false, 0},
      {"12 ", false, 0},
      {"+12", false, 0},
      {"-12", false, 0},
      {"0x10", false, 0},
      {"1e1", false, 0},
      {"12.0", false, 0},
      {"18446744073709551616", false, 0},
      {"99999999999999999999999999", false, 0},
  };
  for (const Case& c : cases) {
    setenv(kName, c.text, 1);
    uint64_t value = 111;
    bool is_set = false;
    const mep_result_t result = mep::env_uint(kName, 5, 20, &value, &is_set);
    if (c.is_right) {
      assert_int_equal(result, MEP_SUCCESS);
      assert_true(is_set);
      assert_int_equal(value, c.value);
    } else {
      assert_int_equal(result, MEP_ERR_INVALID_ARGUMENT);
      assert_false(is_set);
      assert_int_equal(value, 111);
      expect_text_has(kName);
      expect_text_has(c.text);
    }
  }
  setenv(kName, "18446744073709551615", 1);
  uint64_t value = 0;
  bool is_set = false;
  assert_int_equal(mep::env_uint(kName, 0, UINT64_MAX, &value, &is_set), MEP_SUCCESS);
  assert_true(value == UINT64_MAX);
  setenv(kName, "3", 1);
  assert_int_equal(mep::env_uint(kName, 5, 20, &value, &is_set), MEP_ERR_INVALID_ARGUMENT);
  expect_text_has("5 to 20");
}

void booleans_have_eight_spellings(void**) {
  for (const char* text : {"1", "true", "yes", "on", "TRUE", "On"}) {
    setenv("MEP_MAP", text, 1);
    bool value = false;
    bool is_set = false;
    assert_int_equal(mep::env_bool("MEP_MAP", &value, &is_set), MEP_SUCCESS);
    assert_true(is_set && value);
  }
  for (const char* text : {"0", "false", "no", "off", "NO"}) {
    setenv("MEP_MAP", text, 1);
    bool value = true;
    bool is_set = false;
    assert_int_equal(mep::env_bool("MEP_MAP", &value, &is_set), MEP_SUCCESS);
    assert_true(is_set && !value);
  }
  for (const char* text : {"2", "y", "truee", "01"}) {
    setenv("MEP_MAP", text, 1);
    bool value = true;
    bool is_set = true;
    assert_int_equal(mep::env_bool("MEP_MAP", &value, &is_set), MEP_ERR_INVALID_ARGUMENT);
    assert_false(is_set);
    assert_true(value);
    expect_text_has(text);
  }
  unsetenv("MEP_MAP");
}

void strings_come_whole(void**) {
  const std::string text(3000, 'z');
  setenv("MEP_JOB", text.c_str(), 1);
  std::string value;
  bool is_set = false;
  assert_int_equal(mep::env_string("MEP_JOB", &value, &is_set), MEP_SUCCESS);
  assert_true(is_set);
  assert_true(value == text);
}

void variables_outside_the_table_are_refused(void**) {
  setenv("MEP_UNHEARD_OF", "1", 1);
  std::string string;
  uint64_t number = 0;
  bool flag = false;
  bool is_set = false;
  assert_int_equal(mep::env_string("MEP_UNHEARD_OF", &string, &is_set), MEP_ERR_INTERNAL);
  assert_int_equal(mep::env_uint("MEP_UNHEARD_OF", 0, 9, &number, &is_set), MEP_ERR_INTERNAL);
  assert_int_equal(mep::env_bool("MEP_UNHEARD_OF", &flag, &is_set), MEP_ERR_INTERNAL);
  expect_text_has("MEP_UNHEARD_OF");
}

void misspelt_variables_are_named(void**) {
  for (const std::string& text : mep::unknown_variables()) {
    unsetenv(text.substr(0, text.find(' ')).c_str());  // of this test's own environment
  }
  setenv("MEP_TIMEOUT_MS", "5", 1);
  setenv("MEP_TEST_ANYTHING", "1", 1);
  setenv("MEP_MOONCAKE", "sglang.launch_server", 1);
  setenv("MEP_NIXL_EP", "1", 1);
  setenv("MEP_SGLANG", "1", 1);
  setenv("MEPHISTO", "1", 1);
  assert_true(mep::unknown_variables().empty());
  setenv("MEP_TIMEOUTMS", "5", 1);
  setenv("MEP_QUITE_ANOTHER_NAME", "5", 1);
  const std::vector<std::string> texts = mep::unknown_variables();
  const std::set<std::string> found(texts.begin(), texts.end());
  const std::set<std::string> expected = {
      "MEP_TIMEOUTMS is no variable of MEP; is MEP_TIMEOUT_MS meant?",
      "MEP_QUITE_ANOTHER_NAME is no variable of MEP"};
  assert_true(found == expected);
  for (const char* name : {"MEP_TIMEOUT_MS", "MEP_TIMEOUTMS", "MEP_QUITE_ANOTHER_NAME"})
    unsetenv(name);
}

void each_variable_of_a_choice_or_range_is_checked(void**) {
  struct Case {
    const char* name;
    const char* wrong;
    const char* allowed;
    const char* right;
  };
  const Case cases[] = {
      {"MEP_LOG", "trace", "error, warn, info, debug", "error"},
      {"MEP_SIMD", "foo", "portable, avx2, avx512", "avx2"},
      {"MEP_CUDA_REACH", "foo", "auto, host, queues, mixed", "queues"},
      {"MEP_GPU_QUEUES", "nic", "host, adapter, auto", "auto"},
      {"MEP_SPIN_US", "10000001", "0 to 10000000", "10000000"},
      {"MEP_LOCAL_RANK", "-1", "whole number", "0"},
      {"MEP_LAUNCH_FD", "x", "whole number", "9"},
      {"MEP_IB_SL", "16", "0 to 15", "15"},
      {"MEP_IB_TC", "256", "0 to 255", "255"},
      {"MEP_IB_GID_INDEX", "256", "0 to 255", "255"},
      {"MEP_IB_TIMEOUT", "7", "8 to 22", "8"},
      {"MEP_IB_CACHE_MIB", "1048577", "0 to 1048576", "1048576"},
      {"MEP_AUTHENTICATE", "maybe", "neither 1", "1"},
      {"MEP_ENCRYPT", "2", "neither 1", "on"},
      {"MEP_MAP", "y", "neither 1", "0"},
      {"MEP_PROGRESS_THREAD", "01", "neither 1", "no"},
      {"MEP_ALLOW_INSECURE", "-", "neither 1", "yes"},
      {"MEP_HCA", "mlx5_0:0", "MEP_HCA", "mlx5_*:1"},
  };
  for (const Case& c : cases) {
    setenv(c.name, c.wrong, 1);
    assert_int_equal(mep::check_environment(), MEP_ERR_INVALID_ARGUMENT);
    for (const char* part : {c.name, c.wrong, c.allowed}) expect_text_has(part);
    for (const char* right : {c.right, ""}) {
      setenv(c.name, right, 1);
      assert_int_equal(mep::check_environment(), MEP_SUCCESS);
    }
    unsetenv(c.name);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(table_is_complete_and_without_doubles),
      cmocka_unit_test(unset_and_empty_leave_the_value),
      cmocka_unit_test(numbers_are_whole_and_in_range),
      cmocka_unit_test(booleans_have_eight_spellings),
      cmocka_unit_test(strings_come_whole),
      cmocka_unit_test(variables_outside_the_table_are_refused),
      cmocka_unit_test(misspelt_variables_are_named),
      cmocka_unit_test(each_variable_of_a_choice_or_range_is_checked),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
