#include "transport/death_words.hpp"

#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <utility>

#include "base/library_thread.hpp"

namespace mep {
namespace {

// futex_waitv(2) of Linux 5.16, whose headers may be older.
constexpr long kFutexWaitv = 449;
constexpr uint32_t kFutexU32 = 2;
// Where the kernel has no such call, words are read this often.
constexpr long kPollNs = 5'000'000;

}  // namespace

// The words that a thread waits on at one time.
class FutexWaits {
 public:
  void add(const std::atomic<uint32_t>& word, uint32_t value, uint32_t flags) {
    waits_[count_++] = {value, reinterpret_cast<uint64_t>(&word), kFutexU32 | flags, 0};
  }
  // Until one of them has another value, or longer. False: the kernel has no call for that.
  bool wait() const {
    const long result = syscall(kFutexWaitv, waits_.data(), count_, 0, nullptr, 0);
    return result >= 0 || errno == EAGAIN || errno == EINTR || errno == EFAULT;
  }

 private:
  struct Wait {  // struct futex_waitv
    uint64_t value, address;
    uint32_t flags, reserved;
  };
  std::array<Wait, DeathPage::kWords + 1> waits_{};
  unsigned count_ = 0;
};

// --- The owner's side ---------------------------------------------------------------------------

std::shared_ptr<DeathPage> DeathPage::create() {
  UniqueFd fd;
  Mapping memory;
  if (create_memfd("mep-death", kBytes, &fd) != MEP_SUCCESS ||
      Mapping::of(fd.get(), kBytes, true, &memory) != MEP_SUCCESS ||
      seal_memfd(fd.get(), true) != MEP_SUCCESS) {
    return nullptr;
  }
  return std::shared_ptr<DeathPage>(new DeathPage(std::move(fd), std::move(memory)));
}

void DeathPage::hold() {
  const auto id = static_cast<uint32_t>(syscall(SYS_gettid));
  Word* const word = words();
  for (uint32_t i = 0; i < kWords; ++i) {
    word[i].link.next = i + 1 < kWords ? &word[i + 1].link : &head_.list;
    word[i].futex.store(id | FUTEX_WAITERS, std::memory_order_relaxed);
  }
  head_.list.next = &word[0].link;
  head_.futex_offset = static_cast<long>(offsetof(Word, futex) - offsetof(Word, link));
  size_t bytes = 0;
  (void)syscall(SYS_get_robust_list, 0, &previous_, &bytes);
  (void)syscall(SYS_set_robust_list, &head_, sizeof head_);
}

void DeathPage::release() {
  (void)syscall(SYS_set_robust_list, previous_, sizeof head_);
  for (uint32_t i = 0; i < kWords; ++i) words()[i].futex.store(0, std::memory_order_relaxed);
}

// --- The watcher's side -------------------------------------------------------------------------

DeathWatch::DeathWatch(std::shared_ptr<DeathPage> own, std::function<void()> ring)
    : own_(std::move(own)), ring_(std::move(ring)) {}

DeathWatch::~DeathWatch() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_relaxed);
  knock();
  thread_.join();
}

void DeathWatch::watch(uint32_t slot, int page, uint32_t word) {
  if (own_ == nullptr || slot >= watched_.size() || word >= DeathPage::kWords) return;
  Mapping memory;
  if (check_foreign_memfd(page, DeathPage::kBytes) != MEP_SUCCESS ||
      Mapping::of(page, DeathPage::kBytes, false, &memory) != MEP_SUCCESS) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    watched_[slot] = {std::move(memory), word};
  }
  if (thread_.joinable()) return knock();
  (void)start_library_thread(
      "the watching thread", [this] { loop(); }, &thread_);
}

uint64_t DeathWatch::take() {
  return marked_.exchange(0, std::memory_order_relaxed);
}

void DeathWatch::knock() {
  knocks_.fetch_add(1, std::memory_order_release);
  (void)syscall(SYS_futex, &knocks_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// A bit for each slot whose word is marked; the others are added to what is waited on.
uint64_t DeathWatch::read_words(FutexWaits* waits) {
  const std::lock_guard lock(mutex_);
  uint64_t marked = 0;
  for (size_t slot = 0; slot < watched_.size(); ++slot) {
    Watched& watched = watched_[slot];
    if (watched.page.data() == nullptr) continue;
    const auto* words = reinterpret_cast<const DeathPage::Word*>(watched.page.data());
    const std::atomic<uint32_t>& word = words[watched.word].futex;
    const uint32_t value = word.load(std::memory_order_relaxed);
    if ((value & FUTEX_OWNER_DIED) == 0) {
      waits->add(word, value, 0);
      continue;
    }
    marked |= uint64_t{1} << slot;
    watched.page = Mapping();
  }
  return marked;
}

void DeathWatch::loop() {
  pthread_setname_np(pthread_self(), "mep-watch");
  own_->hold();
  bool waits_for_many = true;
  for (;;) {
    // Acquire: see knock(). A knock after this changes the value that is waited on.
    const uint32_t knocks = knocks_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) break;
    FutexWaits waits;
    waits.add(knocks_, knocks, FUTEX_PRIVATE_FLAG);
    if (const uint64_t marked = read_words(&waits); marked != 0) {
      marked_.fetch_or(marked, std::memory_order_relaxed);
      ring_();
    }
    // A page that is unmapped meanwhile fails the call: it goes with a knock.
    waits_for_many = waits_for_many && waits.wait();
    if (waits_for_many) continue;
    const timespec interval{0, kPollNs};
    (void)syscall(SYS_futex, &knocks_, FUTEX_WAIT_PRIVATE, knocks, &interval, nullptr, 0);
  }
  own_->release();
}

}  // namespace mep
