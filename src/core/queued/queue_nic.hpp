// Serves the queue pairs of a communicator's objects: a software NIC, or an adapter that posters ring themselves where they can,
// else a thread of the host for them. It outlives the pairs. All ranks of a comm are served in one way.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status.hpp"
#include "core/comm/comm.hpp"
#include "core/comm/gpu_reach.hpp"
#include "mep.h"
#include "transport/gpu_queue/doorbell_carrier.hpp"
#include "transport/gpu_queue/doorbells.hpp"
#include "transport/gpu_queue/mlx5_pairs.hpp"
#include "transport/gpu_queue/nic_pairs.hpp"
#include "transport/gpu_queue/soft_nic.hpp"

namespace mep {

// How adapters are found and tried; tests set another one before.
struct AdapterAccess {
  // Opens the adapter of the rank near a GPU, whose PCI address is given, and says its name. *name may be set where it fails,
  // too.
  mep_result_t (*open)(int32_t rank, const std::string& near, std::string* name,
                       std::unique_ptr<gpu_queue::mlx5::Device>* out);
  uint64_t test_ms;  // for the puts of the self-test
};
AdapterAccess& adapter_access();

// Posters are kernels of a GPU.
struct PosterPlace {
  std::string pci;                                        // of the GPU
  std::unique_ptr<gpu_queue::PosterDoorbells> doorbells;  // null: they ring no adapter
};

class QueueNic {
 public:
  QueueNic() = default;
  ~QueueNic() {
    if (chooser_.joinable()) chooser_.join();
  }
  QueueNic(const QueueNic&) = delete;
  QueueNic& operator=(const QueueNic&) = delete;

  // Two steps, so that one thread can make several ranks. Between them a thread of this object may be the user of the comm,
  // on which the ranks agree what serves them, and nobody else is. `mapped`: see QueuePairs.
  [[nodiscard]] mep_result_t begin(Comm& comm, GpuQueues queues, const std::vector<bool>& mapped,
                                   PosterPlace place);
  // Where adapters are forced and do not work on all ranks, the text says what to set instead.
  [[nodiscard]] mep_result_t finish();
  // A joiner's, in place of both: what serves the members.
  [[nodiscard]] mep_result_t join(GpuQueues queues, bool uses_adapter, uint32_t rank,
                                  PosterPlace place);
  bool uses_adapter() const { return adapter_ != nullptr; }
  [[nodiscard]] mep_result_t make_pairs(std::unique_ptr<gpu_queue::NicPairs>* out);

 private:
  mep_result_t open_adapter(uint32_t rank, GpuQueues queues);
  void try_doorbells(GpuQueues queues);
  mep_result_t choose(Comm& comm, GpuQueues queues, const std::vector<bool>& mapped);
  // All ranks learn whether all adapters work; if not, *refused is an error and *why says whose and why.
  mep_result_t try_adapters(Comm& comm, GpuQueues queues, const std::vector<bool>& mapped,
                            mep_result_t* refused, std::string* why);

  PosterPlace place_;  // its doorbells work, once an adapter is open
  gpu_queue::SoftNic soft_;
  std::unique_ptr<gpu_queue::mlx5::Device> device_;
  std::unique_ptr<gpu_queue::mlx5::Adapter> adapter_;  // null: the software NIC serves
  std::unique_ptr<gpu_queue::DoorbellCarrier> carrier_;
  std::thread chooser_;
  mep_result_t chosen_ = MEP_SUCCESS;  // the chooser's result
  char text_[kErrorTextBytes] = {};    // its error
};

}  // namespace mep
