// Calls that must be refused.
#pragma once

#include <string>

#include "mep.h"

// The refusal of `call`, and that its text has `part`.
#define EXPECT_REFUSED(report, code, part, call)                                                 \
  do {                                                                                           \
    const mep_result_t refused = (call);                                                         \
    if (refused != (code) || std::string(mep_last_error()).find(part) == std::string::npos) {    \
      (report).add("line %d: %s (%s), not %s with \"%s\"", __LINE__, mep_result_string(refused), \
                   mep_last_error(), mep_result_string(code), part);                             \
    }                                                                                            \
  } while (0)
