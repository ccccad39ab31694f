#include "transport/window_table.hpp"

#include <utility>

namespace mep {
namespace {

constexpr uint32_t kFirstBits = 4;

}  // namespace

WindowTable::Heads::Heads(uint32_t bits_of_index)
    : bits(bits_of_index), at(std::make_unique<std::atomic<Node*>[]>(size_t{1} << bits_of_index)) {}

WindowTable::Heads::~Heads() {
  for (size_t i = 0; i < size(); ++i) {
    Node* node = at[i].load(std::memory_order_relaxed);  // no other thread is left
    while (node != nullptr) delete std::exchange(node, node->next);
  }
}

void WindowTable::Heads::push(std::unique_ptr<Node> node, uint64_t id) const {
  std::atomic<Node*>& first = head(id);
  node->next = first.load(std::memory_order_relaxed);  // changed under the table's mutex alone
  // Release: the node and its record are complete.
  first.store(node.release(), std::memory_order_release);
}

WindowTable::WindowTable() {
  arrays_.push_back(std::make_unique<Heads>(kFirstBits));
  heads_.store(arrays_.back().get(), std::memory_order_release);
}

WindowTable::~WindowTable() = default;

// A free record in the chain of this id; null: there is none.
RemoteWindow* WindowTable::take_record(uint64_t id) {
  for (const Node* node = arrays_.back()->of(id); node != nullptr; node = node->next) {
    if (node->window->id.load(std::memory_order_relaxed) == kNoWindow) return node->window;
  }
  return nullptr;
}

void WindowTable::grow() {
  auto longer = std::make_unique<Heads>(arrays_.back()->bits + 1);
  arrays_.reserve(arrays_.size() + 1);
  spare_.reserve(records_.size());
  for (const std::unique_ptr<RemoteWindow>& record : records_) {
    const uint64_t id = record->id.load(std::memory_order_relaxed);
    if (id == kNoWindow) continue;
    longer->push(std::make_unique<Node>(Node{record.get(), nullptr}), id);
  }
  spare_.clear();
  for (const std::unique_ptr<RemoteWindow>& record : records_) {
    if (record->id.load(std::memory_order_relaxed) == kNoWindow) spare_.push_back(record.get());
  }
  heads_.store(longer.get(), std::memory_order_release);
  arrays_.push_back(std::move(longer));
}

void WindowTable::add(uint64_t id, WindowPlace place) {
  const std::lock_guard lock(mutex_);
  if (live_ >= arrays_.back()->size()) grow();
  RemoteWindow* record = take_record(id);
  std::unique_ptr<Node> node;
  if (record == nullptr) {
    node = std::make_unique<Node>();
    if (spare_.empty()) {
      records_.reserve(records_.size() + 1);
      spare_.reserve(1);
      records_.push_back(std::make_unique<RemoteWindow>());
      spare_.push_back(records_.back().get());
    }
    record = node->window = spare_.back();
    spare_.pop_back();
  }
  record->data = place.data;
  record->bytes = place.bytes;
  record->generation = place.generation;
  record->gate = std::move(place.gate);
  record->memory = std::move(place.memory);
  record->id.store(id, std::memory_order_release);
  if (node != nullptr) arrays_.back()->push(std::move(node), id);
  ++live_;
}

bool WindowTable::drop(uint64_t id) {
  const std::lock_guard lock(mutex_);
  RemoteWindow* record = find(id);
  if (record == nullptr) return false;
  record->data = nullptr;
  record->bytes = 0;
  record->gate.reset();
  record->memory.reset();
  record->id.store(kNoWindow, std::memory_order_release);
  --live_;
  return true;
}

size_t WindowTable::steps(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const Node* node = arrays_.back()->of(id); node != nullptr; node = node->next) {
    ++count;
    if (node->window->id.load(std::memory_order_relaxed) == id) break;
  }
  return count;
}

size_t WindowTable::records() const {
  const std::lock_guard lock(mutex_);
  return records_.size();
}

}  // namespace mep
