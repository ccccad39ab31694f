// Words in shared memory by which a process of this host learns that another one ends, before the kernel has torn the other's memory
// down, which takes up to 0.1 s a GB: only after that are its sockets closed and its pidfd readable.
//
// The owner's page has a word for each watcher. One thread of the owner holds them all by its robust list (get_robust_list(2)). When
// that thread begins to exit, for whatever reason, the kernel marks each word and wakes its watcher, before it lets go of the memory.
// Watchers map the page to read. A mark is a reason to look whether the process has ended (base/process_end.hpp), and no proof: a
// program that calls exec() ends its threads, too.
#pragma once

#include <linux/futex.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/unique_fd.hpp"
#include "transport/memfd.hpp"

namespace mep {

class DeathPage {
 public:
  static constexpr uint32_t kWords = 64;

  // Null: no descriptor or memory is left. Its process's end is seen later then.
  static std::shared_ptr<DeathPage> create();
  DeathPage(const DeathPage&) = delete;
  DeathPage& operator=(const DeathPage&) = delete;

  // For watchers: it can be mapped to read alone.
  int fd() const { return fd_.get(); }
  // By one thread, whose end is told from hold() to release().
  void hold();
  void release();

 private:
  friend class DeathWatch;
  // The kernel finds `futex` behind `link`, at the offset that its list has.
  struct Word {
    robust_list link;
    std::atomic<uint32_t>
        futex;  // 0, or the holder's thread id and FUTEX_WAITERS; the kernel adds FUTEX_OWNER_DIED
  };
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
  static constexpr size_t kBytes = kWords * sizeof(Word);

  DeathPage(UniqueFd fd, Mapping memory) : fd_(std::move(fd)), memory_(std::move(memory)) {}
  Word* words() const { return reinterpret_cast<Word*>(memory_.data()); }

  UniqueFd fd_;
  Mapping memory_;
  robust_list_head head_{};
  robust_list_head* previous_ = nullptr;  // of the holding thread, the C library's
};

// Watches pages of others, from a thread of its own that also holds this process's page. The thread begins with the first watch.
class DeathWatch {
 public:
  // own: may be null, then nothing is watched. ring: called by the thread when take() has something new.
  DeathWatch(std::shared_ptr<DeathPage> own, std::function<void()> ring);
  ~DeathWatch();
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;

  // page: of the process in `slot`, in the place of the one before. word: this process's there. Both are below kWords. Where memory is
  // short nothing is watched.
  void watch(uint32_t slot, int page, uint32_t word);
  // A bit for each slot whose word was marked since the last call. It is not watched any more.
  uint64_t take();

 private:
  struct Watched {
    Mapping page;
    uint32_t word = 0;
  };

  void loop();
  uint64_t read_words(class FutexWaits* waits);
  void knock();

  const std::shared_ptr<DeathPage> own_;
  const std::function<void()> ring_;
  std::mutex mutex_;
  std::array<Watched, DeathPage::kWords> watched_;  // by slot, under the mutex
  std::atomic<uint64_t> marked_{
      0};  // orders nothing: the looks that follow read the kernel's state
  // The thread waits on it, too. Release and acquire: publishes stopping_.
  std::atomic<uint32_t> knocks_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace mep
