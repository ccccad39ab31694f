// Memory of another process of this host, read without its help (process_vm_readv), and how a reader knows that what
// it has read is what the owner meant.
//
// A pid says little about whose memory is read: its process may have ended and another one may have it. So each owner
// has a watched word, at an address of its own, with a value that nobody can guess. A reader that finds the value
// there, after what it has read, knows that this is the owner's process, and that it was all the time before: a pid is
// given to another process only when its own has ended. A child of the owner does not have the value.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace mep {

// A word of this process that peers read. It has a page of its own, which reads as zeros in a child of fork.
class WatchedWord {
 public:
  WatchedWord() = default;
  WatchedWord(WatchedWord&& other) noexcept : word_(std::exchange(other.word_, nullptr)) {}
  WatchedWord& operator=(WatchedWord&& other) noexcept {
    std::swap(word_, other.word_);
    return *this;
  }
  ~WatchedWord();

  // False: it cannot be had here, so nobody reads this process.
  [[nodiscard]] bool make();
  bool is_made() const { return word_ != nullptr; }
  uint64_t address() const { return reinterpret_cast<uintptr_t>(word_); }
  uint64_t value() const;
  // A reader that finds the value finds all that the caller has written before.
  void show(uint64_t value);
  // From here on nobody finds the value, and all that the caller writes from now on comes later. It also sees what a
  // peer has written before it found the value.
  void hide();

 private:
  std::atomic<uint64_t>* word_ = nullptr;
};

// Orders all that this thread reads and writes before it before all that it does after, for peers that fence too.
void full_fence();

// Not 0. Nobody can guess it, also who knows all others. 0: there is none.
uint64_t unguessable_number();

// Reads up to `bytes` at `address` of the process; returns how many. Fewer: errno says why. One that has ended, unmapped
// memory and a forbidden read are answers like any other.
size_t read_peer_memory(pid_t pid, uint64_t address, void* to, size_t bytes);
// Whether other processes can read these bytes of this one, by their ends. Memory of devices, say, is read by its process alone.
bool others_can_read(const std::byte* memory, size_t bytes);
// The state of this process that decides who may read it. A change of user or PR_SET_DUMPABLE shows here at once.
class ReadRights {
 public:
  ReadRights() : ReadRights(now()) {}
  static ReadRights now();
  bool operator==(const ReadRights&) const = default;

 private:
  explicit ReadRights(int dumpable) : dumpable_(dumpable) {}
  int dumpable_;
  std::array<uid_t, 3> users_{};  // real, effective, saved
};
// Whether the process has this value in its watched word, after all that this thread has read of it, or written to
// shared memory, before.
bool shows(pid_t pid, uint64_t address, uint64_t value);

// How many blocks and messages this process has pulled out of its peers' memory: for tests. Relaxed: a count.
extern std::atomic<uint64_t> pulled_blocks;
extern std::atomic<uint64_t> pulled_messages;

}  // namespace mep
