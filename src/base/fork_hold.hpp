// Sections that a fork() must not cut in two: those under a lock of the whole process, and the first use of
// what is made once in a process. In the child of a fork nobody is left to end such a section, so a fork
// waits until no thread is inside one, and a child that starts a world of its own finds all locks free.
//
// For short sections that call nobody else; one may lie within another.
#pragma once

namespace mep {

class ForkHold {
 public:
  ForkHold();
  ~ForkHold();
  ForkHold(const ForkHold&) = delete;
  ForkHold& operator=(const ForkHold&) = delete;
};

}  // namespace mep
