#include "queue/adapter_ends.hpp"

#include <array>
#include <vector>

#include "base/build_info.hpp"
#include "error.hpp"
#include "queue/failure.hpp"
#include "transport/gpu_queue/mlx5_pairs.hpp"
#if MEP_HAVE_VERBS
#include "transport/verbs/mlx5_device.hpp"
#endif

namespace mep::perf {
namespace {

namespace m = gpu_queue::mlx5;

constexpr uint32_t kSuspectMs = 5000;  // of a world by default: an adapter tries for as long

class AdapterEnds final : public Ends {
 public:
  AdapterEnds(const std::string& name, m::Device& device, size_t span)
      : sides_{Side(span), Side(span)} {
    require_queue(m::Adapter::open(device, name, &adapter_), "HCA " + name);
    for (uint32_t i = 0; i < 2; ++i) require_named(make(i));
    for (uint32_t i = 0; i < 2; ++i) require_named(connect(i));
  }

  bool posters_wake() const override { return false; }
  std::string description() const override {
    return "adapter " + name() + " (" + adapter_->port().description + ")";
  }
  std::string name() const override { return adapter_->name(); }

 private:
  struct Side {
    explicit Side(size_t span) : memory(span), ready(kQueueEntries) {}
    EndMemory memory;
    std::vector<uint64_t> ready;
    std::unique_ptr<PageMemory> ring;
    gpu_queue::Queue queue{};
    std::unique_ptr<gpu_queue::NicPairs> pairs;  // of one pair: each side has a window of its own
  };

  // The text of the error says whose it is.
  static void require_named(mep_result_t result) {
    if (result < 0) throw PerfError(last_error_text());
  }

  mep_result_t make(uint32_t number) {
    Side& side = sides_[number];
    const EndMemory& memory = side.memory;
    side.pairs = std::make_unique<m::AdapterPairs>(adapter_.get());
    MEP_TRY(side.pairs->use_window({memory.target(), memory.span()}));
    MEP_TRY(side.pairs->use_source({memory.source(), memory.span()}));
    side.ring = std::make_unique<PageMemory>(side.pairs->bytes_of(kQueueEntries));
    return side.pairs->make({side.ring->data(), kQueueEntries, side.ready.data(), kSuspectMs},
                            &side.queue, &pairs_[number]);
  }

  mep_result_t connect(uint32_t number) {
    Side& side = sides_[number];
    const std::vector<std::byte> address = pairs_[1 - number]->address();
    gpu_queue::PeerEnd peer;
    peer.slot = 1 - number;
    peer.address = address;
    MEP_TRY(pairs_[number]->connect(peer, &side.queue));
    ends_[number] = {&side.queue,
                     &side.memory,
                     {side.memory.source(), side.queue.source_key},
                     {side.queue.window_base, side.queue.window_key}};
    return MEP_SUCCESS;
  }

  std::unique_ptr<m::Adapter> adapter_;
  std::array<Side, 2> sides_;
  // They end first: each writes into the memory of both sides.
  std::array<std::unique_ptr<gpu_queue::NicPair>, 2> pairs_;
};

}  // namespace

std::unique_ptr<m::Device> open_adapter(const std::string& name) {
#if MEP_HAVE_VERBS
  std::unique_ptr<m::Device> device;
  require_queue(verbs::open_mlx5_device(name, &device), "--nic " + name);
  return device;
#else
  throw PerfError("--nic " + name + ": this build has no RDMA: " + build_info().verbs_note);
#endif
}

std::unique_ptr<Ends> make_adapter_ends(const std::string& name, m::Device& device, size_t span) {
  return std::make_unique<AdapterEnds>(name, device, span);
}

}  // namespace mep::perf
