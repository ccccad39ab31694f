/* Shared by the ABI tests: CMocka with the headers it needs, and EXPECT. They are C and link
 * libmep.so alone, as a user's program does. */
#ifndef MEP_TESTS_ABI_ABI_TEST_H
#define MEP_TESTS_ABI_ABI_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <mep.h>

/* The call must give exactly this result; an error must come with a text. */
#define EXPECT(code, call) expect_result((code), (call), #call, __FILE__, __LINE__)
#define MUST(call) EXPECT(MEP_SUCCESS, call)

static inline void expect_result(mep_result_t expected, mep_result_t result, const char* call,
                                 const char* file, int line) {
  if (result != expected) {
    print_error("%s\n  gave %s, expected %s; text: %s\n", call, mep_result_string(result),
                mep_result_string(expected), result < 0 ? mep_last_error() : "");
    _fail(file, line);
  }
  if (result < 0 && mep_last_error()[0] == '\0') {
    print_error("%s\n  gave %s without a text\n", call, mep_result_string(result));
    _fail(file, line);
  }
}

/* For functions that a version may leave out: MEP_ERR_UNSUPPORTED with the words "not built yet".
 */
#define EXPECT_IF_BUILT(code, call)                                                            \
  do {                                                                                         \
    const mep_result_t result_ = (call);                                                       \
    if (result_ != MEP_ERR_UNSUPPORTED || strstr(mep_last_error(), "not built yet") == NULL) { \
      expect_result((code), result_, #call, __FILE__, __LINE__);                               \
    }                                                                                          \
  } while (0)

#endif
