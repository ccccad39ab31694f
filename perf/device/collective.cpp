// Inputs of several rounds lie side by side; operation i of the graph takes those of round i modulo their
// number. All operations have one receive buffer.
#include "device/collective.hpp"

#include <utility>

#include "collective_check.hpp"
#include "device_side.hpp"

namespace mep::perf {
namespace {

constexpr uint8_t kPoison = 0xa5;  // as collective_check.cpp has it
constexpr size_t kAlignment = 256;

class DeviceCollective : public Case {
 public:
  DeviceCollective(DeviceContext& context, const CollectiveCall& call, Enqueue enqueue)
      : context_(context), host_(call), device_(call), enqueue_(std::move(enqueue)) {
    context_.use();
    const size_t block = call.count * mep_dtype_size(call.dtype);
    const size_t send_bytes = block * static_cast<size_t>(call.entry->send_blocks(call.size));
    receive_bytes_ = block * static_cast<size_t>(call.entry->recv_blocks(call.size));
    rounds_ = context_.rotation(static_cast<double>(send_bytes) * call.size);
    stride_ = (send_bytes + kAlignment - 1) / kAlignment * kAlignment;
    inputs_ = context_.allocate<uint8_t>(stride_ * rounds_);
    device_.recv = context_.allocate<uint8_t>(receive_bytes_);
    for (uint32_t round = 0; round < rounds_; ++round) {
      fill_collective(host_, round);
      context_.upload(inputs_ + round * stride_, host_.send, send_bytes);
    }
    graph_ = DeviceGraph(context_.stream(), [this] {
      for (uint32_t i = 0; i < kDeviceOperations; ++i) run_round(i % rounds_);
    });
  }

  void sync() override { context_.synchronize(); }
  uint64_t block_iterations() const override { return kDeviceOperations; }
  void run(uint64_t, double* seconds) override { *seconds += context_.time(graph_.get()); }
  void reset() override {}

  // Round 0 by the graph that is timed, whose last operation is what remains; others eager.
  uint64_t verify(uint32_t round) override {
    const bool by_graph = round == 0;
    const uint32_t input = by_graph ? (kDeviceOperations - 1) % rounds_ : round % rounds_;
    context_.fill(device_.recv, kPoison, receive_bytes_);
    by_graph ? context_.launch(graph_.get()) : run_round(input);
    context_.synchronize();
    context_.download(host_.recv, device_.recv, receive_bytes_);
    return count_collective_errors(host_, input);
  }

 private:
  void run_round(uint32_t round) {
    device_.send = inputs_ + round * stride_;
    enqueue_(device_);
  }

  DeviceContext& context_;
  CollectiveCall host_;
  CollectiveCall device_;
  Enqueue enqueue_;
  size_t receive_bytes_ = 0;
  uint32_t rounds_ = 1;
  size_t stride_ = 0;
  uint8_t* inputs_ = nullptr;
  DeviceGraph graph_;
};

}  // namespace

std::unique_ptr<Case> make_device_collective(DeviceContext& context, const CollectiveCall& call,
                                             Enqueue enqueue) {
  return std::make_unique<DeviceCollective>(context, call, std::move(enqueue));
}

}  // namespace mep::perf
