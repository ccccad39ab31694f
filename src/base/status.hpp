// The one way an error is made: fail() stores the detail text of this thread and returns the code.
// Success costs nothing; the text is built on the failing path only and never throws.
#pragma once

#include <cstddef>

#include "mep.h"

namespace mep {

// Sets this thread's mep_last_error() text (printf form) and returns `code`. Allocates nothing.
#if defined(__clang_analyzer__)
// The static analyzer sees no other file: it must be told that the code comes back.
template <typename... Values>
[[nodiscard]] inline mep_result_t fail(mep_result_t code, const char*, Values...) {
  return code;
}
#else
[[nodiscard]] mep_result_t fail(mep_result_t code, const char* format, ...)
    __attribute__((format(printf, 2, 3), cold));
#endif

// Puts "PREFIX: " before this thread's present text and returns `code` unchanged.
mep_result_t add_context(mep_result_t code, const char* format, ...)
    __attribute__((format(printf, 2, 3), cold));

const char* last_error_text();
void set_last_error_text(const char* text);

constexpr size_t kErrorTextBytes = 1024;

// Gives this thread's text back at its end: around what may fail itself after the failure that counts.
class KeepErrorText {
 public:
  KeepErrorText();
  ~KeepErrorText() { set_last_error_text(text_); }
  KeepErrorText(const KeepErrorText&) = delete;
  KeepErrorText& operator=(const KeepErrorText&) = delete;

 private:
  char text_[kErrorTextBytes];
};

// Negative results are errors; positive ones (MEP_PARTIAL) are qualified success.
constexpr bool is_error(mep_result_t result) {
  return result < 0;
}

}  // namespace mep

// Leaves the enclosing function with the error of `expression`, if it has one.
#define MEP_TRY(expression)                                   \
  do {                                                        \
    const mep_result_t mep_try_result = (expression);         \
    if (mep_try_result != MEP_SUCCESS) return mep_try_result; \
  } while (0)
