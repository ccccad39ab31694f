// Where the memory of a communicator's calls is, and where its collectives run: on the host, or enqueued on the caller's
// streams (GpuBackend). Calls of the API that only a GPU has reach it by gpu_backend().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/clock.hpp"
#include "core/coll/block_counts.hpp"
#include "core/coll/operation.hpp"
#include "mep.h"
#include "protocol/operations.hpp"

namespace mep {

class Comm;
class GpuBackend;

// A message on a stream: see mep_send and mep_recv.
struct StreamMessage {
  bool is_send = false;
  const void* from = nullptr;  // of a send
  void* to = nullptr;          // of a receive
  uint64_t bytes = 0;          // of a receive: at most
  mep_dtype_t dtype = MEP_UINT8;
  uint32_t peer = 0;
  int32_t tag = 0;  // MEP_ANY_TAG: any
};

// See mep_comm_info_t.
struct BackendLimits {
  uint64_t message_eager_bytes = 0;
  uint32_t group_messages = 0;
  uint32_t blocks = 0;
};

class Backend {
 public:
  // `which`: one of `backends`, whose operations are carried out and no others.
  explicit Backend(uint8_t which) : which_(which) {}
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // On hosts runs it to its end. Else checks and enqueues; it waits only where a view change has admitted ranks, whose
  // memory it maps first.
  [[nodiscard]] mep_result_t run(Collective kind, const CollectiveArgs& args, void* stream) {
    if (!runs_on(kind, which_)) [[unlikely]]
      return refuse(kind);
    return carry_out(kind, args, stream);
  }
  // The nonblocking form, as Comm::start().
  [[nodiscard]] mep_result_t start(Collective kind, const CollectiveArgs& args,
                                   Operation* operation) {
    if (!runs_on(kind, which_)) [[unlikely]]
      return refuse(kind);
    return begin(kind, args, operation);
  }

  // On a GPU: checks the memory and enqueues all of them as one operation, in which no message waits for another but of the
  // same peer and direction.
  [[nodiscard]] virtual mep_result_t enqueue_messages(std::span<const StreamMessage>, void*) {
    return check_host("a message");
  }
  // Memory for mep_mem_alloc: the host's, or the GPU's. *kept (may be null) holds what is freed from then on.
  [[nodiscard]] virtual mep_result_t allocate(size_t bytes, void** memory) = 0;
  [[nodiscard]] virtual mep_result_t free(void* memory, std::shared_ptr<const void>* kept) = 0;
  // See mep_comm_register and mep_comm_deregister; where memory is not read in place they change nothing.
  [[nodiscard]] virtual mep_result_t register_memory(const void*, size_t, const Deadline&,
                                                     mep_registration_t*) {
    return MEP_SUCCESS;
  }
  [[nodiscard]] virtual mep_result_t deregister_memory(mep_registration_t) { return MEP_SUCCESS; }
  // See mep_comm_lost_ranks and mep_comm_forget_lost.
  [[nodiscard]] virtual mep_result_t show_losses(int32_t* lost, void* stream) = 0;
  [[nodiscard]] virtual mep_result_t forget_losses(void* stream) = 0;
  // Refuses `what` on a GPU: it works on host memory only, so far or for good.
  [[nodiscard]] mep_result_t check_host(const char* what) const;
  // Calls return before streams carry them out; else at their end.
  bool enqueues() const { return which_ != backends::kHost; }
  // -1: host memory.
  virtual int32_t device() const { return -1; }
  // Any thread.
  virtual BackendLimits limits() const = 0;
  // How this rank reaches another that is live. Any thread.
  virtual mep_reach_t reach_of(uint32_t rank) const = 0;
  // Null: none.
  virtual GpuBackend* gpu_backend() { return nullptr; }

  // First failure of a stream operation since the last call, of collectives and of what else is there.
  virtual mep_result_t take_any_failure() = 0;
  // Operations are still enqueued or running, beyond those in the queue of the Comm.
  virtual bool busy() const = 0;
  // ViewParticipants of the Comm that are the backend's.
  virtual size_t view_participants() const = 0;
  // Beside what the Comm does itself:
  virtual void set_timeout_ms(uint32_t ms) = 0;
  virtual void revoke() = 0;

  // Both wait for no call of another rank. On a GPU: the streams of the communicator are idle. Before a view that lets joiners
  // in, by members, in each view: joiners can reach this rank then.
  [[nodiscard]] virtual mep_result_t prepare_for_joiners(const Deadline&) { return MEP_SUCCESS; }
  // After it, by members and joiners: until they are reached.
  [[nodiscard]] virtual mep_result_t meet_joiners(const Deadline&) { return MEP_SUCCESS; }

 protected:
  [[nodiscard]] virtual mep_result_t carry_out(Collective kind, const CollectiveArgs& args,
                                               void* stream) = 0;
  [[nodiscard]] virtual mep_result_t begin(Collective kind, const CollectiveArgs& args,
                                           Operation* operation) = 0;

 private:
  [[nodiscard]] mep_result_t refuse(Collective kind) const;

  const uint8_t which_;
};

// The backend of host memory, with which every communicator begins.
std::unique_ptr<Backend> make_host_backend(Comm& comm);
// Calls on host memory have no stream.
[[nodiscard]] mep_result_t check_no_stream(const void* stream);

}  // namespace mep
