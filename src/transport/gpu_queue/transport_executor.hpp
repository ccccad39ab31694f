// A peer that a transport of this rank reaches: RemoteRegion::place is one of its windows, from the window's start.
#pragma once

#include <atomic>

#include "transport/gpu_queue/executor.hpp"
#include "transport/transport.hpp"

namespace mep::gpu_queue {

class TransportExecutor final : public Executor {
 public:
  // The transport outlives it and has the windows imported. `wakes`: the peer's threads may sleep in wait for a word.
  TransportExecutor(Transport* transport, uint32_t slot, bool wakes)
      : transport_(transport), slot_(slot), wakes_(wakes) {}

  Executed put(const RemoteRegion& region, uint64_t offset, const void* from,
               size_t bytes) override;
  Executed write_word(const RemoteRegion& region, uint64_t offset, uint64_t word) override;
  // Where the window is mapped.
  Executed fetch_add(const RemoteRegion& region, uint64_t offset, uint64_t add,
                     uint64_t* before) override;
  bool counts(Counts* out) override;
  void progress() override;

 private:
  Executed post(const Posting& posting);

  Transport* transport_;
  uint32_t slot_;
  bool wakes_;
  // A full queue took a part: the same batch goes on.
  Posting posting_;
  Batch batch_;
};

}  // namespace mep::gpu_queue
