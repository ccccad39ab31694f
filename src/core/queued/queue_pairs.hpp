// Queue pairs from this rank to the other ranks of a comm, that a NIC serves: what kernels post to them goes to the peer's
// window of the same id.
//
//   - Requests name memory by the keys and the base that their Queue has.
//   - There is a pair for each place of the comm, also while no process has it, so that a joiner gets its address with the
//     window, before the joiner is in a view. No pair goes to this rank, nor to one that kernels reach by mapped memory.
//   - A queue ends with an error when its peer has left the view, before the peer's windows are forgotten.
//   - Owner and user is the user's thread; keep() and end() are the control thread's, between connect() and the destructor.
//   - A queue whose peer has left by the latest view of keep() is not served, even if it is connected afterwards.
//   - Before a view without a process is agreed on, its pair ends if processes write by their pairs alone. So the window
//     needs no new pages then, and an adapter may have registered it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/operation/comm_view.hpp"
#include "core/operation/peer_windows.hpp"
#include "transport/gpu_queue/nic_pairs.hpp"

namespace mep {

class QueuePairs {
 public:
  // `mapped`, by rank: those that kernels store to; empty: none.
  QueuePairs(const CommIdentity& comm, std::unique_ptr<gpu_queue::NicPairs> nic,
             std::vector<bool> mapped = {})
      : comm_(comm), mapped_(std::move(mapped)), windows_(comm), nic_(std::move(nic)) {}
  ~QueuePairs();
  QueuePairs(const QueuePairs&) = delete;
  QueuePairs& operator=(const QueuePairs&) = delete;

  // The rings, and what else queues and NIC share, of so many ranks.
  size_t ring_bytes(uint32_t ranks, uint32_t entries) const;

  // Memory that posters and this process reach under the same addresses; it outlives this object.
  struct Memory {
    std::byte* rings = nullptr;  // zeroed, ring_bytes(), on a page
    uint32_t entries = 0;        // of a ring; see Queue
    uint64_t* ready = nullptr;   // [ranks * entries] zeros, where the posters are
  };
  bool has_adapter() const { return nic_->is_adapter(); }
  // See NicPairs; the inbox is what peers write. Without use_inbox(), offer() makes one: memory of the host.
  [[nodiscard]] mep_result_t use_source(const gpu_queue::MemoryRange& source) {
    return nic_->use_source(source);
  }
  [[nodiscard]] mep_result_t use_inbox(const gpu_queue::MemoryRange& inbox);
  // This rank's window; peers find it under its id. *this has its source, and gets its rings.
  [[nodiscard]] mep_result_t offer(uint64_t id, size_t inbox_bytes, const Memory& memory);
  std::byte* inbox() const { return inbox_; }
  [[nodiscard]] mep_result_t connect(const CommView& view, const Deadline& deadline);
  // Whether each rank of the view is reached as this very process of it: by a queue where there is a pair.
  bool reaches(const CommView& view) const;
  bool reaches(const CommView& view, uint32_t rank) const {
    return reached_[rank] == view.incarnations[rank];
  }
  // Whether a pair was connected to a process that the view lacks.
  bool has_ended(const CommView& view) const;
  // In rings that nobody posts to: makes pairs in the place of those that have ended, connects to those that lack a queue,
  // and adds their ranks to *added. The posters' zeros at Memory::ready are the caller's to restore, before the queues are
  // copied to them.
  [[nodiscard]] mep_result_t reach(const CommView& view, const Deadline& deadline,
                                   std::vector<uint32_t>* added);
  // By rank, to be copied to where the posters are. Nobody posts to those of ranks that are not reached; there is no ring
  // where there is no pair.
  std::span<const gpu_queue::Queue> queues() const { return queues_; }
  // The inbox, unless use_inbox() gave another.
  const Window& window() const { return *windows_.own(); }
  // Any thread. Whether the NIC says that the rank's queue has failed, which this rank has not ended.
  bool find_error(uint32_t rank, gpu_queue::QueueError* error);

  // No pair goes to this rank, nor to one that kernels store to.
  bool has_pair(uint32_t rank) const;
  // Posters have ended: peers get all that they rang for, unless the NIC stops. Before keep() is called no more, so that it
  // ends the wait for peers that are lost; afterwards the NIC touches no memory of peers.
  void finish() const;
  // Queues of ranks that the view lacks, or has as other processes, end.
  void keep(const CommView& view);
  // All queues end.
  void end();

 private:
  struct Pair {
    std::unique_ptr<gpu_queue::NicPair> pair;  // null: kernels do not post there
    bool is_used = false;                      // it was connected, and cannot be again
    uint64_t served = 0;  // to which process, while the NIC connects or serves it
  };

  void tell_joiners();
  mep_result_t make_pair(uint32_t rank);
  mep_result_t replace_ended(const CommView& view);
  mep_result_t reach(uint32_t rank, const CommView& view, const Deadline& deadline);
  mep_result_t serve(const gpu_queue::PeerEnd& peer, uint32_t rank, const CommView& view);
  // Control thread: the process in the slot writes to the window no more.
  mep_result_t fence(uint32_t slot, uint64_t incarnation);
  mep_result_t fail(uint32_t rank, const Deadline& deadline);

  const CommIdentity& comm_;
  const std::vector<bool> mapped_;
  PeerWindows windows_;
  const std::unique_ptr<gpu_queue::NicPairs> nic_;
  Memory memory_;
  std::byte* inbox_ = nullptr;
  std::vector<gpu_queue::Queue> queues_;  // completion entries change under the mutex
  std::vector<uint64_t> reached_;         // by rank: which process; 0: none

  std::mutex mutex_;  // of what follows
  std::vector<Pair>
      pairs_;  // by rank; of each the user's thread alone changes `pair` and `is_used`
  std::vector<uint64_t> fenced_;   // by rank: the last process that fence() was called for
  std::vector<uint64_t> members_;  // of the latest view of keep(), by rank
  uint64_t kept_epoch_ = 0;        // its epoch; 0: there was none
  bool has_ended_ = false;
};

}  // namespace mep
