// cmocka.h needs these headers before it, and in C++ the linkage around it; one place keeps both.
#pragma once

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

// The macro fail would hide mep::fail(); tests say fail_msg(), which must then do without it.
#undef fail
#undef fail_msg
#define fail_msg(...)          \
  do {                         \
    print_error("ERROR: ");    \
    print_error(__VA_ARGS__);  \
    print_error("\n");         \
    _fail(__FILE__, __LINE__); \
  } while (0)
