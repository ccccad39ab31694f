// The buffers of an EP object, on host memory (core/ep/host/host_buffers.hpp) or on a GPU
// (core/ep/cuda/gpu_buffers.hpp). EpObject has what does not depend on where they are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "core/comm/agreement.hpp"
#include "core/ep/routing.hpp"
#include "core/operation/decision.hpp"
#include "mep.h"
#include "protocol/ep_call.hpp"

namespace mep {

// The content of a handle of the ABI. Only the thread that uses the handle touches it.
struct EpHandle {
  uint32_t buffer = 0;
  // On hosts:
  Routing routing;
  uint32_t mark = 0;  // of the dispatch, see dispatch_mark()
  // On GPUs:
  uint32_t tokens = 0;          // of its last dispatch
  uint64_t epoch = 0;           // of the last that was no replay; 0: none
  std::byte* memory = nullptr;  // device memory with the routing
};

class EpBuffers {
 public:
  virtual ~EpBuffers() = default;

  // --- Creation, in this order ---
  // Collective: what the ranks must know of each other before they make memory. `values` as EpAgreement's.
  [[nodiscard]] virtual mep_result_t meet(RankValues*) { return MEP_SUCCESS; }
  // This rank's part, whose windows' ids follow from the seed. name: of the object, for texts.
  [[nodiscard]] virtual mep_result_t offer(const std::string& name, uint64_t window_seed) = 0;
  // The parts of those that are in `view`, the comm's.
  [[nodiscard]] virtual mep_result_t connect(const std::shared_ptr<const CommView>& view,
                                             const Deadline& deadline) = 0;
  // Collective: what the ranks must know of each other's connections.
  [[nodiscard]] virtual mep_result_t finish(RankValues*) { return MEP_SUCCESS; }
  // In its place, of a joiner, which asks nobody.
  virtual void finish_joined() {}

  // --- The user's thread ---
  // A dispatch or combine was sent and not received.
  virtual bool in_flight() = 0;
  [[nodiscard]] virtual mep_result_t make_handle(EpHandle* handle) = 0;
  // Nothing refers to the handle any more, or MEP_ERR_BUSY.
  [[nodiscard]] virtual mep_result_t end_handle(EpHandle& handle) = 0;
  // Dispatches from now on go by it; null: physical ids. It was agreed on.
  [[nodiscard]] virtual mep_result_t use_map(const std::shared_ptr<const ExpertMap>& map) = 0;
  virtual void fill_view(uint32_t buffer, mep_ep_view_t* view) const = 0;
  // The memory that fill_view() showed, of all buffers; the object can only be destroyed then. Null: it goes with
  // the comm.
  virtual std::shared_ptr<const void> take_memory() { return nullptr; }
  // Null: not this half of it; one of them is not. On GPUs check and enqueue. The first call in a new view waits until
  // the processes of lost ranks are torn down and until windows are mapped; with MEP_EP_LOSS_IN_STEP a call also waits while
  // a view change is decided.
  [[nodiscard]] virtual mep_result_t dispatch(EpHandle& handle, const DispatchInput* send,
                                              const DispatchOutput* receive, void* stream) = 0;
  [[nodiscard]] virtual mep_result_t combine(EpHandle& handle, const CombineInput* send,
                                             const CombineOutput* receive, void* stream) = 0;
  // On GPUs: the buffer's streams are idle.
  [[nodiscard]] virtual mep_result_t last_op(uint32_t buffer, mep_op_info_t* info) = 0;
  // The last call, while view changes are still met.
  virtual void leave() {}

  // --- The control thread, as ViewParticipant; on GPUs only the numbers of calls are settled, with MEP_EP_LOSS_IN_STEP ---
  virtual void describe(std::vector<membership::ChannelState>*) const {}
  virtual bool holds(uint64_t, uint64_t) const { return true; }
  virtual void stop() {}
  virtual bool is_still() const { return true; }
  virtual void freeze(std::vector<membership::ChannelState>*) {}
  virtual bool quiesced() const { return true; }
  virtual void prepare() {}
  virtual void terminate() = 0;
  virtual void install(const std::shared_ptr<const CommChange>& change,
                       const membership::Proposal* committed) = 0;
};

// On host memory; GpuBackend makes them on GPUs.
std::unique_ptr<EpBuffers> make_host_buffers(Comm& comm, const EpShape& shape);
// The memory that they would take.
void estimate_host_buffers(const EpShape& shape, mep_ep_size_t* out);

}  // namespace mep
