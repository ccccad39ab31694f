// Adapters beside the GPUs, one for each communicator of a rank: models of the firmware on one fabric. Ranks are threads.
#include "cuda_on_host/adapters.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "core/queued/queue_nic.hpp"
#include "support/mlx5_firmware.hpp"

namespace mep::test {

// Never destroyed: its NIC may run when main() ends.
ModelFabric& played_fabric() {
  static auto* const made = [] {
    auto* fabric = new ModelFabric;
    fabric->waits_for_peers = true;
    return fabric;
  }();
  return *made;
}

}  // namespace mep::test

namespace {

std::atomic<uint32_t> opened{0};  // orders nothing

// Whether this process has opened one, or one that it forked. Orders nothing.
std::atomic<bool>& is_used() {
  static std::atomic<bool>* const used = [] {
    void* const page = mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::bad_alloc();
    return new (page) std::atomic<bool>(false);
  }();
  return *used;
}

// A program that is to have adapters has used some.
void check_use() {
  const char* setting = std::getenv("MEP_GPU_QUEUES");
  if (setting == nullptr || std::string(setting) != "adapter" || is_used()) return;
  std::fprintf(stderr, "no adapter was opened\n");
  std::_Exit(1);
}

mep_result_t open_model(int32_t /*rank*/, const std::string& /*near*/, std::string* name,
                        std::unique_ptr<mep::gpu_queue::mlx5::Device>* out) {
  const uint32_t number = opened.fetch_add(1, std::memory_order_relaxed) + 1;
  is_used() = true;
  *name = "model" + std::to_string(number);
  mep::test::ModelPort port;
  port.is_ethernet = true;
  for (uint32_t i = 0; i < sizeof number; ++i) {
    port.gid[i] = port.mac[i] = static_cast<uint8_t>(number >> 8 * i);
  }
  port.gid[15] = 1;
  // Queue pairs have 24 bits, and each adapter numbers of its own.
  *out = std::make_unique<mep::test::Firmware>(&mep::test::played_fabric(), port, number << 12);
  return MEP_SUCCESS;
}

[[maybe_unused]] const bool is_set = [] {
  mep::adapter_access() = {open_model, 60'000};
  (void)is_used();  // before processes are forked
  return std::atexit(check_use) == 0;
}();

}  // namespace
