// The windows of one id that kernels of the ranks of a comm write, of all or of some that map each other: this rank's own,
// and the peers' as mapped here.
// The control thread carries the offers; it makes no CUDA call. The user's thread maps, also those of joiners.
//
// A window is mapped while this object lives, since kernels may write to it until then. The one of a rank that was
// replaced is let go when the caller knows that no kernel runs which was begun before.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/comm/comm.hpp"
#include "transport/cuda/gpu_window.hpp"

namespace mep {

class GpuWindows {
 public:
  // mapped: by rank, the peers; empty: all ranks.
  GpuWindows(Comm& comm, WindowPlace place, int32_t device, uint64_t id,
             std::vector<bool> mapped = {});
  ~GpuWindows();
  GpuWindows(const GpuWindows&) = delete;
  GpuWindows& operator=(const GpuWindows&) = delete;

  // Makes this rank's window and offers it to the peers; or offers one that is there.
  [[nodiscard]] mep_result_t offer(size_t bytes);
  [[nodiscard]] mep_result_t offer(std::shared_ptr<GpuWindow> window);
  // Maps what the peers of the view offer, as far as it is not mapped. `what`, where a joiner may have no window because
  // this one was made while it came: it takes no part in that.
  [[nodiscard]] mep_result_t connect(const CommView& view, const Deadline& deadline,
                                     const char* what = nullptr);
  // The windows of all peers of the view are mapped. Any thread.
  bool reaches(const CommView& view) const;
  bool reaches(const CommView& view, uint32_t rank) const;
  // By rank; null: never mapped.
  std::vector<std::byte*> addresses() const;
  std::byte* own() const { return windows_[comm_.rank()]->data(); }
  size_t bytes() const { return windows_[comm_.rank()]->bytes(); }
  void drop_replaced() { replaced_.clear(); }
  // Joiners are not offered this rank's window any more.
  void withdraw() { comm_.world().windows().drop(id_); }

 private:
  bool maps(uint32_t rank) const { return mapped_.empty() || mapped_[rank]; }
  bool lacks(uint32_t rank, uint64_t incarnation) const;
  mep_result_t take(uint32_t rank, uint64_t incarnation, const Deadline& deadline);

  Comm& comm_;
  const WindowPlace place_;
  const int32_t device_;
  const uint64_t id_;
  const std::vector<bool> mapped_;
  std::vector<std::shared_ptr<GpuWindow>> windows_;  // by rank
  std::vector<std::shared_ptr<GpuWindow>> replaced_;
  // By rank, of whom windows_ is; release, after the window is mapped.
  std::vector<std::atomic<uint64_t>> incarnations_;
};

}  // namespace mep
