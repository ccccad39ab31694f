// The end of an operation that somebody may sleep on.
#pragma once

#include <unistd.h>

#include <cstdint>

namespace mep {

// Makes an eventfd readable; -1: there is none.
inline void ring_event(int event) {
  const uint64_t one = 1;
  // Cannot fail in a way that matters: the counter is full only if it is readable already.
  if (event >= 0) (void)!write(event, &one, sizeof one);
}

}  // namespace mep
