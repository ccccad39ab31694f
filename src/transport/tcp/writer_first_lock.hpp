// A reader-writer lock in which a waiting writer goes first: readers that come again and again, as
// threads that poll do, cannot keep it out. Not recursive, for readers either.
#pragma once

#include <pthread.h>

namespace mep::tcp {

class WriterFirstLock {
 public:
  WriterFirstLock() {
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&lock_, &attributes);
    pthread_rwlockattr_destroy(&attributes);
  }
  ~WriterFirstLock() { pthread_rwlock_destroy(&lock_); }
  WriterFirstLock(const WriterFirstLock&) = delete;
  WriterFirstLock& operator=(const WriterFirstLock&) = delete;

  // The names that std::unique_lock and std::shared_lock ask for.
  void lock() { pthread_rwlock_wrlock(&lock_); }
  void unlock() { pthread_rwlock_unlock(&lock_); }
  void lock_shared() { pthread_rwlock_rdlock(&lock_); }
  void unlock_shared() { pthread_rwlock_unlock(&lock_); }

 private:
  pthread_rwlock_t lock_;
};

}  // namespace mep::tcp
