// Adapters beside the GPUs, one for each communicator of a rank: models of the firmware on one fabric. Ranks are threads, or
// processes: the fabric's file is a descriptor that a program inherits from the one that starts it, as PLAYED_FABRIC says.
// With PLAYED_FABRIC=own each process has a fabric alone.
#include "cuda_on_host/adapters.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "core/queued/queue_nic.hpp"
#include "support/mlx5_firmware.hpp"

namespace mep::test {
namespace {

int fabric_file() {
  const char* given = std::getenv("PLAYED_FABRIC");
  if (given != nullptr && std::string(given) != "own") return std::atoi(given);
  const int file = memfd_create("played fabric", 0);
  if (file >= 0 && given == nullptr) {
    (void)setenv("PLAYED_FABRIC", std::to_string(file).c_str(), 1);
  }
  return file;
}

}  // namespace

// Never destroyed: its NIC may run when main() ends.
ModelFabric& played_fabric() {
  static auto* const made = [] {
    auto* fabric = new ModelFabric(fabric_file());
    fabric->waits_for_peers = true;
    return fabric;
  }();
  return *made;
}

}  // namespace mep::test

namespace {

using mep::test::played_fabric;

bool uses_adapters(const char* setting) {
  const char* given = std::getenv("MEP_GPU_QUEUES");
  return given != nullptr && std::string(given) == setting;
}

// A program that is to have adapters has used some, or one that it started.
void check_use() {
  // Orders nothing.
  if (played_fabric().opened.load(std::memory_order_relaxed) != 0) return;
  std::fprintf(stderr, "no adapter was opened\n");
  std::_Exit(1);
}

mep_result_t open_model(int32_t /*rank*/, const std::string& /*near*/, std::string* name,
                        std::unique_ptr<mep::gpu_queue::mlx5::Device>* out) {
  // Queue pairs have 24 bits, and each adapter numbers of its own.
  const uint32_t number = played_fabric().opened.fetch_add(1, std::memory_order_relaxed) % 4095 + 1;
  *name = "model" + std::to_string(number);
  mep::test::ModelPort port;
  port.is_ethernet = true;
  for (uint32_t i = 0; i < sizeof number; ++i) {
    port.gid[i] = port.mac[i] = static_cast<uint8_t>(number >> 8 * i);
  }
  port.gid[15] = 1;
  *out = std::make_unique<mep::test::Firmware>(&played_fabric(), port, number << 12);
  return MEP_SUCCESS;
}

[[maybe_unused]] const bool is_set = [] {
  mep::adapter_access() = {open_model, 60'000};
  const bool are_forced = uses_adapters("adapter");
  if (are_forced || uses_adapters("auto")) (void)played_fabric();  // before processes are started
  return !are_forced || std::atexit(check_use) == 0;
}();

}  // namespace
