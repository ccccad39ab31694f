#include "base/fork_hold.hpp"

#include <pthread.h>

namespace mep {
namespace {

// Readers go first, so that a section within another does not wait for a fork that waits for the outer one.
pthread_rwlock_t gate = PTHREAD_RWLOCK_INITIALIZER;

void before_fork() {
  pthread_rwlock_wrlock(&gate);
}

void after_fork_in_parent() {
  pthread_rwlock_unlock(&gate);
}

void after_fork_in_child() {
  // Made anew: who waited for it is not here.
  gate = PTHREAD_RWLOCK_INITIALIZER;
}

// When the library is loaded, before any thread can be inside.
[[maybe_unused]] const int kWatches =
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);

}  // namespace

ForkHold::ForkHold() {
  pthread_rwlock_rdlock(&gate);
}

ForkHold::~ForkHold() {
  pthread_rwlock_unlock(&gate);
}

}  // namespace mep
