// One operation of a process group, from its call to its end.
//
// A step is one MEP call. All steps of a work run on one communicator; the work has ended when each of them
// has, or with the first that could not begin.
#pragma once

#include <mep.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "active_ranks.hpp"
#include "communicator.hpp"
#include "hooks.hpp"

namespace mep_torch {

class Completer;

// Where a step runs. With request NULL it blocks, or on a communicator with a GPU enqueues on the stream; else it only
// begins.
struct Target {
  mep_comm_t comm = nullptr;
  mep_stream_t stream = nullptr;
  mep_request_t* request = nullptr;
};
using Step = std::function<mep_result_t(const Target& at)>;

// The parts of an operation.
// Operations of a GPU that go on a stream of their own: each way of messages, so that sends and receives do not wait for
// each other. Others are in one order.
enum class Way : uint8_t { kSends, kReceives, kOrdered };

struct Call {
  c10d::OpType type;
  const char* name;   // static; of errors
  const char* title;  // static; of the profiler, NULL where there is none
  bool is_async = true;
  Way way = Way::kOrdered;
  std::chrono::milliseconds timeout = std::chrono::milliseconds(0);
  std::vector<Step> steps;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;         // what result() and the future give
  std::vector<at::Tensor> buffers;         // what the steps read and write besides
  std::function<void()> finish;            // after success: puts what was received where it belongs
  std::shared_ptr<ActiveRanks> active;     // of a group that tells of a loss by them, else null
  std::shared_ptr<mep_message_t> message;  // of a receive from any source: what it has taken
  std::shared_ptr<const Hooks> hooks;
  ExtraTime::Share extra_time;
};

// The tensors of a call that the profiler shows; none where nobody profiles.
std::optional<std::vector<at::Tensor>> profiled(const Call& call);

class MepWork final : public c10d::Work {
 public:
  MepWork(int rank, uint64_t number, Call call, std::shared_ptr<Communicator> comm,
          std::shared_ptr<Completer> completer);

  // --- c10d ---
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(); }
  // Throws the operation's error, except where the call has `active` and only ranks are gone. Throws also if it has
  // not ended in `timeout`; it goes on then.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return number_; }
  // No override before PyTorch 2.12.
  std::chrono::milliseconds getTimeout() const { return call_.timeout; }  // NOLINT
  // No override before PyTorch 2.15.
  uint64_t getCompletionKey() const { return key_; }  // NOLINT

  // Once it has ended, in a group with `active`: a bitmap of the ranks whose loss made it fail; none, if it did not.
  const std::vector<uint64_t>& lost() const { return lost_; }
  const std::shared_ptr<ActiveRanks>& active() const { return call_.active; }

  // --- The process group ---
  // Runs it to its end, or begins it. The mutex of the communicator is held by neither caller.
  void start();
  // With the mutex held: true if it has just ended. Waits at most so long for each step.
  bool advance(uint32_t wait_ms);
  // After advance() said so, without the mutex: wakes and tells those that wait.
  void announce();
  // Whether it has ended; announce() is left to the caller then.
  bool look();
  // False: it has not ended in time.
  bool await(std::chrono::milliseconds timeout);
  // Withdraws receives; what cannot be withdrawn is revoked, and ends soon.
  void give_up();
  // A descriptor that is readable once advance(0) will get further. -1: it has ended, or there is none left.
  int event();

 private:
  bool has_ended() const;
  void run_blocking();
  // With the mutex held.
  void begin();
  // Does the part of this rank alone, before the group has joined the others.
  void run_alone();
  void end(std::exception_ptr error);
  // A step has failed; `info` says more of it, or is NULL.
  void fail(mep_result_t result, const mep_op_info_t* info);
  // Ranks whose loss the result of a step tells of.
  std::vector<uint64_t> lost_by(mep_result_t result, const mep_op_info_t* info) const;
  // The error that wait() throws, or null.
  std::exception_ptr told_error() const;

  const uint64_t number_;
  const uint64_t key_ = new_completion_key();
  Call call_;
  const std::shared_ptr<Communicator> comm_;
  const std::shared_ptr<Completer> completer_;
  std::vector<mep_request_t> requests_;  // NULL: ended. Guarded by the communicator's mutex
  std::exception_ptr failed_;            // the first error of a step. Guarded likewise
  // Written before the work has ended, read after.
  std::vector<uint64_t> lost_;
  bool is_only_lost_ = false;  // nothing else is wrong
  bool is_broken_ = false;     // is_breakdown()
  Communicator::Pending::iterator place_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_
  bool is_announced_ = false;                       // likewise
  bool is_abort_told_ = false;                      // likewise
};

}  // namespace mep_torch
