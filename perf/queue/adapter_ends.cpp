#include "queue/adapter_ends.hpp"

#include <array>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "base/build_info.hpp"
#include "error.hpp"
#include "queue/failure.hpp"
#include "transport/gpu_queue/mlx5_queue.hpp"
#if MEP_HAVE_VERBS
#include "transport/verbs/mlx5_device.hpp"
#endif

namespace mep::perf {
namespace {

namespace m = gpu_queue::mlx5;

constexpr uint32_t kFirstPsn = 0x100000;

class AdapterEnds final : public Ends {
 public:
  AdapterEnds(const std::string& name, m::Device& device, size_t span)
      : name_(name), sides_{Side(span), Side(span)} {
    require_queue(bring_up(device), name);
  }

  bool posters_wake() const override { return false; }
  std::string description() const override {
    return "adapter " + name_ + " (" + port_.description + ")";
  }
  std::string name() const override { return name_; }

 private:
  struct Side {
    explicit Side(size_t span)
        : memory(span), queue_memory(m::QueueLayout(kQueueEntries).bytes), ready(kQueueEntries) {}
    EndMemory memory;
    PageMemory queue_memory;  // by QueueLayout
    std::vector<uint64_t> ready;
    gpu_queue::Queue queue{};
    std::unique_ptr<m::RegisteredMemory> registered;
  };

  mep_result_t bring_up(m::Device& device) {
    m::Capabilities capabilities;
    MEP_TRY(m::read_capabilities(device, &capabilities));
    MEP_TRY(device.find_port(&port_));
    for (uint32_t i = 0; i < 2; ++i) MEP_TRY(create(device, capabilities, i));
    for (uint32_t i = 0; i < 2; ++i) {
      const Side& other = sides_[1 - i];
      m::QueueAddress peer = port_.address;
      peer.queue_pair = pairs_[1 - i]->number();
      peer.first_psn = pairs_[1 - i]->first_psn();
      MEP_TRY(pairs_[i]->connect(peer, port_.path));
      const EndMemory& memory = sides_[i].memory;
      ends_[i] = {
          &sides_[i].queue,
          &memory,
          {memory.source(), sides_[i].registered->local_key()},
          {reinterpret_cast<uint64_t>(other.memory.target()), other.registered->remote_key()}};
    }
    return MEP_SUCCESS;
  }

  mep_result_t create(m::Device& device, const m::Capabilities& capabilities, uint32_t number) {
    Side& side = sides_[number];
    const m::QueueLayout layout(kQueueEntries);
    std::byte* base = side.queue_memory.data();
    side.queue.ring = reinterpret_cast<gpu_queue::Request*>(base);
    side.queue.ready = side.ready.data();
    side.queue.record = reinterpret_cast<gpu_queue::DoorbellRecord*>(base + layout.record);
    side.queue.entries = kQueueEntries;
    gpu_queue::make_empty(
        &side.queue, reinterpret_cast<gpu_queue::CompletionEntry*>(base + layout.completion), 0);
    MEP_TRY(device.register_memory(side.memory.source(), side.memory.bytes(), &side.registered));
    m::SendQueuePair::Options options;
    options.entries = kQueueEntries;
    options.mtu = port_.address.mtu;
    options.first_psn = kFirstPsn + number;
    options.memory = {base, layout.bytes, -1};
    MEP_TRY(m::SendQueuePair::create(device, capabilities, options, &pairs_[number]));
    side.queue.queue_pair = pairs_[number]->number();
    side.queue.doorbell = pairs_[number]->doorbell();
    return MEP_SUCCESS;
  }

  const std::string name_;
  m::Port port_;
  std::array<Side, 2> sides_;
  // They end first: each writes into the memory of both sides.
  std::array<std::unique_ptr<m::SendQueuePair>, 2> pairs_;
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
