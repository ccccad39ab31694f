#include "core/ep/ep_side.hpp"

#include <string>

#include "base/status.hpp"
#include "core/comm/comm.hpp"
#include "core/comm/gpu_backend.hpp"
#include "core/ep/ep_device.hpp"
#include "core/ep/ep_object.hpp"

namespace mep {
namespace {

class EpOnHost final : public EpSide {
 public:
  explicit EpOnHost(const Comm& comm)
      : is_uniform_((comm.world().config().flags & MEP_COMM_UNIFORM) != 0) {}
  void hold(std::unique_ptr<EpObject> object) { object_ = std::move(object); }

  mep_result_t open(const char* name) override { return object_->open(name); }
  const EpShape& shape() const override { return object_->shape(); }
  bool in_flight() override { return object_->busy(); }
  EpObject* host_object() override { return object_.get(); }
  // Where all ranks must return the same, a dispatch or combine ends by an operation of the comm.
  bool runs_operations() const override { return is_uniform_; }

  mep_result_t make_handle(EpSideHandle*) override { return MEP_SUCCESS; }
  mep_result_t end_handle(EpSideHandle& handle) override {
    EpBuffer& buffer = object_->buffer(handle.buffer);
    if (buffer.uses(handle.on_host) && buffer.in_flight()) {
      return fail(MEP_ERR_BUSY, "an operation of the handle was sent and has not been received");
    }
    buffer.forget(handle.on_host);
    return MEP_SUCCESS;
  }
  mep_result_t set_expert_map(const int32_t* map) override { return object_->set_expert_map(map); }
  void fill_view(uint32_t buffer, mep_ep_view_t* view) const override {
    object_->buffer(buffer).fill_view(view);
  }
  std::shared_ptr<const void> take_memory() override {
    auto memory = std::make_shared<std::vector<std::shared_ptr<const void>>>();
    for (uint32_t i = 0; i < object_->shape().buffers; ++i) {
      memory->push_back(object_->buffer(i).take_memory());
    }
    return memory;
  }

  mep_result_t dispatch(EpSideHandle& handle, const mep_dispatch_send_t* send,
                        const mep_dispatch_receive_t* receive, void* stream) override {
    MEP_TRY(check_no_stream(stream));
    const std::shared_ptr<const ExpertMap> map = object_->expert_map();
    return object_->buffer(handle.buffer).dispatch(handle.on_host, send, receive, map.get());
  }
  mep_result_t combine(EpSideHandle& handle, const mep_combine_send_t* send,
                       const mep_combine_receive_t* receive, void* stream) override {
    MEP_TRY(check_no_stream(stream));
    return object_->buffer(handle.buffer).combine(handle.on_host, send, receive);
  }
  mep_result_t last_op(uint32_t buffer, mep_op_info_t* info) override {
    return object_->buffer(buffer).last_op(info);
  }

 private:
  const bool is_uniform_;
  std::unique_ptr<EpObject> object_;
};

EpDeviceOptions device_options(const mep_ep_config_t& config) {
  return {config.scale_layout == MEP_SCALE_COLUMN_MAJOR, config.num_sms};
}

}  // namespace

mep_result_t make_ep_side(Comm& comm, Backend& backend, const EpShape& shape,
                          const mep_ep_config_t& config, std::unique_ptr<EpSide>* out) {
  if (GpuBackend* side = backend.gpu_backend()) {
    return make_ep_device(comm, *side, shape, device_options(config), out);
  }
  auto made = std::make_unique<EpOnHost>(comm);
  made->hold(std::make_unique<EpObject>(comm, shape));
  *out = std::move(made);
  return MEP_SUCCESS;
}

mep_result_t attach_ep_side(Comm& comm, const Backend& backend, const EpShape& shape,
                            const mep_ep_config_t& config, std::unique_ptr<EpSide>* out) {
  MEP_TRY(backend.check_host("joining an EP object"));
  const std::string name = config.name != nullptr ? config.name : "ep0";
  const ViewParticipant* unattached = comm.clients().find_unattached(name);
  if (unattached == nullptr) {
    return fail(MEP_ERR_NOT_FOUND, "this rank joined no EP object named \"%s\"", name.c_str());
  }
  // Only EP objects are kept so.
  MEP_TRY(static_cast<const EpObject*>(unattached)->check_shape(shape));
  auto made = std::make_unique<EpOnHost>(comm);
  // Nothing fails from here on: what was taken would be lost.
  made->hold(std::unique_ptr<EpObject>(
      static_cast<EpObject*>(comm.clients().take_unattached(name).release())));
  *out = std::move(made);
  return MEP_SUCCESS;
}

mep_result_t estimate_ep_side(const Comm& comm, Backend& backend, const EpShape& shape,
                              const mep_ep_config_t& config, mep_ep_size_t* out) {
  const GpuBackend* side = backend.gpu_backend();
  if (side == nullptr) {
    estimate_ep_size(shape, out);
    return MEP_SUCCESS;
  }
  MEP_TRY(check_ep_device(comm, shape));
  estimate_ep_device_size(shape, device_options(config), side->reach(), out);
  return MEP_SUCCESS;
}

}  // namespace mep
