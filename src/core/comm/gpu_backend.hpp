// The backend of a comm with a GPU: operations on device memory, enqueued on the caller's streams.
// No CUDA here; builds without CUDA have the same interface and answer MEP_ERR_UNSUPPORTED.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "core/comm/backend.hpp"
#include "core/comm/gpu_reach.hpp"
#include "core/comm/stream_records.hpp"
#include "mep.h"

namespace mep {

class Comm;
class EpBuffers;
struct EpDeviceOptions;
struct EpShape;
namespace device {
struct DispatchLayout;
}
namespace gpu_queue {
class NicPairs;
}

// Something else with operations on the comm's streams, whose failures the comm tells.
class GpuPart {
 public:
  virtual ~GpuPart() = default;
  // First failure since the last call.
  virtual mep_result_t take_failure() = 0;
  // By the watcher: takes what kernels report. Makes no CUDA call.
  virtual void watch() = 0;
  // See Backend::meet_joiners().
  [[nodiscard]] virtual mep_result_t meet_joiners(const Deadline& deadline) = 0;
};

// A rank's GPU, and who of its process is there besides.
struct GpuPlace {
  int32_t device = 0;
  uint32_t ranks_on_device = 1;  // of this process, this rank too
  uint32_t most_on_a_device =
      1;  // on any GPU, of all processes where they are known: the same for all ranks
  uint32_t most_blocks = 0;  // of a kernel: the same for all ranks; 0: no limit
  uint32_t limited(uint32_t blocks) const {
    return most_blocks == 0 ? blocks : std::min(blocks, most_blocks);
  }
};

class GpuBackend : public Backend {
 public:
  GpuBackend(uint8_t which, Comm& comm, const GpuPlace& place);
  const GpuPlace& place() const { return place_; }
  int32_t device() const override { return place_.device; }
  GpuBackend* gpu_backend() override { return this; }
  virtual GpuReach reach() const = 0;
  mep_reach_t reach_of(uint32_t rank) const override;
  // Frees memory that was allocated before the communicator had a GPU.
  mep_result_t free(void* memory, std::shared_ptr<const void>* kept) override;
  // With GpuReach::kQueues, for the queues of one object, which this outlives.
  [[nodiscard]] virtual mep_result_t make_pairs(std::unique_ptr<gpu_queue::NicPairs>* out);
  // With queues: adapters execute them.
  virtual bool uses_adapter() const { return false; }
  // With queues: by rank, whose GPU this one maps, which maps this one; empty: none.
  virtual std::vector<bool> mapped_ranks() const { return {}; }
  // Second step of making it, after all ranks of this process have done the first: peers' windows.
  [[nodiscard]] virtual mep_result_t connect(const Deadline& deadline) = 0;
  // Third and fourth: a kernel of every rank meets the others, which proves that they fit on the GPU
  // together. begin_proof() only enqueues.
  [[nodiscard]] virtual mep_result_t begin_proof() = 0;
  [[nodiscard]] virtual mep_result_t end_proof() = 0;

  // The buffers of an EP object; nothing is made yet. A shape that the kernels cannot do is refused.
  [[nodiscard]] virtual mep_result_t make_ep_buffers(const EpShape& shape,
                                                     const EpDeviceOptions& options,
                                                     std::unique_ptr<EpBuffers>* out) = 0;
  // The memory that they would take.
  [[nodiscard]] virtual mep_result_t estimate_ep_buffers(const EpShape& shape,
                                                         const EpDeviceOptions& options,
                                                         mep_ep_size_t* out) const = 0;
  // Checks the memory and enqueues the kernel.
  [[nodiscard]] virtual mep_result_t count_layout(const device::DispatchLayout& layout,
                                                  void* stream) = 0;

  // Each rank of this process needs a stream of its own.
  [[nodiscard]] mep_result_t check_stream(const void* stream) const;
  // First failure of a collective since the last call.
  virtual mep_result_t take_failure() = 0;
  // A record for an operation on `stream`, where it is not captured. Until give_back() the operation may write to it.
  [[nodiscard]] virtual mep_result_t lend_record(void* stream, StreamRecord** out) = 0;
  StreamRecords& records() { return records_; }
  void revoke() override {}
  // The steps by which a communicator of hosts gets a GPU at `place`, each as the error of a rank that could not do it
  // names it. All ranks take each step at one time and agree on it. *made is of host memory before a step replaces it.
  static std::span<const char* const> steps();
  [[nodiscard]] static mep_result_t take_step(size_t step, Comm& comm, const GpuPlace& place,
                                              std::unique_ptr<Backend>* made);

  // Memory of a part that has gone, which kernels may still touch and views of it still show.
  void keep_memory(std::shared_ptr<const void> memory) { kept_.push_back(std::move(memory)); }
  // Until remove_part() the part is watched.
  [[nodiscard]] mep_result_t add_part(GpuPart* part);
  void remove_part(GpuPart* part);
  // The collectives' failure goes first, then the parts'.
  mep_result_t take_any_failure() override {
    mep_result_t result = take_failure();
    const std::lock_guard lock(parts_mutex_);
    for (GpuPart* part : parts_) {
      if (result == MEP_SUCCESS) result = part->take_failure();
    }
    return result;
  }

 protected:
  Comm& comm_;

  [[nodiscard]] mep_result_t meet_joiners_of_parts(const Deadline& deadline);
  // The thread that takes the reports of kernels, the backend's and its parts'. One, whoever starts it.
  [[nodiscard]] mep_result_t start_watcher();
  // Begins each destructor: watch() is not called any more.
  void stop_watcher();

 private:
  // By the watcher, as that of a part.
  virtual void watch() {}
  void watch_all();
  mep_result_t begin(Collective kind, const CollectiveArgs& args, Operation* operation) override;

  const GpuPlace place_;
  StreamRecords records_;
  std::vector<std::shared_ptr<const void>> kept_;
  std::mutex parts_mutex_;
  std::vector<GpuPart*> parts_;
  std::atomic<bool> stop_{false};
  std::thread watcher_;
};

// First step: memory, kernels, and the rank's window where peers of this process find it.
// `made_together`: by rank, the places of all, whose sides one thread makes one after the other; empty:
// each rank makes its own, all at one time, so that they can use the comm to agree.
[[nodiscard]] mep_result_t make_gpu_backend(Comm& comm, const GpuPlace& place,
                                            std::span<const GpuPlace> made_together,
                                            std::unique_ptr<GpuBackend>* out);
// A joiner's part of what the members have, from the description of ObjectKind::kGpu; all three steps.
[[nodiscard]] mep_result_t join_gpu_backend(Comm& comm, const GpuPlace& place,
                                            std::span<const std::byte> description,
                                            const Deadline& deadline,
                                            std::unique_ptr<GpuBackend>* out);
// Whether a GPU of that number can be used here; before anything is made.
[[nodiscard]] mep_result_t check_device(int32_t device);
// The GPU that a config means, with MEP_DEVICE_CUDA_BY_RANK the one for that local rank. Checked.
[[nodiscard]] mep_result_t choose_device(const mep_comm_config_t& config, uint64_t local_rank,
                                         int32_t* device);

}  // namespace mep
