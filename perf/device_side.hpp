// Everything that needs a GPU, seen without a CUDA header. Built without CUDA, device_absent.cpp stands
// in and only says so.
//
// On a GPU a block of the timing is one graph of kDeviceOperations operations back to back.
#pragma once

#include <cstdint>
#include <memory>

#include "collectives.hpp"
#include "machine.hpp"
#include "mep.h"
#include "moe_side.hpp"
#include "team.hpp"

namespace mep::perf {

constexpr uint64_t kDeviceOperations = 50;  // of one graph

bool device_is_built();

// Before anything else is done with GPUs, while the process has one thread. Throws when the GPU cannot
// be used; the text says why. `device`: its number, or -1: by rank.
void prepare_device(int32_t device);
// Nothing else may run on the GPUs. By rank: GPU 0, and between GPUs 0 and 1.
DeviceFloors measure_device(int32_t device);

// One rank's stream, memory and kernels on its GPU; used by one thread.
class DeviceRank {
 public:
  virtual ~DeviceRank() = default;
  // Another one for every GPU of the host.
  virtual double gpu_number() const = 0;
  // A team of ranks that are processes; the numbers go over the communicator.
  virtual std::unique_ptr<Team> make_team() = 0;
  // The call's buffers are on the host; the case has its own on the GPU.
  virtual std::unique_ptr<Case> make_collective(const CollectiveCall& call) = 0;
  // The same by NCCL, beside the case that make_collective() gave last; collective. Throws where NCCL is not there,
  // or ranks share a GPU. Ranks are processes.
  virtual std::unique_ptr<Case> make_nccl_collective(const CollectiveCall& call) = 0;
  // The sum over the ranks of `count` float32 of the GPU's memory, each 1. Returns when the allreduce has ended, how it
  // did; *sum is the first element. `count` is that of the first call.
  virtual mep_result_t reduce_ones(size_t count, float* sum) = 0;
  // So much of the GPU's memory is filled and kept.
  virtual void hold(size_t bytes) = 0;
  // Collective; so is the end of the case.
  virtual std::unique_ptr<Case> make_moe(MoeOperation operation, MoeProblem& problem,
                                         const Options& options) = 0;
};

// On the communicator's GPU. Throws PerfError.
std::unique_ptr<DeviceRank> make_device_rank(mep_comm_t comm);

}  // namespace mep::perf
