// Expert parallelism: EP objects, handles, dispatch and combine.
#include <array>
#include <cstring>
#include <optional>

#include "core/api/api_guard.hpp"
#include "core/ep/ep_device.hpp"
#include "core/ep/ep_object.hpp"

struct mep_ep {
  mep_comm_t comm = nullptr;
  std::unique_ptr<mep::EpObject> object;     // on hosts
  std::unique_ptr<mep::EpDevice> on_device;  // on GPUs
  const mep::EpShape& shape() const { return on_device ? on_device->shape() : object->shape(); }
  std::atomic<uint32_t> handles{0};
  // By buffer: a thread is inside a call on it; see mep::BufferScope.
  std::array<std::atomic<uint32_t>, mep::kMaxEpBuffers> in_call{};
};

struct mep_ep_handle {
  mep_ep_t ep = nullptr;
  uint32_t buffer = 0;
  mep::EpHandle handle;
  mep::EpDeviceHandle device_handle;
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

mep_result_t check_handle(mep_ep_handle_t handle) {
  if (handle == nullptr) [[unlikely]]
    return null_argument("handle");
  return check_comm(handle->ep->comm);
}

mep_result_t check_buffer(mep_ep_t ep, uint32_t buffer) {
  const uint32_t buffers = ep->shape().buffers;
  if (buffer < buffers) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT, "buffer is %u; this EP object has %u", buffer, buffers);
}

mep_result_t check_phase(uint32_t flags, uint32_t known_flags, uint32_t phase) {
  if ((flags & ~known_flags) != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "flags is %#x; known are %#x", flags, known_flags);
  }
  if (phase > MEP_PHASE_RECEIVE) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "phase %u does not exist", phase);
  }
  return MEP_SUCCESS;
}

// As CallScope, for one buffer: each is a channel of its own.
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
    return fail(MEP_ERR_BUSY, "another thread is inside a call on this buffer of the EP object");
  }

 private:
  std::atomic<uint32_t>& in_call_;
  bool entered_;
};

// Where all ranks must return the same, a dispatch or combine ends by an operation of the comm.
class EpCallScope {
 public:
  explicit EpCallScope(mep_ep_t ep) {
    if ((ep->comm->comm->world().config().flags & MEP_COMM_UNIFORM) != 0) scope_.emplace(ep->comm);
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
  if (given->name != nullptr && std::strlen(given->name) > kMaxEpNameBytes) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "name has %zu bytes; at most %zu work",
                std::strlen(given->name), kMaxEpNameBytes);
  }
  return resolve_ep_config(*comm->comm, *given, shape, comm->backend->device_side() != nullptr);
}

// What making an EP object and attaching to one share; `get` gives the object.
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
    auto made = std::make_unique<mep_ep>();
    MEP_TRY(get(given, shape, made.get()));
    made->comm = comm;
    comm->users.fetch_add(1);
    *ep = made.release();
    return MEP_SUCCESS;
  });
}

// Nothing refers to the handle any more, or MEP_ERR_BUSY.
mep_result_t end_handle(mep_ep_handle_t handle) {
  const BufferScope scope(handle->ep, handle->buffer);
  MEP_TRY(scope.check());
  if (handle->ep->on_device) return handle->ep->on_device->end_handle(handle->device_handle);
  EpBuffer& buffer = handle->ep->object->buffer(handle->buffer);
  if (buffer.uses(handle->handle) && buffer.in_flight()) {
    return fail(MEP_ERR_BUSY, "an operation of the handle was sent and has not been received");
  }
  buffer.forget(handle->handle);
  return MEP_SUCCESS;
}

EpDeviceOptions device_options(const mep_ep_config_t& config) {
  return {config.scale_layout == MEP_SCALE_COLUMN_MAJOR, config.num_sms};
}

// A newcomer's part of an object, made when it joined.
mep_result_t take_dormant(Comm& comm, const char* given_name, const EpShape& shape,
                          std::unique_ptr<EpObject>* object) {
  const std::string name = given_name != nullptr ? given_name : "ep0";
  std::unique_ptr<ViewClient> dormant = comm.take_dormant(name);
  if (dormant == nullptr) {
    return fail(MEP_ERR_NOT_FOUND, "this rank joined no EP object named \"%s\"", name.c_str());
  }
  // Only EP objects are kept so.
  object->reset(static_cast<EpObject*>(dormant.release()));
  const mep_result_t same = (*object)->check_shape(shape);
  if (same != MEP_SUCCESS) comm.keep_dormant(std::move(*object));
  return same;
}

}  // namespace
}  // namespace mep

void mep_ep_config_init(void* config, size_t size) {
  mep::init_sized_struct(config, size);
}
void mep_ep_size_init(void* size_info, size_t size) {
  mep::init_sized_struct(size_info, size);
}
void mep_ep_view_init(void* view, size_t size) {
  mep::init_sized_struct(view, size);
}
void mep_dispatch_args_init(void* args, size_t size) {
  mep::init_sized_struct(args, size);
}
void mep_combine_args_init(void* args, size_t size) {
  mep::init_sized_struct(args, size);
}

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
    if (const DeviceSide* side = comm->backend->device_side()) {
      MEP_TRY(check_ep_device(*comm->comm, shape));
      estimate_ep_device_size(shape, device_options(given), side->staged(), &size);
    } else {
      estimate_ep_size(shape, &size);
    }
    write_sized_struct(size, size_info);
    return MEP_SUCCESS;
  });
}

mep_result_t mep_ep_create(mep_comm_t comm, const mep_ep_config_t* config, mep_ep_t* ep) {
  using namespace mep;
  return open_object(
      comm, config, ep,
      [&](const mep_ep_config_t& given, const EpShape& shape, mep_ep_t made) -> mep_result_t {
        if (DeviceSide* side = comm->backend->device_side()) {
          return make_ep_device(*comm->comm, *side, shape, device_options(given), given.name,
                                &made->on_device);
        }
        return EpObject::create(*comm->comm, shape, given.name, &made->object);
      });
}

mep_result_t mep_ep_destroy(mep_ep_t ep) {
  using namespace mep;
  if (ep == nullptr) return MEP_SUCCESS;
  return guarded([&]() -> mep_result_t {
    MEP_TRY(check_ep(ep));
    if (ep->handles.load() != 0 ||
        (ep->on_device ? ep->on_device->in_flight() : ep->object->busy())) {
      return fail(MEP_ERR_BUSY, "the EP object still has %u handles; destroy them first",
                  ep->handles.load());
    }
    mep_comm_t comm = ep->comm;
    delete ep;
    comm->users.fetch_sub(1);
    return MEP_SUCCESS;
  });
}

mep_result_t mep_ep_attach(mep_comm_t comm, const mep_ep_config_t* config, mep_ep_t* ep) {
  using namespace mep;
  return open_object(
      comm, config, ep,
      [&](const mep_ep_config_t& given, const EpShape& shape, mep_ep_t made) -> mep_result_t {
        MEP_TRY(comm->backend->check_host("joining an EP object"));
        return take_dormant(*comm->comm, given.name, shape, &made->object);
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
    made->buffer = buffer;
    made->device_handle.buffer = buffer;
    if (ep->on_device) MEP_TRY(ep->on_device->make_handle(&made->device_handle));
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
    MEP_TRY(end_handle(handle));
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
    if (ep->on_device) return ep->on_device->set_expert_map(map);
    return ep->object->set_expert_map(map);
  });
}

mep_result_t mep_ep_buffer_view(mep_ep_t ep, uint32_t buffer, mep_ep_view_t* view) {
  using namespace mep;
  if (view == nullptr) return null_argument("view");
  return guarded([&]() -> mep_result_t {
    MEP_TRY(check_ep(ep));
    MEP_TRY(check_buffer(ep, buffer));
    mep_ep_view_t filled;
    MEP_TRY(read_sized_struct(view, "mep_ep_view_t", &filled));
    if (ep->on_device) {
      ep->on_device->fill_view(buffer, &filled);
    } else {
      ep->object->buffer(buffer).fill_view(&filled);
    }
    write_sized_struct(filled, view);
    return MEP_SUCCESS;
  });
}

mep_result_t mep_ep_combine_input(mep_ep_t ep, uint32_t buffer, void** memory) {
  using namespace mep;
  if (memory == nullptr) return null_argument("memory");
  return guarded([&]() -> mep_result_t {
    MEP_TRY(check_ep(ep));
    MEP_TRY(check_buffer(ep, buffer));
    if (ep->on_device) {
      mep_ep_view_t view{};
      ep->on_device->fill_view(buffer, &view);
      *memory = view.combine_input;
    } else {
      *memory = ep->object->buffer(buffer).combine_out();
    }
    return MEP_SUCCESS;
  });
}

mep_result_t mep_dispatch(mep_ep_handle_t handle, const mep_dispatch_args_t* args,
                          mep_stream_t stream) {
  using namespace mep;
  return guarded([&]() -> mep_result_t {
    MEP_TRY(check_handle(handle));
    if (args == nullptr) return null_argument("args");
    mep_dispatch_args_t given;
    MEP_TRY(read_sized_struct(args, "mep_dispatch_args_t", &given));
    const BufferScope buffer_scope(handle->ep, handle->buffer);
    MEP_TRY(buffer_scope.check());
    if (handle->ep->on_device) {
      MEP_TRY(check_phase(given.flags, 0, given.phase));
      return handle->ep->on_device->dispatch(handle->device_handle, given, stream);
    }
    MEP_TRY(check_no_stream(stream));
    const EpCallScope scope(handle->ep);
    MEP_TRY(scope.check());
    MEP_TRY(check_phase(given.flags, 0, given.phase));
    EpObject& object = *handle->ep->object;
    const std::shared_ptr<const ExpertMap> map = object.expert_map();
    return object.buffer(handle->buffer).dispatch(handle->handle, given, map.get());
  });
}

mep_result_t mep_combine(mep_ep_handle_t handle, const mep_combine_args_t* args,
                         mep_stream_t stream) {
  using namespace mep;
  return guarded([&]() -> mep_result_t {
    MEP_TRY(check_handle(handle));
    if (args == nullptr) return null_argument("args");
    mep_combine_args_t given;
    MEP_TRY(read_sized_struct(args, "mep_combine_args_t", &given));
    const BufferScope buffer_scope(handle->ep, handle->buffer);
    MEP_TRY(buffer_scope.check());
    if (handle->ep->on_device) {
      MEP_TRY(check_phase(given.flags, MEP_COMBINE_RENORMALIZE, given.phase));
      return handle->ep->on_device->combine(handle->device_handle, given, stream);
    }
    MEP_TRY(check_no_stream(stream));
    const EpCallScope scope(handle->ep);
    MEP_TRY(scope.check());
    MEP_TRY(check_phase(given.flags, MEP_COMBINE_RENORMALIZE, given.phase));
    return handle->ep->object->buffer(handle->buffer).combine(handle->handle, given);
  });
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
    const mep_result_t result = ep->on_device ? ep->on_device->last_op(buffer, &filled)
                                              : ep->object->buffer(buffer).last_op(&filled);
    if (result == MEP_SUCCESS || result == MEP_ERR_CAPACITY) write_sized_struct(filled, info);
    return result;
  });
}
