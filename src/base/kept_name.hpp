// A name that can change while others read it: every text that it ever was stays where it is, so a
// pointer that was given away is valid as long as the owner.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

namespace mep {

class KeptName {
 public:
  explicit KeptName(std::string name) : texts_{std::move(name)}, now_(&texts_.front()) {}
  KeptName(const KeptName&) = delete;
  KeptName& operator=(const KeptName&) = delete;

  // Any thread. Acquire: the text is there, set() wrote it before.
  const std::string& get() const { return *now_.load(std::memory_order_acquire); }
  operator const std::string&() const { return get(); }  // NOLINT(google-explicit-constructor)
  const char* c_str() const { return get().c_str(); }

  // One thread at a time. A text is kept once, so going back and forth takes no more memory.
  void set(std::string_view name) {
    auto found = std::find(texts_.begin(), texts_.end(), name);
    if (found == texts_.end()) found = texts_.emplace(texts_.end(), name);
    // Release: publishes the text to get().
    now_.store(&*found, std::memory_order_release);
  }

 private:
  std::deque<std::string> texts_;  // its elements never move: it grows at its end alone
  std::atomic<const std::string*> now_;
};

}  // namespace mep
