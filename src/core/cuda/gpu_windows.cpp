#include "core/cuda/gpu_windows.hpp"

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "base/status.hpp"

namespace mep {

GpuWindows::GpuWindows(Comm& comm, WindowPlace place, int32_t device, uint64_t id,
                       std::vector<bool> mapped)
    : comm_(comm),
      place_(place),
      device_(device),
      id_(id),
      mapped_(std::move(mapped)),
      windows_(comm.size()),
      incarnations_(comm.size()) {}

GpuWindows::~GpuWindows() {
  withdraw();
}

mep_result_t GpuWindows::offer(size_t bytes) {
  std::shared_ptr<GpuWindow> window;
  MEP_TRY(GpuWindow::create(place_, device_, bytes, &window));
  return offer(std::move(window));
}

mep_result_t GpuWindows::offer(std::shared_ptr<GpuWindow> window) {
  const uint32_t rank = comm_.rank();
  windows_[rank] = std::move(window);
  // Release: see the field.
  incarnations_[rank].store(comm_.world().identity().incarnation, std::memory_order_release);
  auto offered = std::make_shared<KernelMemory>();
  offered->id = id_;
  offered->bytes = windows_[rank]->bytes();
  for (uint32_t peer = 0; peer < comm_.size(); ++peer) {
    if (maps(peer)) offered->slots.push_back(comm_.slots()[peer]);
  }
  MEP_TRY(windows_[rank]->export_fd(&offered->fd));
  return comm_.world().windows().offer_memory(std::move(offered));
}

bool GpuWindows::reaches(const CommView& view) const {
  return std::all_of(view.live.begin(), view.live.end(),
                     [&](uint32_t rank) { return reaches(view, rank); });
}

bool GpuWindows::reaches(const CommView& view, uint32_t rank) const {
  return !maps(rank) ||
         incarnations_[rank].load(std::memory_order_acquire) == view.incarnations[rank];
}

// One whose windows have all come has this one or never will.
bool GpuWindows::lacks(uint32_t rank, uint64_t incarnation) const {
  WorldWindows& windows = comm_.world().windows();
  const uint32_t slot = comm_.slots()[rank];
  return windows.has_offered_all(slot, incarnation) && !windows.has_offered(slot, id_);
}

mep_result_t GpuWindows::connect(const CommView& view, const Deadline& deadline, const char* what) {
  for (const uint32_t rank : view.live) {
    if (!maps(rank)) continue;
    // Relaxed: only this thread writes it.
    if (incarnations_[rank].load(std::memory_order_relaxed) == view.incarnations[rank]) continue;
    if (what != nullptr && lacks(rank, view.incarnations[rank])) {
      log(LogLevel::kWarn, "rank %u does not take part in %s: it joined while that was made", rank,
          what);
      continue;
    }
    const mep_result_t taken = take(rank, view.incarnations[rank], deadline);
    // A joiner runs nothing before the view that admits it, which has the rank's successor.
    if (taken == MEP_ERR_PEER_FAILED && comm_.world().admissions().entering()) continue;
    MEP_TRY(taken);
  }
  return MEP_SUCCESS;
}

mep_result_t GpuWindows::take(uint32_t rank, uint64_t incarnation, const Deadline& deadline) {
  WindowOffer offer;
  MEP_TRY(
      comm_.world().windows().take_memory(comm_.slots()[rank], incarnation, id_, deadline, &offer));
  if (offer.bytes != windows_[comm_.rank()]->bytes()) {
    return fail(MEP_ERR_MISMATCH, "rank %u has another kind of GPU, another layout or other sizes",
                rank);
  }
  std::shared_ptr<GpuWindow> window;
  MEP_TRY(GpuWindow::import(place_, device_, offer.bytes, offer.fd, &window));
  window.swap(windows_[rank]);
  if (window != nullptr) replaced_.push_back(std::move(window));
  // Release: see the field.
  incarnations_[rank].store(incarnation, std::memory_order_release);
  return MEP_SUCCESS;
}

std::vector<std::byte*> GpuWindows::addresses() const {
  std::vector<std::byte*> found;
  for (const auto& window : windows_) found.push_back(window == nullptr ? nullptr : window->data());
  return found;
}

}  // namespace mep
