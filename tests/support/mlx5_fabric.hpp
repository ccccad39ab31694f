// The fabric between models of mlx5 NICs (mlx5_firmware.hpp): which pairs reach each other, and the software NIC that executes
// their queues.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/status.hpp"
#include "transport/gpu_queue/memory_executor.hpp"
#include "transport/gpu_queue/memory_range.hpp"
#include "transport/gpu_queue/soft_nic.hpp"

namespace mep::test {

enum class PairState : uint8_t { kReset, kInit, kReceives, kSends, kError };

struct ModelPort {
  bool is_ethernet = false;
  bool needs_global_header = false;
  uint16_t lid = 0;
  std::array<uint8_t, 16> gid{};
  std::array<uint8_t, 6> mac{};
};

struct ModelPair {
  uint32_t number = 0;
  const void* nic = nullptr;  // whose it is
  ModelPort port;
  PairState state = PairState::kReset;
  bool allows_write = false, allows_atomic = false;
  uint32_t mtu = 0, remote_number = 0, receive_psn = 0, send_psn = 0;
  uint16_t to_lid = 0;
  std::array<uint8_t, 16> to_gid{};
  std::array<uint8_t, 6> to_mac{};
};

// How drivers of NICs take memory of GPUs: under the mutex of the fabric.
struct GpuMemory {
  // *refused is the caller's: the memory whose dmabuf was refused to it.
  bool takes(const gpu_queue::MemoryRange& range, const void** refused) {
    if (range.dmabuf >= 0) {
      const bool refuses =
          refuse_every != 0 && (by_dmabuf + refused_dmabufs + 1) % refuse_every == 0;
      *refused = refuses ? range.address : nullptr;
      ++(refuses ? refused_dmabufs : by_dmabuf);
      return !refuses;
    }
    if (range.address != *refused) return true;
    if (takes_addresses) ++by_address;
    return takes_addresses;
  }

  uint32_t refuse_every = 0;     // each so many'th dmabuf; 0: none
  bool takes_addresses = false;  // of refused dmabufs
  uint32_t by_dmabuf = 0, by_address = 0, refused_dmabufs = 0;
};

// Pairs of all NICs, by number.
class ModelFabric {
 public:
  // The NIC starts with its first queue.
  mep_result_t serve(const gpu_queue::QueueWiring& wiring,
                     std::unique_ptr<gpu_queue::Executor> executor) {
    {
      const std::lock_guard lock(start_mutex_);
      if (!is_started_) MEP_TRY(nic.start());
      is_started_ = true;
    }
    return nic.add_queue(wiring, std::move(executor), faults);
  }

  // Whether requests of a pair reach its peer, which allows them.
  bool reaches(uint32_t number, bool adds, bool* allowed) {
    const std::lock_guard lock(mutex);
    return reaches_locked(number, adds, allowed);
  }
  bool reaches_locked(uint32_t number, bool adds, bool* allowed) const {
    const ModelPair& from = pairs.at(number);
    const auto found = pairs.find(from.remote_number);
    if (found == pairs.end() || is_down) return false;
    const ModelPair& to = found->second;
    if (from.nic == cut_from && to.nic == cut_to) return false;
    const bool there = to.state == PairState::kReceives || to.state == PairState::kSends;
    const bool addressed = from.port.is_ethernet
                               ? from.to_mac == to.port.mac && from.to_gid == to.port.gid
                               : from.to_lid == to.port.lid &&
                                     (!from.port.needs_global_header || from.to_gid == to.port.gid);
    *allowed = adds ? to.allows_atomic : to.allows_write;
    return there && addressed && to.remote_number == number && to.receive_psn == from.send_psn &&
           to.mtu == from.mtu;
  }

  // Whether the peer of a pair is there and not connected yet.
  bool is_early_locked(uint32_t number) const {
    const auto found = pairs.find(pairs.at(number).remote_number);
    return found != pairs.end() && found->second.state < PairState::kReceives;
  }

  // Requests to pairs of the NIC may name this memory.
  struct Region {
    const void* nic;
    gpu_queue::RemoteRegion memory;
  };

  std::mutex mutex;  // of what follows
  std::map<uint32_t, ModelPair> pairs;
  std::vector<Region> regions;
  std::set<uint32_t> ended_keys;  // of memory that was registered: nobody reaches it any more
  bool is_down = false;
  const void *cut_from = nullptr, *cut_to = nullptr;  // NICs: packets of one do not reach the other
  bool spoils = false;                                // the first byte of a put arrives as another
  gpu_queue::SoftNic nic;
  GpuMemory gpu_memory;
  bool waits_for_peers = false;   // to be connected; else that counts as a try
  gpu_queue::QueueFaults faults;  // of queues that are served from then on

 private:
  std::mutex start_mutex_;  // of what follows
  bool is_started_ = false;
};

// Carries what reaches the peer, and gives up after some tries.
class ModelWire final : public gpu_queue::Executor {
 public:
  ModelWire(ModelFabric* fabric, uint32_t number) : fabric_(fabric), number_(number) {}

  gpu_queue::Executed put(const gpu_queue::RemoteRegion& region, uint64_t offset, const void* from,
                          size_t bytes) override {
    return attempt(region, false, [&] {
      const gpu_queue::Executed done = memory_.put(region, offset, from, bytes);
      if (!fabric_->spoils) return done;
      const std::byte other = ~*static_cast<const std::byte*>(from);
      return memory_.put(region, offset, &other, 1);
    });
  }
  gpu_queue::Executed write_word(const gpu_queue::RemoteRegion& region, uint64_t offset,
                                 uint64_t word) override {
    return attempt(region, false, [&] { return memory_.write_word(region, offset, word); });
  }
  gpu_queue::Executed fetch_add(const gpu_queue::RemoteRegion& region, uint64_t offset,
                                uint64_t add, uint64_t* before) override {
    return attempt(region, true, [&] { return memory_.fetch_add(region, offset, add, before); });
  }
  bool counts(gpu_queue::Counts* out) override { return memory_.counts(out); }

 private:
  template <typename Call>
  gpu_queue::Executed attempt(const gpu_queue::RemoteRegion& region, bool adds, const Call& call) {
    constexpr uint32_t kTries = 2000;
    // Held during the call: a pair that has ended is written to no more.
    const std::lock_guard lock(fabric_->mutex);
    bool allowed = false;
    if (!fabric_->reaches_locked(number_, adds, &allowed)) {
      if (fabric_->waits_for_peers && fabric_->is_early_locked(number_)) {
        return gpu_queue::Executed::kLater;
      }
      return ++tries_ < kTries ? gpu_queue::Executed::kLater : gpu_queue::Executed::kLost;
    }
    tries_ = 0;
    return allowed && !fabric_->ended_keys.contains(region.key) ? call()
                                                                : gpu_queue::Executed::kRefused;
  }

  ModelFabric* fabric_;
  uint32_t number_;
  uint32_t tries_ = 0;
  gpu_queue::MemoryExecutor memory_;
};

}  // namespace mep::test
