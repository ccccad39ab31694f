// Serves the queue pairs of a communicator's objects: a software NIC, or an adapter whose doorbells a thread of the host rings
// for the posters. It outlives the pairs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "mep.h"
#include "transport/gpu_queue/doorbell_carrier.hpp"
#include "transport/gpu_queue/mlx5_pairs.hpp"
#include "transport/gpu_queue/nic_pairs.hpp"
#include "transport/gpu_queue/soft_nic.hpp"

namespace mep {

// Opens the adapter of the rank, and says its name. *name may be set where it fails, too.
using AdapterOpener = mep_result_t (*)(int32_t rank, std::string* name,
                                       std::unique_ptr<gpu_queue::mlx5::Device>* out);
// The one that start() calls: of an HCA near this process. Tests set another before.
AdapterOpener& adapter_opener();

class QueueNic {
 public:
  // Once. Where there is no adapter for it, the text says what to set instead.
  [[nodiscard]] mep_result_t start(bool uses_adapter, int32_t rank);
  [[nodiscard]] mep_result_t make_pairs(std::unique_ptr<gpu_queue::NicPairs>* out);

 private:
  mep_result_t open_adapter(int32_t rank);

  gpu_queue::SoftNic soft_;
  std::unique_ptr<gpu_queue::mlx5::Device> device_;
  std::unique_ptr<gpu_queue::mlx5::Adapter> adapter_;  // null: the software NIC serves
  gpu_queue::DoorbellCarrier carrier_;
};

}  // namespace mep
