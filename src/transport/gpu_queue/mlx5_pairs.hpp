// Pairs that an mlx5 adapter executes: see mlx5_queue.hpp. The window keeps its pages, which the adapter has registered.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "transport/gpu_queue/doorbells.hpp"
#include "transport/gpu_queue/mlx5_queue.hpp"
#include "transport/gpu_queue/nic_pairs.hpp"
#include "transport/gpu_queue/pair_stopper.hpp"

namespace mep::gpu_queue::mlx5 {

// An open adapter, for the objects of any number of threads.
class Adapter {
 public:
  // The device outlives it. `name` is for error texts.
  [[nodiscard]] static mep_result_t open(Device& device, const std::string& name,
                                         std::unique_ptr<Adapter>* out);

  Device& device() const { return device_; }
  const Capabilities& capabilities() const { return capabilities_; }
  const Port& port() const { return port_; }
  const std::string& name() const { return name_; }
  // Held during each call of the device and of its objects.
  std::mutex& mutex() { return mutex_; }
  PairStopper& stopper() { return stopper_; }

 private:
  Adapter(Device& device, const std::string& name) : device_(device), name_(name) {}

  Device& device_;
  const std::string name_;
  Capabilities capabilities_;
  Port port_;
  std::mutex mutex_;
  PairStopper stopper_;
};

class AdapterPairs final : public NicPairs {
 public:
  // All outlive it. The first that takes a queue's doorbell serves it; without any, posters are threads of the host that store
  // to the adapter's page.
  explicit AdapterPairs(Adapter* adapter, std::vector<Doorbells*> doorbells = {})
      : adapter_(adapter), doorbells_(std::move(doorbells)) {}
  ~AdapterPairs() override;
  AdapterPairs(const AdapterPairs&) = delete;
  AdapterPairs& operator=(const AdapterPairs&) = delete;

  size_t bytes_of(uint32_t entries) const override { return QueueLayout(entries).bytes; }
  bool is_adapter() const override { return true; }
  [[nodiscard]] mep_result_t use_window(const MemoryRange& window) override;
  [[nodiscard]] mep_result_t use_source(const MemoryRange& source) override;
  [[nodiscard]] mep_result_t make(const Ring& ring, Queue* queue,
                                  std::unique_ptr<NicPair>* out) override;

 private:
  // By its dmabuf, else by its address.
  mep_result_t register_memory(const MemoryRange& range, std::unique_ptr<RegisteredMemory>* out);
  mep_result_t create(const Ring& ring, uint32_t ack_timeout, std::unique_ptr<SendQueuePair>* out);

  Adapter* const adapter_;
  const std::vector<Doorbells*> doorbells_;
  std::byte* window_data_ = nullptr;
  std::unique_ptr<RegisteredMemory> window_;
  std::unique_ptr<RegisteredMemory> source_;
};

}  // namespace mep::gpu_queue::mlx5
