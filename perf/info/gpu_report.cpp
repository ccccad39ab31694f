#include "gpu_report.hpp"

#include <string>

#include "base/build_info.hpp"
#include "base/status.hpp"
#include "core/topo/hca_choice.hpp"
#include "report.hpp"
#if MEP_HAVE_CUDA
#include "transport/cuda/device_memory.hpp"
#endif

namespace mep {

#if MEP_HAVE_CUDA
namespace {

std::string hca_words(const std::string& pci) {
  HcaQuestion question;
  question.location = pci;
  HcaChoice choice;
  if (is_error(choose_preferred_hca(question, &choice))) return last_error_text();
  if (choice.usable == 0) return choice.summary;
  return choice.ports[0].name() + ", " + choice.ports[0].properties;
}

std::string capability_text(int32_t capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

void print_gpu(int32_t device, int32_t count) {
  const std::string name = "GPU " + std::to_string(device);
  DeviceFacts facts;
  if (is_error(describe_device(device, &facts))) {
    print_line(name.c_str(), std::string("not usable: ") + last_error_text());
    return;
  }
  print_line(name.c_str(), facts.name + ", " + std::to_string(facts.multiprocessors) +
                               " multiprocessors, " + size_text(facts.memory_bytes) + ", at PCI " +
                               facts.pci +
                               (facts.exports_memory ? "" : ", exports no memory to processes"));
  if (facts.compute_capability < kLeastComputeCapability) {
    print_line("", "not usable: compute capability " + capability_text(facts.compute_capability) +
                       ", " + capability_text(kLeastComputeCapability) + " is needed");
  }
  print_line("  nearest HCA", hca_words(facts.pci));
  for (int32_t peer = device + 1; peer < count; ++peer) {
    const bool reach = device_reaches(device, peer) && device_reaches(peer, device);
    print_line(("  and GPU " + std::to_string(peer)).c_str(),
               reach ? "mapped" : "do not reach each other: through host memory");
  }
}

}  // namespace
#endif

void print_gpus() {
  print_title("gpus", "GPUs");
#if MEP_HAVE_CUDA
  int32_t count = 0;
  if (is_error(count_devices(&count))) print_line("none", last_error_text());
  for (int32_t device = 0; device < count; ++device) print_gpu(device, count);
  if (count > 1) {
    print_line("by rank", "local rank n is given GPU n modulo " + std::to_string(count) +
                              " (MEP_DEVICE_CUDA_BY_RANK, mep_perf --device cuda)");
  }
#else
  print_line("none", std::string("built without CUDA: ") + build_info().cuda_note);
#endif
}

}  // namespace mep
