// Which local memory the HCAs know, by address: windows, and (only if the user allows it) large sources that
// were used before.
//
// Invariants
//   - Memory with an owner is used only while the owner lives; what is left of it is let go then.
//   - Cached entries that nobody uses hold at most the limit; those in use are never let go.
//   - All functions may be called by any thread.
//
// Caching sources is unsound in general: when the caller unmaps such memory
// and maps other at its place, the HCA goes on reading the old pages. So the limit is 0 by default.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>

#include "mep.h"
#include "transport/verbs/addresses.hpp"

namespace mep::verbs {

// Memory known to every HCA in use, by the HCA's index.
struct Registration {
  std::array<void*, kMaxRails> handles{};
  std::array<uint32_t, kMaxRails> lkeys{};
  std::array<uint32_t, kMaxRails> rkeys{};
};

class Registrar {
 public:
  virtual ~Registrar() = default;
  // `writable`: peers may write and read it.
  [[nodiscard]] virtual mep_result_t add(const void* memory, size_t bytes, bool writable,
                                         Registration* out) = 0;
  virtual void remove(Registration* registration) = 0;
};

class RegistrationCache {
 public:
  RegistrationCache(Registrar* registrar, size_t limit_bytes);
  ~RegistrationCache();
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;

  // Memory with an owner, writable for peers. An earlier entry at the same address is handed to
  // *previous (empty if there was none) instead of being let go.
  [[nodiscard]] mep_result_t adopt(const void* memory, size_t bytes,
                                   std::weak_ptr<const void> owner, Registration* out,
                                   Registration* previous);
  void release(Registration* registration) { registrar_->remove(registration); }
  // Lets go what has lost its owner.
  void sweep();

  // Adopted memory that holds [memory, memory + bytes).
  bool find(const void* memory, size_t bytes, Registration* out);

  // The same for other memory. False: not cached (the limit is 0 or too small, or
  // the memory cannot be registered). True: give_back(ticket) when the HCA has done with it.
  using Ticket = uint64_t;
  bool borrow(const void* memory, size_t bytes, Registration* out, Ticket* ticket);
  void give_back(Ticket ticket);

  size_t cached_bytes() const;

 private:
  struct Adopted {
    size_t bytes = 0;
    Registration registration;
    std::weak_ptr<const void> owner;
  };
  struct Cached {
    uintptr_t begin = 0;
    size_t bytes = 0;
    Registration registration;
    uint32_t users = 0;
    Ticket ticket = 0;
  };

  void erase(std::map<uintptr_t, Adopted>::iterator entry);
  bool make_room(size_t bytes);

  Registrar* registrar_;
  size_t limit_bytes_;
  mutable std::mutex mutex_;  // guards all below
  std::map<uintptr_t, Adopted> adopted_;
  size_t longest_ = 0;        // bytes of the longest entry that was ever adopted
  std::list<Cached> cached_;  // most recently used first
  size_t cached_bytes_ = 0;
  Ticket last_ticket_ = 0;
};

}  // namespace mep::verbs
