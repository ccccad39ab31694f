// The c10d backend "mep": operations of PyTorch's process groups over MEP's C interface.
//
// Collectives and messages go over two communicators of one world, so a thread that waits in a collective holds
// up no message. Contiguous tensors are used where they lie.
#pragma once

#include <mep.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "communicator.hpp"
#include "completer.hpp"
#include "gpu_communicator.hpp"
#include "hooks.hpp"
#include "tensors.hpp"
#include "work.hpp"
#include "world.hpp"

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
#define MEP_TORCH_HAS_COMPLETION_HOOKS 1
#endif

namespace mep_torch {

// Meets all ranks that are there, and leaves behind what there is to tell of losses until then. They all call it.
void settle(Communicator& comm, std::chrono::milliseconds timeout);

class ProcessGroupMep final : public c10d::Backend {
 public:
  struct Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options("mep", timeout) {}
  };

  // The ranks of a world, or some of them; or those of a world that reconfigure() changes for another.
  enum class Kind { kWorld, kGroup, kReconfigurable };

  // By the functions below.
  ProcessGroupMep(const c10::intrusive_ptr<c10d::Store>& store, std::shared_ptr<World> world,
                  Comms comms, Kind kind, int rank, std::chrono::milliseconds timeout,
                  std::string backend_name);
  // The default group, which others are made of, or one of a default group of another backend: its ranks meet
  // through the store. Throws DistBackendError if they do not come together
  // within the timeout.
  static c10::intrusive_ptr<ProcessGroupMep> make_world(
      const c10::intrusive_ptr<c10d::Store>& store, const World::Place& place, bool is_default,
      std::string backend_name);
  // A group of ranks of the default group; only they call it. `rank`: of this process in it. Null: the default group
  // is none of these.
  static c10::intrusive_ptr<ProcessGroupMep> make_group(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int32_t>& ranks, int rank,
      const std::string& name, std::chrono::milliseconds timeout, std::string backend_name);
  // A group of these ranks of this one, which all of this one's ranks call; null on those that are not listed.
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;
  // --- What some versions of PyTorch call, which are no overrides in the others ---
  // A group of the ranks that stay, which all of them call, and they alone. One of the default group is a world of its
  // own: PyTorch destroys the old one. Throws ValueError and DistBackendError.
  bool supportsShrinking() const { return true; }
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<int64_t>& ranks_to_exclude, int shrink_flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts_override);
  // (group_hooks.cpp) Abort hooks hear of operations that broke down, on the thread that found it, without locks of a
  // communicator; completion hooks of those that succeeded.
  bool supportsAbortHooks() const { return true; }
  void registerAbortHook(int64_t hook_id, std::function<void()> hook);
  void unregisterAbortHook(int64_t hook_id);
#ifdef MEP_TORCH_HAS_COMPLETION_HOOKS
  bool supportsCompletionHooks() const override {
    return true;
  }
  void registerCompletionHook(int64_t hook_id, c10d::CompletionHook hook) override;
  void unregisterCompletionHook(int64_t hook_id) override;
#endif
  void addEphemeralTimeout(const std::chrono::milliseconds& timeout);
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  // --- The reconfigure regime of PyTorch 2.14 (reconfigure.cpp) ---
  // A default group without members until reconfigure(). Those meet through the store, under keys of the uuid's own.
  // place: the rank and size that it says until then, and the timeout.
  static c10::intrusive_ptr<ProcessGroupMep> make_reconfigurable(
      const c10::intrusive_ptr<c10d::Store>& store, const World::Place& place,
      std::string backend_name);
  bool supportsReconfigure() const override {
    return kind_ == Kind::kReconfigurable;
  }
  // No override before PyTorch 2.15.
  bool isInitialized() {
    return collectives_->handle() != nullptr;
  }
  // The same string for as long as the object lives, and no other's.
  c10d::ReconfigureHandle get_reconfigure_handle() const override {
    return handle_;
  }
  // Leaves the members of before and meets the listed ones; handles in a set are ranked in alphabetical order. Blocks.
  // Throws ValueError and DistBackendError; the group is without members then, until another call. No other thread is
  // inside the group.
  c10::intrusive_ptr<c10d::Work> reconfigure(const c10d::ReconfigureOptions& opts) override;
#endif
  // shutdown() of all that there are.
  static void shut_all_down();
  // By the last owner: shuts down.
  void release_resources() override;

  const std::string getBackendName() const override {
    return backend_name_;
  }
  // The options of newer versions of PyTorch; no override where it has none.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override {
    return options_;
  }
  // Makes what operations on this GPU need, so that the first of them need not. All ranks call it.
  void eagerConnectSingleDevice(at::Device device) override;
  void setTimeout(std::chrono::milliseconds timeout) override {
    options_->timeout = timeout;
  }

  // --- Its members (membership.cpp) ---
  // Ranks of the group in its present view, and the number of that view: this rank alone and 0 before it has joined.
  std::vector<int> living() const;
  uint64_t epoch() const;
  // The bits that the words of all ranks that are there have in common. They all call it; the loss of a rank does not
  // prevent it. Throws DistBackendError.
  uint64_t agree(uint64_t word);
  // Its ranks by their numbers in the default group.
  const std::vector<int32_t>& ranks_of_world() const {
    return comms_.ranks;
  }
  // Whether each rank is in, or waits in join() of the default group. All ranks that are there call it with the same
  // ranks while one of those is not in, and get the same answer.
  std::vector<bool> peers_are_ready(const std::vector<int>& ranks);
  // Admits replacements of the ranks that are gone, and ranks beyond the group's size, which it grows by; in a group
  // other than the world, takes them in that are in the world already. All ranks that are there call it with the same
  // ranks, the replacements and newcomers join(). False: not all of them are in; those that came are.
  bool recover(const std::vector<int>& ranks, std::chrono::milliseconds timeout);
  // The side of recover() of a replacement, or of a rank that lives and was left out.
  void join();
  // Leaves living ranks out of the world, and so of all groups; this rank itself leaves. One rank calls it. Returns
  // when that is decided. Throws DistBackendError; NotImplementedError in a group other than the world.
  void deactivate(const std::vector<int>& ranks);
  // From now on losses are told by the tensor and by lost_ranks(): ActiveRanks.
  void set_active_ranks(const at::Tensor& mirror);
  // The tensor, after ranks that are gone by now got their 0.
  at::Tensor active_ranks() const;
  // A tensor with a 1 for each rank whose loss made the work fail, which has ended and is of such a group. Undefined
  // for another work.
  static at::Tensor lost_ranks(const c10::intrusive_ptr<c10d::Work>& work);

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  c10d::ErrorType getError() override;
  // Ends pending work with an error, at once: in the default group on this rank, which the others see fail; in another
  // group on all its ranks.
  void abort() override;
  // Waits for what is pending and for what others need of this rank, and leaves.
  void shutdown() override;

 private:
  static c10::intrusive_ptr<ProcessGroupMep> group_of(const c10::intrusive_ptr<c10d::Store>& store,
                                                      std::shared_ptr<World> world,
                                                      const std::vector<int32_t>& ranks, int rank,
                                                      const std::string& name,
                                                      std::chrono::milliseconds timeout,
                                                      std::string backend_name);
  // The part of a Call that every operation has.
  template <class Opts>
  Call call_of(c10d::OpType type, const char* name, const char* title, const Opts& opts) const;
  std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds timeout) const;
  WorkPtr run(Call call);          // a collective
  WorkPtr run_message(Call call);  // a message
  WorkPtr receive(Tensors& tensors, int source, int tag, Call call);
  void prepare(Call* call) const;  // what all calls of the group have in common
  WorkPtr launch(Call call, const std::shared_ptr<Communicator>& comm);

  WorkPtr allreduce_sparse(at::Tensor& tensor, const c10d::AllreduceOptions& opts);
  // This rank's arguments, with these tensors, are wrong: takes part in the operation by a barrier in its place, so that
  // the others learn of a mismatch and later operations meet.
  void refuse(const Tensors& tensors);

  // Parts of a Call: one step each.
  void add_allreduce(const at::Tensor& given, const c10d::ReduceOp& op, Call* call) const;
  void add_allgather(at::Tensor& output, const at::Tensor& input, Call* call) const;
  void add_allgather_list(Tensors& outputs, const at::Tensor& input, Call* call) const;
  void add_reduce_scatter(const at::Tensor& whole_output, const at::Tensor& whole_input,
                          const c10d::ReduceOp& op, Call* call) const;
  void check_list(const Tensors& tensors, const char* name, const char* what) const;
  void check_root(int64_t root, const char* name) const;

  bool is_world() const {
    return kind_ != Kind::kGroup;
  }
  // Becomes a group of this world, whose ranks meet through the store.
  void enter(const c10::intrusive_ptr<c10d::Store>& store, std::shared_ptr<World> world,
             Comms comms);
  void leave();
  bool admit(const std::vector<int>& ranks, std::chrono::milliseconds timeout);
  // In a group other than the world: takes ranks in beyond its size.
  void grow(const std::vector<int32_t>& newcomers);
  // Has another size from now on.
  void take_ranks(const std::vector<int32_t>& ranks);

  const std::string backend_name_;  // what it was registered as
  const c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<Options> options_;
  const Kind kind_;
  const std::string handle_;  // for reconfigure()
  // reconfigure() changes these.
  std::shared_ptr<World> world_;
  Comms comms_;
  std::shared_ptr<Communicator> collectives_;
  std::shared_ptr<Communicator> messages_;
  std::shared_ptr<GpuCommunicator> gpu_;
  std::shared_ptr<Completer> completer_;
  const std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
  std::shared_ptr<ActiveRanks> active_;  // null, if losses are errors
  std::atomic<uint64_t> number_{0};      // relaxed: for people only
  std::vector<WorkPtr> coalesced_;
  bool is_coalescing_ = false;
};

}  // namespace mep_torch
