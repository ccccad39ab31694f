// The windows of one peer that are mapped here, by their ids.
//
// Invariants
//   - find() takes no lock and looks at a few places however many windows there are. Adding or dropping one
//     window disturbs no search for another.
//   - A window's record never moves. Only a later add() uses a dropped record again for another window.
//   - Old arrays of heads stay until the table ends, since a thread may be looking through one. Each is half
//     as long as the next.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/put_gate.hpp"

namespace mep {

// No window has this id.
constexpr uint64_t kNoWindow = UINT64_MAX;

struct RemoteWindow {
  // kNoWindow: free. Release store, acquire load: publishes the other fields to putting threads.
  std::atomic<uint64_t> id{kNoWindow};
  std::byte* data = nullptr;
  size_t bytes = 0;
  uint32_t generation = 0;
  std::shared_ptr<PutGate> gate;  // null: nothing to pass
  std::shared_ptr<void> memory;   // keeps `data` valid
};

// The place that add() publishes.
struct WindowPlace {
  std::byte* data = nullptr;
  size_t bytes = 0;
  uint32_t generation = 0;
  std::shared_ptr<PutGate> gate;
  std::shared_ptr<void> memory;
};

class WindowTable {
 public:
  WindowTable();
  ~WindowTable();
  WindowTable(const WindowTable&) = delete;
  WindowTable& operator=(const WindowTable&) = delete;

  // Any thread; null: it is not here.
  RemoteWindow* find(uint64_t id) const {
    // Acquire: the array's heads, and what they lead to.
    const Heads& heads = *heads_.load(std::memory_order_acquire);
    for (const Node* node = heads.of(id); node != nullptr; node = node->next) {
      if (node->window->id.load(std::memory_order_acquire) == id) return node->window;
    }
    return nullptr;
  }
  // `id` must not be here yet. Throws std::bad_alloc before anything has changed.
  void add(uint64_t id, WindowPlace place);
  // Nobody looks for this id or uses its window any more. False: it is not here.
  bool drop(uint64_t id);

  // For tests: at how many records find(id) looks, and how many there are, dropped ones too.
  size_t steps(uint64_t id) const;
  size_t records() const;

 private:
  struct Node {
    RemoteWindow* window;
    Node* next;  // never changes: new nodes come to the front
  };
  struct Heads {
    explicit Heads(uint32_t bits);
    ~Heads();
    Heads(const Heads&) = delete;
    Heads& operator=(const Heads&) = delete;
    std::atomic<Node*>& head(uint64_t id) const {
      return at[static_cast<size_t>((id * 0x9e3779b97f4a7c15u) >> (64 - bits))];
    }
    // Acquire: the node, and the record that it leads to.
    const Node* of(uint64_t id) const { return head(id).load(std::memory_order_acquire); }
    void push(std::unique_ptr<Node> node, uint64_t id) const;
    size_t size() const { return size_t{1} << bits; }

    const uint32_t bits;
    const std::unique_ptr<std::atomic<Node*>[]> at;
  };

  RemoteWindow* take_record(uint64_t id);
  void grow();

  // Release store: publishes the array to find().
  std::atomic<const Heads*> heads_;
  mutable std::mutex mutex_;                    // guards all below, and every change
  std::vector<std::unique_ptr<Heads>> arrays_;  // the last is in use
  std::vector<std::unique_ptr<RemoteWindow>> records_;
  std::vector<RemoteWindow*> spare_;  // dropped, and in no chain of the array in use
  size_t live_ = 0;
};

}  // namespace mep
