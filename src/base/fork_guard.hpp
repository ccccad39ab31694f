// Keeps sockets from the children of fork(). A child that goes on without exec, such as a loader of data,
// has every descriptor of its parent: it would hold the parent's name and connections when the parent has
// ended, and nobody could take its place.
#pragma once

#include "base/fork_hold.hpp"

namespace mep {

// While one lives, no thread of this process forks: a socket is made and kept back under one guard.
class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // From now on a child of fork() finds nothing behind this number, for as long as the number means this
  // socket here. -1 is ignored; leaves errno as it is.
  void keep_back(int socket) const;

 private:
  ForkHold hold_;  // before any lock: a fork waits for sections first
};

}  // namespace mep
