#include "core/queued/doorbell_trial.hpp"

#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "transport/gpu_queue/request_check.hpp"

namespace mep {
namespace {

using gpu_queue::NicPair;
using gpu_queue::Patience;
using gpu_queue::Queue;
using gpu_queue::SendQueue;
using gpu_queue::Status;

constexpr uint32_t kTrialEntries = 4;  // each request completes
constexpr size_t kTrialPage = gpu_queue::mlx5::QueueLayout::kPage;

}  // namespace

mep_result_t try_doorbells(gpu_queue::mlx5::Adapter& adapter, gpu_queue::PosterDoorbells& doorbells,
                           const Deadline& deadline) {
  constexpr size_t kBytes = gpu_queue::mlx5::QueueLayout(kTrialEntries).bytes;
  struct alignas(kTrialPage) Pages {
    std::array<std::byte, kBytes> ring;
    alignas(kTrialPage) std::array<std::byte, kTrialPage> window;
  };
  const auto pages = std::make_unique<Pages>();
  std::array<uint64_t, kTrialEntries> ready{};
  gpu_queue::mlx5::AdapterPairs pairs(&adapter, {&doorbells});
  MEP_TRY(pairs.use_window({pages->window.data(), kTrialPage}));
  MEP_TRY(pairs.use_source({pages->window.data(), kTrialPage}));
  Queue queue{};
  std::unique_ptr<NicPair> pair;
  MEP_TRY(pairs.make({pages->ring.data(), kTrialEntries, ready.data()}, &queue, &pair));
  const std::vector<std::byte> address = pair->address();
  gpu_queue::PeerEnd self;
  self.address = address;
  MEP_TRY(pair->connect(self, &queue));

  uint64_t rung = 0;
  uint64_t* const of_posters = std::exchange(queue.doorbell, &rung);
  SendQueue<> posted(&queue, Patience{deadline.at_ns(), nullptr, 0});
  if (posted.post(gpu_queue::nop()) != Status::kOk) {
    return fail(MEP_ERR_INTERNAL, "a new queue has no room; please report this");
  }
  MEP_TRY(doorbells.ring(of_posters, rung));
  switch (posted.flush()) {
    case Status::kOk:
      return MEP_SUCCESS;
    case Status::kFailed: {
      gpu_queue::QueueError error{};
      (void)posted.error(&error);
      return fail(MEP_ERR_DEVICE, "an empty request had %s", text_of(error).c_str());
    }
    case Status::kTimedOut:
    case Status::kAborted:
      break;
  }
  return fail(MEP_ERR_TIMEOUT, "the adapter did not see it");
}

}  // namespace mep
