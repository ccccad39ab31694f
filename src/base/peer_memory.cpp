#include "base/peer_memory.hpp"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <new>

namespace mep {
namespace {

size_t page_bytes() {
  return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

void full_fence() {
#if defined(__SANITIZE_THREAD__)
  static std::atomic<uint32_t> word{0};
  word.fetch_add(0, std::memory_order_seq_cst);  // TSan does not know fences
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

std::atomic<uint64_t> pulled_blocks{0};
std::atomic<uint64_t> pulled_messages{0};

WatchedWord::~WatchedWord() {
  if (word_ != nullptr) (void)munmap(static_cast<void*>(word_), page_bytes());
}

bool WatchedWord::make() {
  if (is_made()) return true;
  void* page =
      mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  if (madvise(page, page_bytes(), MADV_WIPEONFORK) != 0) {
    (void)munmap(page, page_bytes());
    return false;
  }
  word_ = new (page) std::atomic<uint64_t>(0);
  return true;
}

uint64_t WatchedWord::value() const {
  // Relaxed: the owner alone asks.
  return is_made() ? word_->load(std::memory_order_relaxed) : 0;
}

void WatchedWord::show(uint64_t value) {
  // Release: publishes to peers that read this process what the caller has written.
  word_->store(value, std::memory_order_release);
}

void WatchedWord::hide() {
  if (!is_made()) return;
  // The fence: no later store or load of this thread comes before this one. It meets the one in shows().
  word_->store(0, std::memory_order_relaxed);
  full_fence();
}

uint64_t unguessable_number() {
  uint64_t number = 0;
  while (number == 0) {
    const ssize_t got = getrandom(&number, sizeof number, 0);
    if (got == static_cast<ssize_t>(sizeof number)) continue;
    if (got >= 0 || errno != EINTR) return 0;
    number = 0;
  }
  return number;
}

size_t read_peer_memory(pid_t pid, uint64_t address, void* to, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const iovec local{static_cast<std::byte*>(to) + done, bytes - done};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the other process
    const iovec remote{reinterpret_cast<void*>(address + done), bytes - done};
    const ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

bool others_can_read(const std::byte* memory, size_t bytes) {
  std::byte ends[2];
  const iovec local{ends, sizeof ends};
  const auto address = reinterpret_cast<uintptr_t>(memory);
  // NOLINTBEGIN(performance-no-int-to-ptr): not written
  const iovec remote[2] = {{reinterpret_cast<void*>(address), 1},
                           {reinterpret_cast<void*>(address + bytes - 1), 1}};
  // NOLINTEND(performance-no-int-to-ptr)
  return process_vm_readv(getpid(), &local, 1, remote, 2, 0) == sizeof ends;
}

ReadRights ReadRights::now() {
  ReadRights rights(prctl(PR_GET_DUMPABLE));
  (void)getresuid(&rights.users_[0], &rights.users_[1], &rights.users_[2]);
  return rights;
}

bool shows(pid_t pid, uint64_t address, uint64_t value) {
  // Sequentially consistent: the reads before are done. It meets the fence in hide(): whoever has read a byte that the
  // owner wrote after it does not find the value, and who finds it has what he wrote before seen by the owner.
  full_fence();
  uint64_t found = 0;
  return value != 0 && address != 0 &&
         read_peer_memory(pid, address, &found, sizeof found) == sizeof found && found == value;
}

}  // namespace mep
