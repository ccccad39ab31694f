// The NIC that executes the queues of a rank that is a thread: a software NIC of its own, or a model of an adapter on a
// fabric that all ranks share.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "support/coll_ranks.hpp"
#include "support/mlx5_firmware.hpp"
#include "transport/gpu_queue/doorbell_carrier.hpp"
#include "transport/gpu_queue/mlx5_pairs.hpp"
#include "transport/gpu_queue/soft_pairs.hpp"

namespace mep_test {

using mep::test::PairState;

// Null: ranks have software NICs.
inline mep::test::ModelFabric*& model_fabric() {
  static mep::test::ModelFabric* fabric = nullptr;
  return fabric;
}

class RankNic {
 public:
  // No two of a fabric have the same number. A thread rings the adapters with odd numbers.
  RankNic(uint32_t number, Report& report) : report_(report), has_carrier_(number % 2 == 1) {
    if (model_fabric() == nullptr) return;
    mep::test::ModelPort port;
    port.is_ethernet = true;
    port.gid.fill(static_cast<uint8_t>(0x40 + number));
    port.mac.fill(static_cast<uint8_t>(0x60 + number));
    firmware_ =
        std::make_unique<mep::test::Firmware>(model_fabric(), port, 0x10000u * (number + 1));
  }
  ~RankNic() {
    if (firmware_ != nullptr) COLL_CHECK(report_, firmware_->live == 0);
  }
  RankNic(const RankNic&) = delete;
  RankNic& operator=(const RankNic&) = delete;

  // Before start(), of an adapter: commands that stop a pair come back when *are_held is false.
  void hold_stops(const std::atomic<bool>* are_held) {
    firmware_->alter = [are_held](mep::test::m::Mailbox* in) {
      namespace m = mep::test::m;
      const bool stops = in->get(m::kOpcode) == static_cast<uint64_t>(m::Command::kToError);
      while (stops && *are_held) pause_us(100);
    };
  }
  mep_result_t start() {
    if (firmware_ == nullptr) return soft_.start();
    if (has_carrier_) COLL_OK(report_, carrier_.start());
    return mep::gpu_queue::mlx5::Adapter::open(*firmware_, "model", &adapter_);
  }
  // Its queues end.
  void stop() {
    if (firmware_ == nullptr) return soft_.stop();
    const std::lock_guard lock(adapter_->mutex());
    firmware_->stop();
  }
  // Whether pairs of adapters are connected that the NIC with this number may write through to this rank.
  bool hears(uint32_t number) const {
    if (firmware_ == nullptr) return false;
    const std::lock_guard lock(model_fabric()->mutex);
    for (const mep::test::ModelPair& pair : model_fabric()->pairs) {
      if (pair.nic != firmware_->number() || pair.remote_number >> 16 != number + 1) continue;
      if (pair.state == PairState::kReceives || pair.state == PairState::kSends) return true;
    }
    return false;
  }
  std::unique_ptr<mep::gpu_queue::NicPairs> pairs() {
    if (firmware_ == nullptr) return std::make_unique<mep::gpu_queue::SoftPairs>(&soft_);
    std::vector<mep::gpu_queue::Doorbells*> doorbells;
    if (has_carrier_) doorbells.push_back(&carrier_);
    return std::make_unique<mep::gpu_queue::mlx5::AdapterPairs>(adapter_.get(), doorbells);
  }

 private:
  Report& report_;
  mep::gpu_queue::SoftNic soft_;
  std::unique_ptr<mep::test::Firmware> firmware_;
  std::unique_ptr<mep::gpu_queue::mlx5::Adapter> adapter_;
  const bool has_carrier_;
  mep::gpu_queue::DoorbellCarrier carrier_;
};

}  // namespace mep_test
