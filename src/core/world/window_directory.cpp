#include "core/world/window_directory.hpp"

#include <algorithm>
#include <chrono>

#include "base/status.hpp"

namespace mep {

void WindowDirectory::file(uint32_t slot, uint64_t window, WindowOffer offer) {
  {
    const std::lock_guard lock(mutex_);
    offers_[{slot, window}] = std::move(offer);
  }
  changed_.notify_all();
}

void WindowDirectory::wake() {
  { const std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

bool WindowDirectory::take(uint32_t slot, uint64_t window, WindowOffer* out, uint64_t incarnation) {
  const std::lock_guard lock(mutex_);
  const auto it = offers_.find({slot, window});
  if (it == offers_.end()) return false;
  if (incarnation != 0 && it->second.incarnation != incarnation) return false;
  *out = std::move(it->second);
  offers_.erase(it);
  return true;
}

bool WindowDirectory::wait(const Deadline& deadline, const std::function<bool()>& ready) {
  std::unique_lock lock(mutex_);
  while (!ready()) {
    const int left_ms = deadline.left_ms(1000);
    if (left_ms == 0) return false;
    changed_.wait_for(lock, std::chrono::milliseconds(left_ms));
  }
  return true;
}

bool WindowDirectory::has(uint32_t slot, uint64_t window) const {
  return offers_.count({slot, window}) != 0;
}

void WindowDirectory::forget_slot(uint32_t slot) {
  const std::lock_guard lock(mutex_);
  std::erase_if(offers_, [slot](const auto& entry) { return entry.first.first == slot; });
}

void WindowDirectory::note_offered(uint32_t slot) {
  {
    const std::lock_guard lock(mutex_);
    offered_.insert(slot);
  }
  changed_.notify_all();
}

void WindowDirectory::forget_offered(uint32_t slot) {
  const std::lock_guard lock(mutex_);
  offered_.erase(slot);
}

void WindowDirectory::add_own(const std::shared_ptr<Window>& window, std::vector<uint32_t> slots) {
  const std::lock_guard lock(mutex_);
  own_[window->id()] = {window, std::move(slots)};
}

void WindowDirectory::set_fence(uint64_t window, WindowFence fence) {
  const std::lock_guard lock(fences_mutex_);
  fences_.erase(window);
  if (fence) fences_[window] = std::move(fence);
}

bool WindowDirectory::has_fence(uint64_t window) const {
  const std::lock_guard lock(fences_mutex_);
  return fences_.contains(window);
}

mep_result_t WindowDirectory::fence(uint32_t slot, uint64_t incarnation) const {
  const std::lock_guard lock(fences_mutex_);
  for (const auto& [window, fence] : fences_) MEP_TRY(fence(slot, incarnation));
  return MEP_SUCCESS;
}

void WindowDirectory::remove_own(uint64_t window) {
  const std::lock_guard lock(mutex_);
  own_.erase(window);
  memory_.erase(window);
  std::erase_if(notes_, [window](const auto& entry) { return entry.first.first == window; });
  std::erase_if(offers_, [window](const auto& entry) { return entry.first.second == window; });
}

void WindowDirectory::set_note(uint64_t window, uint32_t slot, std::vector<std::byte> note) {
  const std::lock_guard lock(mutex_);
  if (note.empty()) {
    notes_.erase({window, slot});
  } else {
    notes_[{window, slot}] = std::move(note);
  }
}

std::vector<std::byte> WindowDirectory::note(uint64_t window, uint32_t slot) const {
  const std::lock_guard lock(mutex_);
  const auto it = notes_.find({window, slot});
  return it == notes_.end() ? std::vector<std::byte>{} : it->second;
}

std::vector<std::shared_ptr<Window>> WindowDirectory::own() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Window>> windows;
  for (const auto& [id, own] : own_) windows.push_back(own.window);
  return windows;
}

std::vector<std::shared_ptr<Window>> WindowDirectory::own_for(uint32_t slot) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Window>> windows;
  for (const auto& [id, own] : own_) {
    if (own.is_for(slot)) windows.push_back(own.window);
  }
  return windows;
}

void WindowDirectory::add_memory(std::shared_ptr<const KernelMemory> memory) {
  const std::lock_guard lock(mutex_);
  memory_[memory->id] = std::move(memory);
}

std::vector<std::shared_ptr<const KernelMemory>> WindowDirectory::memory_for(uint32_t slot) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const KernelMemory>> found;
  for (const auto& [id, memory] : memory_) {
    const std::vector<uint32_t>& slots = memory->slots;
    if (std::find(slots.begin(), slots.end(), slot) != slots.end()) found.push_back(memory);
  }
  return found;
}

bool WindowDirectory::shares(uint64_t window, uint32_t slot) const {
  const std::lock_guard lock(mutex_);
  const auto it = own_.find(window);
  return it != own_.end() && it->second.is_for(slot);
}

std::shared_ptr<Window> WindowDirectory::own(uint64_t window) const {
  const std::lock_guard lock(mutex_);
  const auto it = own_.find(window);
  return it == own_.end() ? nullptr : it->second.window;
}

}  // namespace mep
