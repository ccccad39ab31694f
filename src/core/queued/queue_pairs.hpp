// Queue pairs from this rank to each rank of a comm, itself too, that a software NIC serves: what kernels post to them goes
// to the peer's window of the same id.
//
//   - Requests name the peer's window from offset 0 under kWindowKey, and the memory that puts come from, by its address,
//     under kSourceKey.
//   - A queue ends with an error when its peer has left the view, before the peer's windows are forgotten.
//   - Owner and user is the user's thread; keep() and end() are the control thread's, between connect() and the destructor.
//   - A queue whose peer has left by the latest view of keep() is not served, even if it is made afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/operation/comm_view.hpp"
#include "core/operation/peer_windows.hpp"
#include "transport/gpu_queue/send_queue.hpp"
#include "transport/gpu_queue/soft_nic.hpp"

namespace mep {

class QueuePairs {
 public:
  static constexpr uint32_t kWindowKey = 1;
  static constexpr uint32_t kSourceKey = 2;

  QueuePairs(const CommIdentity& comm, gpu_queue::SoftNic* nic)
      : comm_(comm), nic_(nic), windows_(comm) {}
  ~QueuePairs();
  QueuePairs(const QueuePairs&) = delete;
  QueuePairs& operator=(const QueuePairs&) = delete;

  // The rings, and what else queues and NIC share, of so many ranks.
  static size_t ring_bytes(uint32_t ranks, uint32_t entries);

  // This rank's window; peers find it under its id.
  [[nodiscard]] mep_result_t offer(uint64_t id, size_t bytes);
  // Memory that posters and this process reach under the same addresses; it outlives this object.
  struct Memory {
    std::byte* rings = nullptr;  // zeroed, ring_bytes(), on 64 bytes
    uint32_t entries = 0;        // of a ring; see Queue
    uint64_t* ready = nullptr;   // [ranks * entries] zeros, where the posters are
    std::byte* source = nullptr;
    size_t source_bytes = 0;
  };
  [[nodiscard]] mep_result_t connect(const CommView& view, const Memory& memory,
                                     const Deadline& deadline);
  // Whether each rank of the view has a queue to this very process of it.
  bool reaches(const CommView& view) const;
  bool reaches(const CommView& view, uint32_t rank) const {
    return reached_[rank] == view.incarnations[rank];
  }
  // Makes queues to those that lack one, in rings that nobody posts to, and adds their ranks to *added. The posters' zeros
  // at Memory::ready are the caller's to restore, before the queues are copied to them.
  [[nodiscard]] mep_result_t reach(const CommView& view, const Deadline& deadline,
                                   std::vector<uint32_t>* added);
  // By rank, to be copied to where the posters are; without a ring for ranks that are absent.
  std::span<const gpu_queue::Queue> queues() const { return queues_; }
  const Window& window() const { return *windows_.own(); }

  // Posters have ended: peers get all that they rang for, unless the NIC stops. Before keep() is called no more, so that it
  // ends the wait for peers that are lost; afterwards the NIC touches no memory of peers.
  void finish() const;
  // Queues of ranks that the view lacks, or has as other processes, end.
  void keep(const CommView& view);
  // All queues end.
  void end();

 private:
  mep_result_t add_queue(uint32_t rank, const CommView& view);
  mep_result_t serve(const gpu_queue::QueueWiring& wiring, uint32_t rank, const CommView& view);
  void remove(uint32_t rank);

  const CommIdentity& comm_;
  gpu_queue::SoftNic* const nic_;
  PeerWindows windows_;
  Memory memory_;
  std::vector<gpu_queue::Queue> queues_;
  std::vector<uint64_t> reached_;  // by rank: of which process the queue is; 0: there is none

  std::mutex mutex_;               // of what follows
  std::vector<uint64_t> served_;   // by rank: likewise, while the NIC serves it
  std::vector<uint64_t> members_;  // of the latest view of keep(), by rank
  uint64_t kept_epoch_ = 0;        // its epoch; 0: there was none
  bool has_ended_ = false;
};

}  // namespace mep
