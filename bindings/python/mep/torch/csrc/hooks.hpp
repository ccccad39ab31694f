// PyTorch's completion and abort hooks of a group, and its ephemeral timeouts.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace mep_torch {

// Functions by the numbers that PyTorch gives them. Any thread. A function may still run when remove() returns.
template <class... Arguments>
class HookTable {
 public:
  using Hook = std::function<void(Arguments...)>;

  void add(int64_t id, Hook hook) {
    const std::lock_guard lock(mutex_);
    auto changed = std::make_shared<Table>(table_ != nullptr ? *table_ : Table());
    (*changed)[id] = std::move(hook);
    replace(std::move(changed));
  }
  void remove(int64_t id) {
    const std::lock_guard lock(mutex_);
    if (table_ == nullptr) return;
    auto changed = std::make_shared<Table>(*table_);
    changed->erase(id);
    replace(std::move(changed));
  }
  // Relaxed: one that is added meanwhile may miss what happens meanwhile.
  bool is_empty() const { return is_empty_.load(std::memory_order_relaxed); }
  // Without the lock: a hook may add and remove others.
  void call(Arguments... arguments) const {
    if (is_empty()) return;
    std::shared_ptr<const Table> table;
    {
      const std::lock_guard lock(mutex_);
      table = table_;
    }
    for (const auto& [id, hook] : *table) hook(arguments...);
  }

 private:
  using Table = std::map<int64_t, Hook>;

  void replace(std::shared_ptr<const Table> table) {
    is_empty_.store(table->empty(), std::memory_order_relaxed);
    table_ = std::move(table);
  }

  mutable std::mutex mutex_;
  std::shared_ptr<const Table> table_;  // guarded by mutex_
  std::atomic<bool> is_empty_{true};
};

// Time that is added to the timeouts of works until the first work that got it has ended.
class ExtraTime {
 public:
  // The part of all extra time that ends with one work.
  using Share = std::shared_ptr<void>;

  void add(std::chrono::milliseconds time);
  // The time for a new work. *share: the part that ends with this work; null, if earlier works have all that.
  std::chrono::milliseconds give(Share* share) const;

 private:
  struct Sum {
    std::mutex mutex;
    std::chrono::milliseconds all{0};
    std::chrono::milliseconds shared{0};  // what works have a share of
  };
  const std::shared_ptr<Sum> sum_ = std::make_shared<Sum>();
};

// A group and its works share one.
struct Hooks {
  bool are_any() const { return !completion.is_empty() || !abort.is_empty(); }

  HookTable<uint64_t> completion;  // by the work's key; with locks of the group held
  HookTable<> abort;
  ExtraTime extra_time;
};

// A key that no other work of the process has.
uint64_t new_completion_key();

}  // namespace mep_torch
