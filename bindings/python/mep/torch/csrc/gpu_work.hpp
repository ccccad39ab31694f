// One operation on tensors of a GPU: where it stands in its stream.
//
// wait() lets the current stream wait and not the host, so it raises what is known by then; isCompleted(), exception()
// and wait with a timeout look at the GPU.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "work.hpp"

namespace mep_torch {

class GpuCommunicator;

// Where an operation stands in its stream. Its work may be gone before. Any thread.
class GpuEnd {
 public:
  explicit GpuEnd(const c10::Stream& stream) : stream_(stream), event_(stream.device_type()) {}
  const c10::Stream& stream() const { return stream_; }
  // Records the event where the stream stands, if it is not recorded: behind the operation in any case.
  void record();
  // After record().
  bool has_come();
  void block(const c10::Stream& behind);

 private:
  const c10::Stream stream_;
  std::mutex mutex_;
  c10::Event event_;  // guarded by mutex_
};

class GpuWork final : public c10d::Work {
 public:
  // The call is enqueued on the stream, or `error` says why it is not.
  GpuWork(int rank, uint64_t number, uint64_t key, Call call, std::shared_ptr<GpuEnd> end,
          c10::Stream stream, std::shared_ptr<GpuCommunicator> comm, std::exception_ptr error);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  void synchronize() override { wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return number_; }
  // No override before PyTorch 2.15.
  uint64_t getCompletionKey() const { return key_; }  // NOLINT

 private:
  void look_for_error() const;

  const uint64_t number_;
  const uint64_t key_;
  const char* const name_;
  const bool is_async_;
  const c10::Stream stream_;
  const std::shared_ptr<GpuCommunicator> comm_;
  const std::vector<at::Tensor> outputs_;
  const std::shared_ptr<GpuEnd> end_;
  mutable std::mutex state_mutex_;
  mutable std::exception_ptr error_;                // guarded by state_mutex_
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // likewise
};

}  // namespace mep_torch
