// Expert parallelism: EP objects, handles, dispatch and combine.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "core/api/observed_call.hpp"
#include "core/comm/agreement.hpp"
#include "core/ep/dispatch_layout.hpp"
#include "core/ep/ep_arguments.hpp"
#include "core/ep/ep_object.hpp"
#include "core/operation/operation_record.hpp"

struct mep_ep {
  mep_comm_t comm = nullptr;
  std::unique_ptr<mep::EpObject> object;
  std::atomic<uint32_t> handles{0};
  // By buffer: a thread is inside a call on it; see mep::BufferScope.
  std::array<std::atomic<uint32_t>, MEP_MAX_EP_BUFFERS> in_call{};
};

struct mep_ep_handle {
  mep_ep_t ep = nullptr;
  mep::EpHandle state;
};

namespace mep {

EpObject& ep_object_of(mep_ep_t ep) {
  return *ep->object;
}

namespace {

mep_result_t check_ep(mep_ep_t ep) {
  if (ep == nullptr) [[unlikely]]
    return null_argument("ep");
  return check_comm(ep->comm);
}

// kept: null, or what the memory becomes.
mep_result_t destroy_ep(mep_ep_t ep, mep_memory_t* kept) {
  MEP_TRY(check_ep(ep));
  if (ep->handles.load() != 0 || ep->object->buffers().in_flight()) {
    return fail(MEP_ERR_BUSY, "the EP object still has %u handles; destroy them first",
                ep->handles.load());
  }
  if (kept != nullptr) {
    auto owner = std::make_unique<mep_memory>();
    owner->memory = ep->object->buffers().take_memory();
    if (owner->memory != nullptr) *kept = owner.release();
  }
  mep_comm_t comm = ep->comm;
  delete ep;
  comm->users.fetch_sub(1);
  return MEP_SUCCESS;
}

mep_result_t check_handle(mep_ep_handle_t handle) {
  if (handle == nullptr) [[unlikely]]
    return null_argument("handle");
  return check_comm(handle->ep->comm);
}

mep_result_t check_buffer(mep_ep_t ep, uint32_t buffer) {
  const uint32_t buffers = ep->object->shape().buffers;
  if (buffer < buffers) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT, "buffer is %u; this EP object has %u", buffer, buffers);
}

// The caller's options as this library knows them; null: all defaults.
template <typename Options>
mep_result_t read_options(const Options* given, const char* type, uint32_t known_flags,
                          Options* out) {
  *out = {};
  if (given == nullptr) return MEP_SUCCESS;
  MEP_TRY(read_sized_struct(given, type, out));
  if ((out->flags & ~known_flags) != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "%s.flags is %#x; known are %#x", type, out->flags,
                known_flags);
  }
  if (out->op_status == nullptr) return MEP_SUCCESS;
  return check_op_status(out->op_status, out->op_status_bytes, "op_status_bytes");
}

// The plain arguments of a dispatch that sends.
struct Tokens {
  const void* x;
  const void* topk_idx;
  const float* topk_weights;
  uint32_t count;
};

DispatchInput input_of(const Tokens& tokens, const mep_dispatch_options_t& options) {
  return {.replays = (options.flags & MEP_DISPATCH_REPLAY) != 0,
          .has_rows = (options.flags & MEP_DISPATCH_NO_ROWS) == 0,
          .timeout_ms = options.timeout_ms,
          .topk_idx_type = options.topk_idx_type,
          .num_tokens = tokens.count,
          .x = tokens.x,
          .x_stride_bytes = options.x_stride_bytes,
          .x_scales = options.x_scales,
          .x_scales_stride_bytes = options.x_scales_stride_bytes,
          .topk_idx = tokens.topk_idx,
          .topk_weights = tokens.topk_weights};
}

// The outputs that a call for the counts looks at.
DispatchOutput counts_of(const mep_dispatch_options_t& options) {
  DispatchOutput counts{};
  counts.counts_only = true;
  counts.timeout_ms = options.timeout_ms;
  counts.recv_count = options.recv_count;
  counts.recv_count_host = options.recv_count_host;
  counts.token_range = options.token_range;
  counts.recv_total = options.recv_total;
  return counts;
}

CombineInput input_of(const void* y, const mep_combine_options_t& options) {
  return {.timeout_ms = options.timeout_ms, .y = y, .topk_weights = options.topk_weights};
}

// Like CallScope, for one buffer: each buffer is a channel of its own.
class BufferScope {
 public:
  // Acquire and release: publish what a call left in the buffer and its handles to the next one.
  BufferScope(mep_ep_t ep, uint32_t buffer)
      : in_call_(ep->in_call[buffer]),
        entered_(in_call_.exchange(1, std::memory_order_acquire) == 0) {}
  ~BufferScope() {
    if (entered_) in_call_.store(0, std::memory_order_release);
  }
  BufferScope(const BufferScope&) = delete;
  BufferScope& operator=(const BufferScope&) = delete;
  [[nodiscard]] mep_result_t check() const {
    if (entered_) [[likely]]
      return MEP_SUCCESS;
    return fail(MEP_ERR_THREAD, "another thread is inside a call on this buffer of the EP object");
  }

 private:
  std::atomic<uint32_t>& in_call_;
  bool entered_;
};

// Like CallScope, where a call on a buffer runs operations of the comm.
class EpCallScope {
 public:
  explicit EpCallScope(mep_ep_t ep) {
    if (ep->object->runs_operations()) scope_.emplace(ep->comm);
  }
  [[nodiscard]] mep_result_t check() const { return scope_ ? scope_->check() : MEP_SUCCESS; }

 private:
  std::optional<CallScope> scope_;
};

mep_result_t read_config(mep_comm_t comm, const mep_ep_config_t* config, mep_ep_config_t* given,
                         EpShape* shape) {
  MEP_TRY(check_comm(comm));
  if (config == nullptr) return null_argument("config");
  MEP_TRY(read_sized_struct(config, "mep_ep_config_t", given));
  if (given->name != nullptr && std::strlen(given->name) > MEP_MAX_EP_NAME_BYTES) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "name has %zu bytes; at most %d work",
                std::strlen(given->name), MEP_MAX_EP_NAME_BYTES);
  }
  return resolve_ep_config(comm->comm->rank(), comm->comm->size(), *given, shape,
                           comm->backend->enqueues());
}

// The checks that making an EP object and attaching to one share, before `get` fills *made.
template <typename Get>
mep_result_t open_object(mep_comm_t comm, const mep_ep_config_t* config, mep_ep_t* ep, Get&& get) {
  if (ep == nullptr) return null_argument("ep");
  *ep = nullptr;
  return guarded([&]() -> mep_result_t {
    mep_ep_config_t given;
    EpShape shape;
    MEP_TRY(read_config(comm, config, &given, &shape));
    const CallScope scope(comm);
    MEP_TRY(scope.check());
    std::unique_ptr<mep_ep> made;
    MEP_TRY(get(given, shape, &made));
    made->comm = comm;
    comm->users.fetch_add(1);
    *ep = made.release();
    return MEP_SUCCESS;
  });
}

// Payload of a call that has sent: the tokens of the handle's dispatch.
uint64_t bytes_of(CallKind kind, const EpShape& shape, const EpHandle& handle) {
  const uint64_t tokens = std::max(handle.tokens, handle.routing.tokens);
  return tokens *
         (kind == CallKind::kDispatch ? shape.input_row_bytes() : shape.combine_row_bytes());
}

// Dispatch and combine: all but what differs in their arguments.
template <typename Call>
mep_result_t call_on_buffer(mep_ep_handle_t handle, CallKind kind, bool sends, Call&& call) {
  return guarded([&]() -> mep_result_t {
    MEP_TRY(check_handle(handle));
    const BufferScope buffer_scope(handle->ep, handle->state.buffer);
    MEP_TRY(buffer_scope.check());
    const EpCallScope scope(handle->ep);
    MEP_TRY(scope.check());
    EpObject& object = *handle->ep->object;
    const bool dispatches = kind == CallKind::kDispatch;
    ObservedCall observed(*handle->ep->comm, dispatches ? "dispatch" : "combine");
    if (sends) observed.begin(kind);
    observed.record([&] {
      return FlightCall{.kind = dispatches ? flight::Kind::kDispatch : flight::Kind::kCombine};
    });
    const mep_result_t result = call(object.buffers(), handle->state);
    const bool has_sent = sends && !is_error(result);
    return observed.end(kind, result, has_sent ? bytes_of(kind, object.shape(), handle->state) : 0);
  });
}

mep_result_t view_of(mep_ep_t ep, uint32_t buffer, mep_ep_view_t* view) {
  mep_ep_view_t filled;
  MEP_TRY(read_sized_struct(view, "mep_ep_view_t", &filled));
  ep->object->buffers().fill_view(buffer, &filled);
  const EpShape& shape = ep->object->shape();
  filled.local_experts = shape.local_experts;
  filled.first_expert = shape.rank * shape.local_experts;
  filled.rows_per_expert = shape.rows_per_expert();
  write_sized_struct(filled, view);
  return MEP_SUCCESS;
}

enum class Part : uint8_t { kWhole, kSend, kCounts, kReceive };

mep_result_t dispatch(mep_ep_handle_t handle, Part part, const Tokens& tokens, mep_ep_view_t* view,
                      const mep_dispatch_options_t* options, mep_stream_t stream) {
  const bool sends = part != Part::kReceive;
  return call_on_buffer(
      handle, CallKind::kDispatch, sends, [&](EpBuffers& buffers, EpHandle& state) -> mep_result_t {
        mep_dispatch_options_t given;
        MEP_TRY(read_options(options, "mep_dispatch_options_t",
                             MEP_DISPATCH_REPLAY | MEP_DISPATCH_NO_ROWS, &given));
        if (given.reserved != 0) {
          return fail(MEP_ERR_INVALID_ARGUMENT,
                      "mep_dispatch_options_t.reserved is %#x, it must be 0; "
                      "mep_dispatch_options_defaults sets it",
                      given.reserved);
        }
        if (view != nullptr) MEP_TRY(view_of(handle->ep, state.buffer, view));
        const DispatchInput input = input_of(tokens, given);
        if (!input.has_rows && (part == Part::kSend || part == Part::kCounts)) {
          return fail(MEP_ERR_INVALID_ARGUMENT,
                      "MEP_DISPATCH_NO_ROWS belongs to mep_dispatch, which sends and receives");
        }
        const DispatchOutput output =
            part == Part::kCounts ? counts_of(given) : DispatchOutput{given};
        return buffers.dispatch(state, sends ? &input : nullptr,
                                part == Part::kSend ? nullptr : &output, stream);
      });
}

mep_result_t combine(mep_ep_handle_t handle, Part part, const void* y, void* out,
                     const mep_combine_options_t* options, mep_stream_t stream) {
  const bool sends = part != Part::kReceive;
  return call_on_buffer(
      handle, CallKind::kCombine, sends, [&](EpBuffers& buffers, EpHandle& state) -> mep_result_t {
        mep_combine_options_t given;
        MEP_TRY(read_options(options, "mep_combine_options_t", MEP_COMBINE_RENORMALIZE, &given));
        const CombineInput input = input_of(y, given);
        const CombineOutput output{given, out};
        return buffers.combine(state, sends ? &input : nullptr,
                               part == Part::kSend ? nullptr : &output, stream);
      });
}

}  // namespace
}  // namespace mep

mep_result_t mep_ep_buffer_size(mep_comm_t comm, const mep_ep_config_t* config,
                                mep_ep_size_t* size_info) {
  using namespace mep;
  return guarded([&]() -> mep_result_t {
    mep_ep_config_t given;
    EpShape shape;
    MEP_TRY(read_config(comm, config, &given, &shape));
    if (size_info == nullptr) return null_argument("size_info");
    mep_ep_size_t size;
    MEP_TRY(read_sized_struct(size_info, "mep_ep_size_t", &size));
    MEP_TRY(estimate_ep_object(*comm->backend, shape, given, &size));
    write_sized_struct(size, size_info);
    return MEP_SUCCESS;
  });
}

mep_result_t mep_ep_create(mep_comm_t comm, const mep_ep_config_t* config, mep_ep_t* ep) {
  using namespace mep;
  return open_object(comm, config, ep,
                     [&](const mep_ep_config_t& given, const EpShape& shape,
                         std::unique_ptr<mep_ep>* made) -> mep_result_t {
                       const PurposeScope purpose(comm, CallPurpose::kEp);
                       MEP_TRY(step_together(*comm->comm, "make an EP object", [&] {
                         *made = std::make_unique<mep_ep>();
                         return make_ep_object(*comm->comm, *comm->backend, shape, given,
                                               &(*made)->object);
                       }));
                       return (*made)->object->open(given.name);
                     });
}

mep_result_t mep_ep_destroy(mep_ep_t ep) {
  using namespace mep;
  if (ep == nullptr) return MEP_SUCCESS;
  return guarded([&] { return destroy_ep(ep, nullptr); });
}

mep_result_t mep_ep_destroy_keep(mep_ep_t ep, mep_memory_t* kept) {
  using namespace mep;
  if (kept == nullptr) return null_argument("kept");
  *kept = nullptr;
  if (ep == nullptr) return MEP_SUCCESS;
  return guarded([&] { return destroy_ep(ep, kept); });
}

mep_result_t mep_ep_attach(mep_comm_t comm, const mep_ep_config_t* config, mep_ep_t* ep) {
  using namespace mep;
  return open_object(comm, config, ep,
                     [&](const mep_ep_config_t& given, const EpShape& shape,
                         std::unique_ptr<mep_ep>* made) -> mep_result_t {
                       *made = std::make_unique<mep_ep>();
                       return attach_ep_object(*comm->comm, shape, given, &(*made)->object);
                     });
}

mep_result_t mep_ep_handle_create(mep_ep_t ep, uint32_t buffer, mep_ep_handle_t* handle) {
  using namespace mep;
  if (handle == nullptr) return null_argument("handle");
  *handle = nullptr;
  return guarded([&]() -> mep_result_t {
    MEP_TRY(check_ep(ep));
    MEP_TRY(check_buffer(ep, buffer));
    auto made = std::make_unique<mep_ep_handle>();
    made->ep = ep;
    made->state.buffer = buffer;
    MEP_TRY(ep->object->buffers().make_handle(&made->state));
    ep->handles.fetch_add(1);
    *handle = made.release();
    return MEP_SUCCESS;
  });
}

mep_result_t mep_ep_handle_destroy(mep_ep_handle_t handle) {
  using namespace mep;
  if (handle == nullptr) return MEP_SUCCESS;
  return guarded([&]() -> mep_result_t {
    MEP_TRY(check_handle(handle));
    const mep_ep_t ep = handle->ep;
    {
      const BufferScope scope(ep, handle->state.buffer);
      MEP_TRY(scope.check());
      MEP_TRY(ep->object->buffers().end_handle(handle->state));
    }
    delete handle;
    // Last: from here on another thread may destroy the object.
    ep->handles.fetch_sub(1);
    return MEP_SUCCESS;
  });
}

mep_result_t mep_ep_set_expert_map(mep_ep_t ep, const int32_t* map) {
  using namespace mep;
  return guarded([&]() -> mep_result_t {
    MEP_TRY(check_ep(ep));
    const CallScope scope(ep->comm);
    MEP_TRY(scope.check());
    const PurposeScope purpose(ep->comm, CallPurpose::kEp);
    return ep->object->set_expert_map(map);
  });
}

mep_result_t mep_ep_buffer_view(mep_ep_t ep, uint32_t buffer, mep_ep_view_t* view) {
  using namespace mep;
  if (view == nullptr) return null_argument("view");
  return guarded([&]() -> mep_result_t {
    MEP_TRY(check_ep(ep));
    MEP_TRY(check_buffer(ep, buffer));
    return view_of(ep, buffer, view);
  });
}

// The routing's four numbers and three results. NOLINTNEXTLINE(readability-function-size)
mep_result_t mep_dispatch_layout(mep_comm_t comm, const void* topk_idx, mep_dtype_t topk_idx_type,
                                 uint32_t num_tokens, uint32_t top_k, uint32_t num_experts,
                                 int32_t* tokens_per_rank, int32_t* tokens_per_expert,
                                 uint8_t* is_token_in_rank, mep_stream_t stream) {
  using namespace mep;
  return guarded([&]() -> mep_result_t {
    MEP_TRY(check_comm(comm));
    MEP_TRY(check_topk_idx_type(topk_idx_type));
    const device::DispatchLayout layout{topk_idx,        topk_idx_type == MEP_INT32 ? 1u : 0u,
                                        num_tokens,      top_k,
                                        num_experts,     comm->comm->size(),
                                        tokens_per_rank, tokens_per_expert,
                                        is_token_in_rank};
    return count_layout(*comm->backend, layout, stream);
  });
}

mep_result_t mep_dispatch(mep_ep_handle_t handle, const void* x, const void* topk_idx,
                          const float* topk_weights, uint32_t num_tokens, mep_ep_view_t* view,
                          const mep_dispatch_options_t* options, mep_stream_t stream) {
  return mep::dispatch(handle, mep::Part::kWhole, {x, topk_idx, topk_weights, num_tokens}, view,
                       options, stream);
}

mep_result_t mep_dispatch_send(mep_ep_handle_t handle, const void* x, const void* topk_idx,
                               const float* topk_weights, uint32_t num_tokens,
                               const mep_dispatch_options_t* options, mep_stream_t stream) {
  return mep::dispatch(handle, mep::Part::kSend, {x, topk_idx, topk_weights, num_tokens}, nullptr,
                       options, stream);
}

mep_result_t mep_dispatch_counts(mep_ep_handle_t handle, const void* x, const void* topk_idx,
                                 const float* topk_weights, uint32_t num_tokens,
                                 const mep_dispatch_options_t* options, mep_stream_t stream) {
  return mep::dispatch(handle, mep::Part::kCounts, {x, topk_idx, topk_weights, num_tokens}, nullptr,
                       options, stream);
}

mep_result_t mep_dispatch_receive(mep_ep_handle_t handle, mep_ep_view_t* view,
                                  const mep_dispatch_options_t* options, mep_stream_t stream) {
  return mep::dispatch(handle, mep::Part::kReceive, {}, view, options, stream);
}

mep_result_t mep_combine(mep_ep_handle_t handle, const void* y, void* out,
                         const mep_combine_options_t* options, mep_stream_t stream) {
  return mep::combine(handle, mep::Part::kWhole, y, out, options, stream);
}

mep_result_t mep_combine_send(mep_ep_handle_t handle, const void* y,
                              const mep_combine_options_t* options, mep_stream_t stream) {
  return mep::combine(handle, mep::Part::kSend, y, nullptr, options, stream);
}

mep_result_t mep_combine_receive(mep_ep_handle_t handle, void* out,
                                 const mep_combine_options_t* options, mep_stream_t stream) {
  return mep::combine(handle, mep::Part::kReceive, nullptr, out, options, stream);
}

mep_result_t mep_ep_last_op(mep_ep_t ep, uint32_t buffer, mep_op_info_t* info) {
  using namespace mep;
  if (info == nullptr) return null_argument("info");
  return guarded([&]() -> mep_result_t {
    MEP_TRY(check_ep(ep));
    MEP_TRY(check_buffer(ep, buffer));
    mep_op_info_t filled;
    MEP_TRY(read_sized_struct(info, "mep_op_info_t", &filled));
    const BufferScope scope(ep, buffer);
    MEP_TRY(scope.check());
    const mep_result_t result = ep->object->buffers().last_op(buffer, &filled);
    if (result == MEP_SUCCESS || result == MEP_ERR_CAPACITY) write_sized_struct(filled, info);
    return result;
  });
}
