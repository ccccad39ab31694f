#include "queue/soft_ends.hpp"

#include <array>
#include <vector>

#include "error.hpp"
#include "queue/failure.hpp"
#include "transport/gpu_queue/memory_executor.hpp"
#include "transport/gpu_queue/soft_nic.hpp"

namespace mep::perf {
namespace {

using namespace gpu_queue;  // NOLINT(google-build-using-namespace)

constexpr uint32_t kLocalKey = 7;
constexpr uint32_t kRemoteKey = 9;

class SoftEnds final : public Ends {
 public:
  explicit SoftEnds(size_t span) : sides_{Side(span), Side(span)} {
    require_queue(nic_.start(), "the software NIC");
    for (int i = 0; i < 2; ++i) serve(i);
  }

  bool posters_wake() const override { return true; }
  std::string description() const override { return "software NIC"; }
  std::string name() const override { return "software"; }

 private:
  struct Side {
    explicit Side(size_t span) : memory(span), ring(kQueueEntries), ready(kQueueEntries) {}
    EndMemory memory;
    std::vector<Request> ring;
    std::vector<uint64_t> ready;
    CompletionEntry completion{};
    DoorbellRecord record{};
    HostDoorbell doorbell{};
    Queue queue{};
  };

  void serve(int number) {
    Side& side = sides_[static_cast<size_t>(number)];
    const EndMemory& other = sides_[static_cast<size_t>(1 - number)].memory;
    side.doorbell.nic = &nic_;
    side.queue.ring = side.ring.data();
    side.queue.ready = side.ready.data();
    side.queue.record = &side.record;
    side.queue.doorbell = &side.doorbell.value;
    side.queue.queue_pair = nic_.new_queue_pair();
    side.queue.entries = kQueueEntries;
    make_empty(&side.queue, &side.completion, 0);
    QueueWiring wiring;
    wiring.ring = side.queue.ring;
    wiring.entries = kQueueEntries;
    wiring.completions = &side.completion;
    wiring.record = &side.record;
    wiring.doorbell = &side.doorbell.value;
    wiring.queue_pair = side.queue.queue_pair;
    wiring.poster_wakes = true;
    const auto source = reinterpret_cast<uint64_t>(side.memory.source());
    const auto target = reinterpret_cast<uint64_t>(other.target());
    wiring.local = {{kLocalKey, source, side.memory.span(), side.memory.source(), false}};
    wiring.remote = {{kRemoteKey, target, other.span(), target, true, true}};
    require_queue(nic_.add_queue(wiring, std::make_unique<MemoryExecutor>()), "the software NIC");
    ends_[number] = {
        &side.queue, &side.memory, {side.memory.source(), kLocalKey}, {target, kRemoteKey}};
  }

  std::array<Side, 2> sides_;
  SoftNic nic_;  // ends first: until then it reads and writes the sides
};

}  // namespace

std::unique_ptr<Ends> make_soft_ends(size_t span) {
  return std::make_unique<SoftEnds>(span);
}

}  // namespace mep::perf
