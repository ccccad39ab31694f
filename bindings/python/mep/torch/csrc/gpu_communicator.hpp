// A group's communicator on a GPU, and the streams of its operations.
//
// It is a world of MEP of its own, which the first operation on a tensor of a GPU makes: the ranks meet through the
// group's store. MEP wants one stream at a time for collectives, so one on another stream waits for the last.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "communicator.hpp"
#include "streams.hpp"
#include "work.hpp"
#include "world.hpp"

namespace mep_torch {

class GpuEnd;

class GpuCommunicator : public std::enable_shared_from_this<GpuCommunicator> {
 public:
  // `host`: the group's communicator of collectives, over which its ranks agree to make this one.
  GpuCommunicator(c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<World> world,
                  std::shared_ptr<Communicator> host, int rank, int size);
  GpuCommunicator(const GpuCommunicator&) = delete;
  GpuCommunicator& operator=(const GpuCommunicator&) = delete;

  // After the host's communicator has grown.
  void set_size(int size);
  // Collective: makes the communicator on this GPU, if it is not there or ranks have been replaced since. Blocks the
  // host. Throws DistBackendError; NotImplementedError where the library has no GPUs.
  void connect(at::Device device, std::chrono::milliseconds timeout);
  // Whether a message can be enqueued: its two ranks alone cannot make the communicator.
  bool has_connected() const { return comm() != nullptr; }
  // Enqueues a call: a message on the stream of its way, others on a stream of their own if they are asynchronous, else
  // on the current one. Throws as connect().
  c10::intrusive_ptr<c10d::Work> run(Call call, at::Device device, uint64_t number);
  // Blocks the host until what was enqueued has run. False: nothing ever was.
  bool synchronize();
  // The first failure on the GPU since the last call, or null. Does not block. Tells the hooks of operations that have ended.
  std::exception_ptr take_error(const char* what);
  bool has_failed() const;
  // Ends what is pending: of the world with the others seeing this rank fail, else on all ranks.
  void abort() const;
  void revoke() const;
  void close(std::chrono::milliseconds patience);

 private:
  std::shared_ptr<Communicator> comm() const;
  c10::Stream stream_of(const Call& call, const c10::Stream& current);
  // All steps of the call. The error of the one that failed, or null.
  std::exception_ptr enqueue(const Call& call, const c10::Stream& stream);
  bool agree_to_keep(std::chrono::milliseconds timeout, std::string* job);
  // An operation whose end hooks are to be told, or that has extra time.
  struct Issued {
    std::shared_ptr<GpuEnd> end;
    uint64_t key;
    std::shared_ptr<const Hooks> hooks;
    ExtraTime::Share extra_time;
  };
  // Takes out those that have ended.
  std::vector<Issued> take_ended();

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::shared_ptr<World> world_;
  const std::shared_ptr<Communicator> host_;
  const int rank_;

  std::mutex order_mutex_;  // held while an operation is enqueued, or the communicator made
  int size_;
  std::optional<at::Device> device_;
  uint64_t generation_ = 0;  // of the world, when the communicator was made or kept
  std::optional<c10::Stream> own_stream_;
  std::optional<c10::Stream> message_streams_[2];  // by Way
  StreamOrder order_;

  std::mutex issued_mutex_;
  std::vector<Issued> issued_;  // guarded by issued_mutex_

  mutable std::mutex comm_mutex_;
  std::shared_ptr<Communicator> comm_;  // guarded by comm_mutex_
};

}  // namespace mep_torch
