// The registered memory of a comm whose ranks map each other: the pieces, and the table in which kernels find them
// (kernels/cuda/coll/registered.cuh). All ranks have the same pieces under the same numbers, since each change is agreed on.
// The user's thread, while no operation of the comm runs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "core/comm/comm.hpp"
#include "core/cuda/gpu_windows.hpp"
#include "kernels/cuda/coll/kernels.hpp"
#include "transport/cuda/device_memory.hpp"

namespace mep {

class GpuRegistered {
 public:
  // All ranks give as many values; afterwards each has the least of all ranks in their places.
  using Agree = std::function<mep_result_t(std::span<int64_t> values)>;
  static constexpr size_t kMostValues = 6;

  GpuRegistered(Comm& comm, int32_t device, uint64_t channel, Agree agree)
      : comm_(comm), device_(device), channel_(channel), agree_(std::move(agree)) {}
  void open(device::CollState* state) { state_ = state; }

  // `memory` holds the `bytes` that the caller gave; null: nothing that can be registered does, which all ranks learn.
  // *added: the number of the piece, never 0.
  [[nodiscard]] mep_result_t add(const std::shared_ptr<GpuWindow>& memory, size_t bytes,
                                 void* stream, const Deadline& deadline, uint64_t* added);
  [[nodiscard]] mep_result_t remove(uint64_t number, void* stream);
  // On all ranks before an operation in a view with a joiner, which has none of it.
  [[nodiscard]] mep_result_t clear(void* stream);

 private:
  struct Piece {
    uint64_t number = 0;
    std::unique_ptr<GpuWindows> windows;
  };
  [[nodiscard]] mep_result_t agree_on_number(const GpuWindow* memory, size_t bytes,
                                             uint64_t* number);
  [[nodiscard]] mep_result_t map(uint64_t number, const std::shared_ptr<GpuWindow>& memory,
                                 const Deadline& deadline, Piece* piece);
  [[nodiscard]] mep_result_t write(size_t place, void* stream);
  [[nodiscard]] mep_result_t write_offers(bool offers, void* stream);

  Comm& comm_;
  const int32_t device_;
  const uint64_t channel_;
  const Agree agree_;
  device::CollState* state_ = nullptr;
  std::shared_ptr<DeviceMemory> table_;  // once something was registered
  std::array<Piece, device::kMaxRegistered> pieces_;
  uint64_t newest_ = 0;  // number
};

}  // namespace mep
