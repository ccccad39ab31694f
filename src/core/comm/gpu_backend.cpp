#include "core/comm/gpu_backend.hpp"

#include <ctime>

#include "base/library_thread.hpp"
#include "base/status.hpp"
#include "core/comm/comm.hpp"

namespace mep {
namespace {

constexpr const char* kSteps[] = {"make its GPU's part of a communicator", "reach its peers' GPUs"};
constexpr timespec kWatchPause{0, 1'000'000};

}  // namespace

GpuBackend::GpuBackend(uint8_t which, Comm& comm, const GpuPlace& place)
    : Backend(which), comm_(comm), place_(place) {
  comm_.world().note_kernels();
}

mep_result_t GpuBackend::begin(Collective, const CollectiveArgs&, Operation*) {
  return check_host("an operation of the host");
}

mep_result_t GpuBackend::free(void* memory, std::shared_ptr<const void>* kept) {
  return comm_.world().host_memory().free(memory, kept);
}

mep_result_t GpuBackend::make_pairs(std::unique_ptr<gpu_queue::NicPairs>*) {
  return mep::fail(MEP_ERR_INTERNAL, "GPUs that are mapped have no queues; please report this");
}

mep_reach_t GpuBackend::reach_of(uint32_t rank) const {
  if (reach() == GpuReach::kDeviceWindows) return MEP_REACH_MAPPED;
  if (reach() == GpuReach::kHostWindows) return MEP_REACH_HOST;
  const std::vector<bool> mapped = mapped_ranks();
  if (!mapped.empty() && mapped[rank]) return MEP_REACH_MAPPED;
  return uses_adapter() ? MEP_REACH_ADAPTER : MEP_REACH_QUEUES;
}

mep_result_t GpuBackend::check_stream(const void* stream) const {
  if (stream != nullptr || place().ranks_on_device == 1) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "%u ranks share GPU %d: each needs a stream of its own, made with "
              "cudaStreamNonBlocking; the NULL stream would make them wait for each other",
              place().ranks_on_device, place().device);
}

// --- The watcher ----------------------------------------------------------------------------------

mep_result_t GpuBackend::add_part(GpuPart* part) {
  {
    const std::lock_guard lock(parts_mutex_);
    parts_.push_back(part);
  }
  return start_watcher();
}

void GpuBackend::remove_part(GpuPart* part) {
  const std::lock_guard lock(parts_mutex_);
  std::erase(parts_, part);
}

mep_result_t GpuBackend::meet_joiners_of_parts(const Deadline& deadline) {
  const std::lock_guard lock(parts_mutex_);
  for (GpuPart* part : parts_) MEP_TRY(part->meet_joiners(deadline));
  return MEP_SUCCESS;
}

mep_result_t GpuBackend::start_watcher() {
  if (watcher_.joinable()) return MEP_SUCCESS;
  return start_library_thread(
      "the watcher of a communicator", [this] { watch_all(); }, &watcher_);
}

void GpuBackend::stop_watcher() {
  // Relaxed: join() orders the thread's work before what follows.
  stop_.store(true, std::memory_order_relaxed);
  if (watcher_.joinable()) watcher_.join();
}

void GpuBackend::watch_all() {
  // Relaxed: stop_ publishes nothing else.
  while (!stop_.load(std::memory_order_relaxed)) {
    watch();
    if (records_.watch()) comm_.world().wake();
    {
      const std::lock_guard lock(parts_mutex_);
      for (GpuPart* part : parts_) part->watch();
    }
    (void)nanosleep(&kWatchPause, nullptr);
  }
}

// --- Children -------------------------------------------------------------------------------------

std::span<const char* const> GpuBackend::steps() {
  return kSteps;
}

mep_result_t GpuBackend::take_step(size_t step, Comm& comm, const GpuPlace& place,
                                   std::unique_ptr<Backend>* made) {
  if (step == 0) {
    std::unique_ptr<GpuBackend> side;
    MEP_TRY(make_gpu_backend(comm, place, {}, &side));
    GpuBackend& opened = *side;
    *made = std::move(side);
    return opened.connect(Deadline::after_ms(comm.timeout_ms()));
  }
  GpuBackend* side = (*made)->gpu_backend();
  if (step != 1 || side == nullptr) {
    return fail(MEP_ERR_INTERNAL, "making a communicator with a GPU has no step %zu", step);
  }
  MEP_TRY(side->begin_proof());
  return side->end_proof();
}

}  // namespace mep
