#include "mask.hpp"

#include <c10/core/DeviceGuard.h>

namespace mep_torch {

void Mask::call(
    const std::function<mep_result_t(mep_comm_t comm, mep_stream_t stream)>& make) const {
  const auto comm = address_of<mep_comm_t>(comm_);
  if (!is_on_gpu()) return raise_if_failed(call_here([&] { return make(comm, nullptr); }));
  const c10::DeviceGuard guard(device());
  raise_if_failed(
      call_on(streams_->begin(false), [&](mep_stream_t stream) { return make(comm, stream); }));
}

void Mask::query(const at::Tensor& out) const {
  if (out.scalar_type() != at::kInt || out.dim() != 1 || out.size(0) != ranks_) {
    throw py::value_error("mask_status is " + name_of(out.scalar_type()) + " " +
                          shape_of(out.sizes()) + "; it must be int32 [" + std::to_string(ranks_) +
                          "]");
  }
  const bool is_direct = out.device() == device() && out.is_contiguous();
  const at::Tensor shown =
      is_direct ? out : at::empty({ranks_}, at::TensorOptions(at::kInt).device(device()));
  call([lost = shown.data_ptr<int32_t>()](mep_comm_t comm, mep_stream_t stream) {
    return mep_comm_lost_ranks(comm, lost, stream);
  });
  if (!is_direct) out.copy_(shown);
}

void Mask::forget() const {
  call(mep_comm_forget_lost);
}

void add_mask(py::module_& module) {
  py::class_<Mask>(module, "Mask")
      .def(py::init<py::object, std::shared_ptr<BufferStreams>>(), py::arg("comm"),
           py::arg("streams"))
      .def("query", &Mask::query)
      .def("forget", &Mask::forget);
}

}  // namespace mep_torch
