#include "core/queued/queue_nic.hpp"

#include <cstdio>
#include <utility>

#include "base/guarded.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "core/queued/doorbell_trial.hpp"
#include "core/queued/self_test.hpp"
#include "core/topo/hca_choice.hpp"
#include "transport/gpu_queue/soft_pairs.hpp"
#if MEP_HAVE_VERBS
#include "transport/verbs/mlx5_device.hpp"
#endif

namespace mep {
namespace {

constexpr uint64_t kDoorbellMs = 500;  // of a doorbell's trial

mep_result_t open_near_adapter(int32_t rank, const std::string& near, std::string* name,
                               std::unique_ptr<gpu_queue::mlx5::Device>* out) {
#if MEP_HAVE_VERBS
  HcaQuestion question;
  question.location = near;
  question.fallback_rank = rank;
  HcaChoice choice;
  mep_result_t chosen = choose_preferred_hca(question, &choice);
  if (chosen == MEP_ERR_NOT_FOUND) {  // a container may not show where the GPU is
    question.location = "cpu";
    chosen = choose_preferred_hca(question, &choice);
  }
  MEP_TRY(chosen);
  if (choice.usable == 0) return fail(MEP_ERR_UNSUPPORTED, "%s", choice.summary.c_str());
  *name = choice.ports[0].hca;
  return verbs::open_mlx5_device(*name, out);
#else
  (void)rank, (void)near, (void)name, (void)out;
  return fail(MEP_ERR_UNSUPPORTED, "this libmep was built without libibverbs");
#endif
}

// All ranks learn whether all are through a step. If not, *refused is an error, and *why is this rank's own text or says whose
// log has one.
mep_result_t agree(Comm& comm, mep_result_t own, const char* step, mep_result_t* refused,
                   std::string* why) {
  if (own != MEP_SUCCESS) {
    *refused = own;
    *why = "rank " + std::to_string(comm.rank()) + " could not " + step + ": " + last_error_text();
  }
  std::vector<mep_result_t> all(comm.size(), MEP_SUCCESS);
  MEP_TRY(comm.run(Collective::k_allgather, {&own, all.data(), sizeof own, MEP_UINT8, MEP_SUM, 0}));
  for (const uint32_t rank : comm.latest_view()->live) {
    if (all[rank] == MEP_SUCCESS || *refused != MEP_SUCCESS) continue;
    *refused = all[rank];
    *why = "rank " + std::to_string(rank) + " could not " + step + ", its log or error says why";
  }
  return MEP_SUCCESS;
}

}  // namespace

AdapterAccess& adapter_access() {
  static AdapterAccess access{open_near_adapter, 2'000};
  return access;
}

mep_result_t QueueNic::begin(Comm& comm, GpuQueues queues, const std::vector<bool>& mapped,
                             PosterPlace place) {
  if (queues == GpuQueues::kHost) return soft_.start();
  place_ = std::move(place);
  const auto run = [this, &comm, queues, mapped] {
    set_log_rank(static_cast<int>(comm.world().identity().slot));
    if (!comm.enter_call()) return fail(MEP_ERR_INTERNAL, "a comm has two users");
    const mep_result_t result = guarded([&] { return choose(comm, queues, mapped); });
    comm.leave_call();
    return result;
  };
  return start_library_thread(
      "the thread that tries the adapter",
      [this, run] {
        chosen_ = run();
        if (chosen_ != MEP_SUCCESS) std::snprintf(text_, sizeof text_, "%s", last_error_text());
      },
      &chooser_);
}

mep_result_t QueueNic::finish() {
  if (chooser_.joinable()) chooser_.join();
  return chosen_ == MEP_SUCCESS ? MEP_SUCCESS : fail(chosen_, "%s", text_);
}

mep_result_t QueueNic::choose(Comm& comm, GpuQueues queues, const std::vector<bool>& mapped) {
  mep_result_t refused = MEP_SUCCESS;
  std::string why;
  MEP_TRY(try_adapters(comm, queues, mapped, &refused, &why));
  if (refused == MEP_SUCCESS) return MEP_SUCCESS;
  carrier_.reset();
  adapter_.reset();
  device_.reset();
  if (queues != GpuQueues::kAuto) {
    return fail(refused, "MEP_GPU_QUEUES=%s: %s; MEP_GPU_QUEUES=host needs no adapter",
                queues == GpuQueues::kAdapter ? "adapter" : "assisted", why.c_str());
  }
  log(LogLevel::kWarn, "MEP_GPU_QUEUES=auto: a thread executes queues that GPUs post to: %s",
      why.c_str());
  return soft_.start();
}

mep_result_t QueueNic::try_adapters(Comm& comm, GpuQueues queues, const std::vector<bool>& mapped,
                                    mep_result_t* refused, std::string* why) {
  std::unique_ptr<SelfTest> test;
  const uint32_t number = comm.next_ep_number();
  const auto make = [&]() -> mep_result_t {
    MEP_TRY(open_adapter(comm.rank(), queues));
    // Its posters are threads of the host.
    auto pairs = std::make_unique<gpu_queue::mlx5::AdapterPairs>(
        adapter_.get(), std::vector<gpu_queue::Doorbells*>{carrier_.get()});
    test = std::make_unique<SelfTest>(comm, adapter_->name(), std::move(pairs), mapped);
    return test->make(number);
  };
  const auto take = [&](const char* step, const auto& call) {
    return *refused == MEP_SUCCESS ? agree(comm, guarded(call), step, refused, why) : MEP_SUCCESS;
  };
  MEP_TRY(take("make queues of its adapter", make));
  const Deadline deadline = Deadline::after_ms(adapter_access().test_ms);
  MEP_TRY(take("connect queues of its adapter", [&] { return test->connect(deadline); }));
  return take("exchange data by its adapter", [&] { return test->exchange(deadline); });
}

mep_result_t QueueNic::join(GpuQueues queues, bool uses_adapter, uint32_t rank, PosterPlace place) {
  place_ = std::move(place);
  if (queues != GpuQueues::kAuto && uses_adapter != (queues != GpuQueues::kHost)) {
    return fail(
        MEP_ERR_MISMATCH,
        "queues of the other ranks are executed by %s: rank %u wants MEP_GPU_QUEUES=%s or auto",
        uses_adapter ? "adapters" : "threads", rank, uses_adapter ? "adapter" : "host");
  }
  if (!uses_adapter) return soft_.start();
  if (guarded([&] { return open_adapter(rank, queues); }) == MEP_SUCCESS) return MEP_SUCCESS;
  const std::string why = last_error_text();
  return fail(MEP_ERR_MISMATCH,
              "adapters execute the queues of the other ranks, rank %u could not open one: %s",
              rank, why.c_str());
}

mep_result_t QueueNic::open_adapter(uint32_t rank, GpuQueues queues) {
  std::string name;
  mep_result_t result =
      adapter_access().open(static_cast<int32_t>(rank), place_.pci, &name, &device_);
  if (result == MEP_SUCCESS) {
    result = gpu_queue::mlx5::Adapter::open(*device_, name, &adapter_);
  }
  if (result != MEP_SUCCESS) {
    return name.empty() ? result : add_context(result, "HCA %s", name.c_str());
  }
  log(LogLevel::kInfo, "HCA %s is open for queues that GPUs post to: %s", name.c_str(),
      adapter_->port().description.c_str());
  carrier_ = std::make_unique<gpu_queue::DoorbellCarrier>();
  MEP_TRY(carrier_->start());
  try_doorbells(queues);
  return MEP_SUCCESS;
}

void QueueNic::try_doorbells(GpuQueues queues) {
  if (queues == GpuQueues::kAssisted) place_.doorbells.reset();
  if (place_.doorbells == nullptr) return;
  const mep_result_t tried = guarded([&] {
    return mep::try_doorbells(*adapter_, *place_.doorbells, Deadline::after_ms(kDoorbellMs));
  });
  if (tried == MEP_SUCCESS) {
    return log(LogLevel::kInfo, "the GPU rings HCA %s", adapter_->name().c_str());
  }
  log(LogLevel::kInfo, "a thread rings HCA %s, the GPU does not: %s", adapter_->name().c_str(),
      last_error_text());
  place_.doorbells.reset();
}

mep_result_t QueueNic::make_pairs(std::unique_ptr<gpu_queue::NicPairs>* out) {
  return guarded([&] {
    if (adapter_ == nullptr) {
      *out = std::make_unique<gpu_queue::SoftPairs>(&soft_);
    } else {
      std::vector<gpu_queue::Doorbells*> doorbells{carrier_.get()};
      if (place_.doorbells != nullptr) doorbells.insert(doorbells.begin(), place_.doorbells.get());
      *out = std::make_unique<gpu_queue::mlx5::AdapterPairs>(adapter_.get(), std::move(doorbells));
    }
    return MEP_SUCCESS;
  });
}

}  // namespace mep
