// An EP object as the API sees it: on host memory (EpOnHost), or on a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/comm/backend.hpp"
#include "core/ep/ep_buffer.hpp"
#include "core/ep/ep_config.hpp"
#include "mep.h"

namespace mep {

class EpObject;

// The content of a handle of the ABI. Only the thread that uses the handle touches it.
struct EpSideHandle {
  uint32_t buffer = 0;
  EpHandle on_host;
  // On GPUs:
  uint32_t tokens = 0;          // of its last dispatch
  uint64_t epoch = 0;           // of the last that was no replay; 0: none
  std::byte* memory = nullptr;  // device memory with the routing
};

class EpSide {
 public:
  virtual ~EpSide() = default;
  // Collective. After an error it is good for nothing; destroyed, it leaves nothing behind but device memory
  // that the comm keeps.
  [[nodiscard]] virtual mep_result_t open(const char* name) = 0;
  virtual const EpShape& shape() const = 0;
  // A dispatch or combine was sent and not received.
  virtual bool in_flight() = 0;
  // Null: not on host memory.
  virtual EpObject* host_object() { return nullptr; }
  // A dispatch or combine may run an operation of the comm before it returns.
  virtual bool runs_operations() const { return false; }

  [[nodiscard]] virtual mep_result_t make_handle(EpSideHandle* handle) = 0;
  // Nothing refers to the handle any more, or MEP_ERR_BUSY.
  [[nodiscard]] virtual mep_result_t end_handle(EpSideHandle& handle) = 0;
  [[nodiscard]] virtual mep_result_t set_expert_map(const int32_t* map) = 0;
  virtual void fill_view(uint32_t buffer, mep_ep_view_t* view) const = 0;
  // The memory that fill_view() showed, of all buffers; the object can only be destroyed then. Null: it goes with
  // the comm.
  virtual std::shared_ptr<const void> take_memory() { return nullptr; }

  // On GPUs check and enqueue, and never wait.
  // Null: not this half of it; one of them is not.
  [[nodiscard]] virtual mep_result_t dispatch(EpSideHandle& handle, const mep_dispatch_send_t* send,
                                              const mep_dispatch_receive_t* receive,
                                              void* stream) = 0;
  [[nodiscard]] virtual mep_result_t combine(EpSideHandle& handle, const mep_combine_send_t* send,
                                             const mep_combine_receive_t* receive,
                                             void* stream) = 0;
  // On GPUs: the buffer's streams are idle.
  [[nodiscard]] virtual mep_result_t last_op(uint32_t buffer, mep_op_info_t* info) = 0;
};

// Where `backend` works; not open yet.
[[nodiscard]] mep_result_t make_ep_side(Comm& comm, Backend& backend, const EpShape& shape,
                                        const mep_ep_config_t& config,
                                        std::unique_ptr<EpSide>* out);
// A joiner's part of an object on host memory, made when it joined.
[[nodiscard]] mep_result_t attach_ep_side(Comm& comm, const Backend& backend, const EpShape& shape,
                                          const mep_ep_config_t& config,
                                          std::unique_ptr<EpSide>* out);
// The memory that make_ep_side() would take.
[[nodiscard]] mep_result_t estimate_ep_side(const Comm& comm, Backend& backend,
                                            const EpShape& shape, const mep_ep_config_t& config,
                                            mep_ep_size_t* out);

}  // namespace mep
