// Which ranks of a group are there, as a tensor of the program shows it.
//
// A group that has one tells of a loss by it and by its works, and not by an error: MepWork::wait. The tensor changes
// where an operation has failed and where ranks are admitted, so it is the same on all ranks after the same calls.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include <ATen/ATen.h>

namespace mep_torch {

class ActiveRanks {
 public:
  // The tensor has the type int32, is contiguous, has `size` entries or more, and may lie on any device.
  ActiveRanks(at::Tensor mirror, int size);

  const at::Tensor& mirror() const { return mirror_; }
  // These ranks alone are there.
  void show(const std::vector<int>& living);
  // Ranks that are not among these are gone.
  void keep(const std::vector<int>& living);
  // The ranks of a bitmap are gone.
  void lose(const std::vector<uint64_t>& failed);
  // A tensor as long as the mirror: 1 for each rank of the bitmap.
  at::Tensor hint(const std::vector<uint64_t>& failed) const;

 private:
  void publish();

  const at::Tensor mirror_;
  std::mutex mutex_;
  at::Tensor ranks_;  // on the CPU, as long as the mirror. Guarded by mutex_
};

}  // namespace mep_torch
