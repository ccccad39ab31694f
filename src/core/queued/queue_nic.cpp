#include "core/queued/queue_nic.hpp"

#include "base/guarded.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "core/topo/hca_choice.hpp"
#include "transport/gpu_queue/soft_pairs.hpp"
#if MEP_HAVE_VERBS
#include "transport/verbs/mlx5_device.hpp"
#endif

namespace mep {
namespace {

mep_result_t open_near_adapter(int32_t rank, std::string* name,
                               std::unique_ptr<gpu_queue::mlx5::Device>* out) {
#if MEP_HAVE_VERBS
  HcaQuestion question;
  question.fallback_rank = rank;
  HcaChoice choice;
  MEP_TRY(choose_preferred_hca(question, &choice));
  if (choice.usable == 0) return fail(MEP_ERR_UNSUPPORTED, "%s", choice.summary.c_str());
  *name = choice.ports[0].hca;
  return verbs::open_mlx5_device(*name, out);
#else
  (void)rank, (void)name, (void)out;
  return fail(MEP_ERR_UNSUPPORTED, "this libmep was built without libibverbs");
#endif
}

}  // namespace

AdapterOpener& adapter_opener() {
  static AdapterOpener opener = open_near_adapter;
  return opener;
}

mep_result_t QueueNic::start(bool uses_adapter, int32_t rank) {
  if (!uses_adapter) return soft_.start();
  return guarded([&] { return open_adapter(rank); });
}

mep_result_t QueueNic::open_adapter(int32_t rank) {
  std::string name;
  mep_result_t result = adapter_opener()(rank, &name, &device_);
  if (result == MEP_SUCCESS) {
    result = gpu_queue::mlx5::Adapter::open(*device_, name, &adapter_);
  }
  if (result == MEP_SUCCESS) {
    const std::string& port = adapter_->port().description;
    log(LogLevel::kInfo, "HCA %s executes queues that GPUs post to: %s", name.c_str(),
        port.c_str());
    return carrier_.start();
  }
  const std::string why = last_error_text();
  return fail(result, "MEP_GPU_QUEUES=adapter%s%s: %s; MEP_GPU_QUEUES=host needs no adapter",
              name.empty() ? "" : ", HCA ", name.c_str(), why.c_str());
}

mep_result_t QueueNic::make_pairs(std::unique_ptr<gpu_queue::NicPairs>* out) {
  return guarded([&] {
    if (adapter_ == nullptr) {
      *out = std::make_unique<gpu_queue::SoftPairs>(&soft_);
    } else {
      *out = std::make_unique<gpu_queue::mlx5::AdapterPairs>(adapter_.get(), &carrier_);
    }
    return MEP_SUCCESS;
  });
}

}  // namespace mep
