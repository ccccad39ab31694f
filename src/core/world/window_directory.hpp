// Offers of peers: (slot, window id) -> how to reach that window. The control thread files offers, user threads wait
// for those that they need.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "mep.h"
#include "transport/transport.hpp"

namespace mep {

// Afterwards nothing of the process in the slot lands in the window.
using WindowFence = std::function<mep_result_t(uint32_t slot, uint64_t incarnation)>;

struct WindowOffer {
  uint64_t incarnation = 0;
  uint64_t bytes = 0;
  uint32_t generation = 0;
  std::vector<std::byte> blob;
  std::vector<std::byte> note;  // of the window's owner, for this rank
  UniqueFd fd;
  bool is_held = false;  // its transport has it already, in `bytes`, so that it keeps no descriptor
  mep_result_t result = MEP_SUCCESS;  // why it cannot be had, with a text
  std::string text;
  UniqueFd event;  // of the world's window, if its owner may sleep in epoll
};

// Memory of this rank that kernels of its peers write. A peer, which is on this host, maps it by the descriptor.
struct KernelMemory {
  uint64_t id = 0;
  uint64_t bytes = 0;
  UniqueFd fd;
  std::vector<uint32_t> slots;  // who may map it
};

class WindowDirectory {
 public:
  // Control thread. A later offer of the same window replaces the earlier one.
  void file(uint32_t slot, uint64_t window, WindowOffer offer);
  // Control thread: something changed that waiters should look at (a peer failed).
  void wake();
  // Takes the offer out; false: not there yet. With an incarnation, not that of another process in the slot.
  bool take(uint32_t slot, uint64_t window, WindowOffer* out, uint64_t incarnation = 0);
  // Waits until `ready` (called under the lock, must be short) is true; false: deadline.
  bool wait(const Deadline& deadline, const std::function<bool()>& ready);
  // Whether an offer is there; for use in `ready`.
  bool has(uint32_t slot, uint64_t window) const;
  void forget_slot(uint32_t slot);
  // A joiner's: that member has offered all that it has. `offered` is for use in `ready`.
  void note_offered(uint32_t slot);
  void forget_offered(uint32_t slot);
  bool offered(uint32_t slot) const { return offered_.contains(slot); }

  // Own windows that peers may use, for renewal and for joiners.
  void add_own(const std::shared_ptr<Window>& window, std::vector<uint32_t> slots);
  void remove_own(uint64_t window);
  // Before add_own(). The window keeps its pages: fence() stops a process that could write there. Empty: none any more,
  // and none is being called.
  void set_fence(uint64_t window, WindowFence fence);
  bool has_fence(uint64_t window) const;
  // Control thread: by all fences.
  [[nodiscard]] mep_result_t fence(uint32_t slot, uint64_t incarnation) const;
  std::vector<std::shared_ptr<Window>> own() const;
  // Those that are shared with `slot`.
  std::vector<std::shared_ptr<Window>> own_for(uint32_t slot) const;
  bool shares(uint64_t window, uint32_t slot) const;
  std::shared_ptr<Window> own(uint64_t window) const;
  // Each offer of this window to the slot carries the note; empty: none. Until remove_own().
  void set_note(uint64_t window, uint32_t slot, std::vector<std::byte> note);
  std::vector<std::byte> note(uint64_t window, uint32_t slot) const;
  // The same of memory for kernels, which is never renewed: a process that maps it leaves the view by its end.
  void add_memory(std::shared_ptr<const KernelMemory> memory);
  std::vector<std::shared_ptr<const KernelMemory>> memory_for(uint32_t slot) const;

 private:
  struct Own {
    std::shared_ptr<Window> window;
    std::vector<uint32_t> slots;  // who shares it
    bool is_for(uint32_t slot) const {
      return std::find(slots.begin(), slots.end(), slot) != slots.end();
    }
  };

  mutable std::mutex fences_mutex_;  // of fences_, also during a call; before other locks
  std::map<uint64_t, WindowFence> fences_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::map<std::pair<uint32_t, uint64_t>, WindowOffer> offers_;
  std::set<uint32_t> offered_;  // slots
  std::map<uint64_t, Own> own_;
  std::map<std::pair<uint64_t, uint32_t>, std::vector<std::byte>> notes_;  // (window, slot)
  std::map<uint64_t, std::shared_ptr<const KernelMemory>> memory_;
};

}  // namespace mep
