// The text lives in a fixed array of each thread: making an error must not need memory.
#include "base/status.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace mep {
namespace {

thread_local char last_error[kErrorTextBytes] = "";

// Marks a text that did not fit, so that nobody takes its end for the whole.
void mark_truncated(char* text) {
  std::memcpy(text + kErrorTextBytes - 4, "...", 4);
}

void store(const char* text) {
  const size_t length = strnlen(text, kErrorTextBytes);
  if (length < kErrorTextBytes) {
    std::memmove(last_error, text, length + 1);
    return;
  }
  std::memmove(last_error, text, kErrorTextBytes - 1);
  mark_truncated(last_error);
}

// Formats into `text`; an argument may be last_error itself, so the result is stored only
// afterwards.
size_t format_text(char* text, const char* format, va_list arguments) {
  const int length = std::vsnprintf(text, kErrorTextBytes, format, arguments);
  if (length < 0) {
    std::snprintf(text, kErrorTextBytes, "(the error's text cannot be formatted: %s)", format);
    return std::strlen(text);
  }
  if (static_cast<size_t>(length) >= kErrorTextBytes) mark_truncated(text);
  return std::strlen(text);
}

}  // namespace

mep_result_t fail(mep_result_t code, const char* format, ...) {
  char text[kErrorTextBytes];
  va_list arguments;
  va_start(arguments, format);
  format_text(text, format, arguments);
  va_end(arguments);
  store(text);
  return code;
}

mep_result_t add_context(mep_result_t code, const char* format, ...) {
  char text[kErrorTextBytes];
  va_list arguments;
  va_start(arguments, format);
  const size_t length = format_text(text, format, arguments);
  va_end(arguments);
  const int added = std::snprintf(text + length, kErrorTextBytes - length, ": %s", last_error);
  if (added > 0 && static_cast<size_t>(added) >= kErrorTextBytes - length) mark_truncated(text);
  store(text);
  return code;
}

const char* last_error_text() {
  return last_error;
}

KeepErrorText::KeepErrorText() {
  std::memcpy(text_, last_error, sizeof text_);
}

void set_last_error_text(const char* text) {
  store(text != nullptr ? text : "");
}

}  // namespace mep
