// The fabric between models of mlx5 NICs (mlx5_firmware.hpp): which pairs reach each other, and the software NIC that executes
// their queues. The NICs may lie in several processes of a host: each has a fabric over the same file, and executes its own
// queues. A process that has ended answers no more.
#pragma once

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "support/shared_table.hpp"
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
  pid_t process = 0;
  uint32_t nic = 0;  // whose it is
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

// Requests to pairs of the NIC may name this memory.
struct ModelRegion {
  uint32_t number = 0;  // its remote key
  pid_t process = 0;
  uint32_t nic = 0;
  gpu_queue::RemoteRegion memory;  // `place`: in the process
  int fd = -1;                     // there; no file: no other process reaches it
  uint64_t offset = 0;             // in the file
};

// Pairs of all NICs. No two NICs have the same number.
class ModelFabric {
  struct Shared {
    SharedMutex mutex;
    std::atomic<uint32_t> opened;  // orders nothing
    SharedTable<ModelPair, 4096> pairs;
    SharedTable<ModelRegion, 4096> regions;
  };

 public:
  // Over an empty file the fabric is made, by one process before others use it. Without a file there is this process alone.
  explicit ModelFabric(int file = -1) : shared_(map(file)) {}
  ~ModelFabric() {
    nic.stop();
    (void)munmap(shared_, sizeof *shared_);
  }
  ModelFabric(const ModelFabric&) = delete;
  ModelFabric& operator=(const ModelFabric&) = delete;

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

  // Whether the driver of a NIC takes the memory.
  bool takes(const gpu_queue::MemoryRange& range, const void** refused) {
    const std::lock_guard lock(mutex);
    return gpu_memory.takes(range, refused);
  }

  // Whether requests of a pair reach its peer, which allows them.
  bool reaches(uint32_t number, bool adds, bool* allowed) {
    const std::lock_guard lock(mutex);
    return reaches_locked(number, adds, allowed);
  }
  bool reaches_locked(uint32_t number, bool adds, bool* allowed) const {
    const ModelPair& from = *pairs.find(number);
    const ModelPair* found = peer_locked(from);
    if (found == nullptr || is_down) return false;
    const ModelPair& to = *found;
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
    const ModelPair* to = peer_locked(*pairs.find(number));
    return to != nullptr && to->state < PairState::kReceives;
  }
  // Null: it is not there.
  ModelPair* peer_locked(const ModelPair& from) const {
    ModelPair* const to = pairs.find(from.remote_number);
    return to == nullptr || has_ended(to->process) ? nullptr : to;
  }

 private:
  Shared* const shared_;

 public:
  SharedMutex& mutex = shared_->mutex;  // of what follows
  decltype(Shared::pairs)& pairs = shared_->pairs;
  decltype(Shared::regions)& regions = shared_->regions;
  std::atomic<uint32_t>& opened = shared_->opened;  // for those that number NICs
  // In this process.
  bool is_down = false;
  uint32_t cut_from = 0, cut_to = 0;  // NICs: packets of one do not reach the other
  bool spoils = false;                // the first byte of a put arrives as another
  gpu_queue::SoftNic nic;
  GpuMemory gpu_memory;
  bool waits_for_peers = false;   // to be connected; else that counts as a try
  gpu_queue::QueueFaults faults;  // of queues that are served from then on

 private:
  static Shared* map(int file) {
    struct stat about {};
    const bool is_new = file < 0 || (fstat(file, &about) == 0 && about.st_size == 0);
    if (is_new && file >= 0 && ftruncate(file, sizeof(Shared)) != 0) throw std::bad_alloc();
    void* const pages = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                             file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, file, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    // All else is right as zeros.
    auto* const shared = static_cast<Shared*>(pages);
    if (is_new) new (&shared->mutex) SharedMutex;
    return shared;
  }

  std::mutex start_mutex_;  // of what follows
  bool is_started_ = false;
};

// Carries what reaches the peer, and gives up after some tries.
class ModelWire final : public gpu_queue::Executor {
 public:
  // `regions`: the memory that requests may name at the peer, but for what tests say.
  ModelWire(ModelFabric* fabric, uint32_t number, const std::vector<ModelRegion>& regions)
      : fabric_(fabric), number_(number) {
    for (const ModelRegion& region : regions) targets_.push_back({region, region.memory, {}});
  }

  gpu_queue::Executed put(const gpu_queue::RemoteRegion& region, uint64_t offset, const void* from,
                          size_t bytes) override {
    return attempt(region, false, [&](const gpu_queue::RemoteRegion& here) {
      const gpu_queue::Executed done = memory_.put(here, offset, from, bytes);
      if (!fabric_->spoils) return done;
      const std::byte other = ~*static_cast<const std::byte*>(from);
      return memory_.put(here, offset, &other, 1);
    });
  }
  gpu_queue::Executed write_word(const gpu_queue::RemoteRegion& region, uint64_t offset,
                                 uint64_t word) override {
    return attempt(region, false, [&](const gpu_queue::RemoteRegion& here) {
      return memory_.write_word(here, offset, word);
    });
  }
  gpu_queue::Executed fetch_add(const gpu_queue::RemoteRegion& region, uint64_t offset,
                                uint64_t add, uint64_t* before) override {
    return attempt(region, true, [&](const gpu_queue::RemoteRegion& here) {
      return memory_.fetch_add(here, offset, add, before);
    });
  }
  bool counts(gpu_queue::Counts* out) override { return memory_.counts(out); }

 private:
  static constexpr uint32_t kTries = 2000;

  // Mapped when a request names it.
  struct Target {
    ModelRegion region;
    gpu_queue::RemoteRegion here;  // `place`: in this process
    Mapping mapping;

    bool is_here() const { return region.process == getpid() || mapping.data() != nullptr; }
    bool map() {
      const uint64_t end = region.offset + region.memory.bytes;
      mapping = map_file_of(region.process, region.fd, end);
      here.place = reinterpret_cast<uint64_t>(mapping.data()) + region.offset;
      return is_here();
    }
  };

  template <typename Call>
  gpu_queue::Executed attempt(const gpu_queue::RemoteRegion& region, bool adds, const Call& call) {
    // Held during the call: a pair that has ended is written to no more.
    const std::lock_guard lock(fabric_->mutex);
    bool allowed = false;
    Target* const target = find(region.key);
    if (!fabric_->reaches_locked(number_, adds, &allowed)) {
      if (fabric_->waits_for_peers && fabric_->is_early_locked(number_)) {
        return gpu_queue::Executed::kLater;
      }
      return try_again();
    }
    const bool is_registered = target == nullptr || fabric_->regions.find(region.key) != nullptr;
    if (!allowed || !is_registered) return gpu_queue::Executed::kRefused;
    // Files of a process that ends are gone before it counts as ended.
    if (target != nullptr && !target->is_here() && !target->map()) return try_again();
    tries_ = 0;
    return call(target == nullptr ? region : target->here);
  }
  gpu_queue::Executed try_again() {
    return ++tries_ < kTries ? gpu_queue::Executed::kLater : gpu_queue::Executed::kLost;
  }
  Target* find(uint32_t key) {
    for (Target& target : targets_) {
      if (target.region.number == key) return &target;
    }
    return nullptr;
  }

  ModelFabric* fabric_;
  uint32_t number_;
  uint32_t tries_ = 0;
  std::vector<Target> targets_;
  gpu_queue::MemoryExecutor memory_;
};

}  // namespace mep::test
