// A comm's identity, for all that belongs to it. But for its name and its timeout nothing of it changes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/kept_name.hpp"
#include "core/operation/flight_log.hpp"
#include "core/world/wait.hpp"
#include "core/world/world.hpp"

namespace mep {

class CommIdentity {
 public:
  CommIdentity(std::shared_ptr<World> world, std::string name, uint64_t id,
               std::vector<uint32_t> slots);

  World& world() const { return *world_; }
  const std::shared_ptr<World>& world_ptr() const { return world_; }
  // An error once the world has ended for this rank: what every call answers from then on.
  [[nodiscard]] mep_result_t check_world() const;
  uint64_t id() const { return id_; }
  // Any thread; valid as long as this object, whatever the comm is renamed to.
  const std::string& name() const { return name_.get(); }
  void rename(const char* name) {
    const std::lock_guard lock(name_mutex_);
    name_.set(name);
  }
  uint32_t rank() const { return rank_; }
  uint32_t size() const { return static_cast<uint32_t>(slots_.size()); }
  const std::vector<uint32_t>& slots() const { return slots_; }
  const membership::SlotSet& member_slots() const { return member_slots_; }
  const FlightLog& flight() const { return flight_; }
  // Relaxed: a value for later calls, it orders nothing.
  uint32_t timeout_ms() const { return timeout_ms_.load(std::memory_order_relaxed); }
  void set_timeout_ms(uint32_t ms) { timeout_ms_.store(ms, std::memory_order_relaxed); }
  // Until when a view change is waited for.
  Deadline change_deadline() const { return Deadline::after_ms(kDecisionGraceMs + timeout_ms()); }

 private:
  const std::shared_ptr<World> world_;
  const uint64_t id_;
  std::mutex name_mutex_;
  KeptName name_;
  const std::vector<uint32_t> slots_;  // rank -> slot
  membership::SlotSet member_slots_;
  uint32_t rank_ = 0;
  std::atomic<uint32_t> timeout_ms_;
  const FlightLog flight_;
};

}  // namespace mep
