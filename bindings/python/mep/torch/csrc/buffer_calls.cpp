#include "buffer_calls.hpp"

#include <utility>

#include <torch/csrc/DynamicTypes.h>

namespace mep_torch {

void raise(PyObject* type, const std::string& text) {
  py::set_error(type, text.c_str());
  throw py::error_already_set();
}

std::string text_of(const py::handle& object) {
  return py::str(object);
}

std::string name_of(at::ScalarType type) {
  return text_of(reinterpret_cast<PyObject*>(torch::getTHPDtype(type)));
}

std::string kind_of(at::ScalarType type) {
  return name_of(type).substr(6);
}

std::string shape_of(at::IntArrayRef sizes) {
  return text_of(py::tuple(py::cast(sizes.vec())));
}

int64_t number_of(const py::object& object, const char* name) {
  return object.attr(name).cast<int64_t>();
}

mep_ep_view_t view_of(const py::object& ep, uint32_t buffer) {
  mep_ep_view_t view;
  mep_ep_view_defaults(&view);
  py::module_::import("mep._call")
      .attr("check")(mep_ep_buffer_view(address_of<mep_ep_t>(ep), buffer, &view));
  return view;
}

void Failure::raise_if_any() const {
  if (exception.is_none()) return;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw py::error_already_set();
}

void raise_if_failed(const CallEnd& end) {
  if (end.result >= 0) return;
  Failure{py::module_::import("mep.errors").attr("error")(end.result, end.text), true}
      .raise_if_any();
}

// --- Streams ---------------------------------------------------------------------------------------------------

c10::Stream BufferStreams::begin(bool on_own) {
  const c10::Stream current = this->current();
  const c10::Stream stream = on_own ? own_ : current;
  if (stream != current) wait_for(current, stream);
  order_.follow(stream);
  return stream;
}

void BufferStreams::use_on_own(at::ArrayRef<at::Tensor> tensors) const {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) tensor.record_stream(own_);
  }
}

void BufferStreams::synchronize() const {
  guard_of(device()).synchronizeStream(own_);
  order_.synchronize();
}

// --- Calls -----------------------------------------------------------------------------------------------------

BufferCalls::BufferCalls(py::object comm, std::shared_ptr<BufferStreams> streams,
                         bool tells_failures)
    : comm_(std::move(comm)),
      streams_(std::move(streams)),
      ranks_(number_of(comm_, "size")),
      tells_failures_(tells_failures),
      calls_(comm_.attr("_calls")),
      blocking_(py::module_::import("mep._call").attr("blocking")) {}

at::Tensor BufferCalls::memory(const py::object& owner, const void* address, at::IntArrayRef sizes,
                               at::IntArrayRef strides, at::ScalarType type) const {
  const auto let_go = [](void* kept) {
    const py::gil_scoped_acquire with_gil;
    Py_DECREF(static_cast<PyObject*>(kept));
  };
  return at::for_blob(const_cast<void*>(address), sizes)
      .strides(strides)
      .context(py::object(owner).release().ptr(), let_go)
      .options(at::TensorOptions(type).device(device()))
      .target_device(device())
      .make_tensor();
}

at::Tensor BufferCalls::outputs(at::IntArrayRef sizes, at::ScalarType type) const {
  const auto options = at::TensorOptions(type).device(device());
  return is_on_gpu() ? at::empty(sizes, options) : at::zeros(sizes, options);
}

void BufferCalls::check_place(const char* name, const at::Tensor& tensor) const {
  if (tensor.device() == device()) return;
  const std::string where = std::string(name) + " is on " + tensor.device().str();
  if (is_on_gpu()) {
    throw py::value_error(where + "; this Buffer's operations run on " + device().str());
  }
  raise(PyExc_NotImplementedError,
        where + "; this Buffer works on the CPU: give it tensors of the CPU");
}

void BufferCalls::check_failures() const {
  if (!tells_failures_ || !is_on_gpu()) return;
  const mep_result_t result = mep_comm_async_result(address_of<mep_comm_t>(comm_));
  if (result < 0) py::module_::import("mep._call").attr("check")(result);
}

CallEnd BufferCalls::call_here(const std::function<mep_result_t()>& call) {
  const py::gil_scoped_release without_gil;
  CallEnd end;
  end.result = call();
  if (end.result < 0) end.text = mep_last_error();
  return end;
}

CallEnd BufferCalls::call_on(const c10::Stream& stream, const StreamCall& call) const {
  CallEnd end = call_here([&] { return call(stream.native_handle()); });
  // The library refuses the default stream where ranks of a process share the GPU.
  if (end.result == MEP_ERR_INVALID_ARGUMENT && stream.native_handle() == nullptr) {
    const c10::Stream own = streams_->begin(true);
    end = call_here([&] { return call(own.native_handle()); });
    streams_->follow(stream);
  }
  return end;
}

CallEnd BufferCalls::call_blocking(std::function<mep_result_t()> call) const {
  const auto end = std::make_shared<CallEnd>();
  blocking_(py::cpp_function([end, call = std::move(call)] {
              *end = call_here(call);
              return 0;
            }),
            py::arg("calls") = calls_);
  return *end;
}

Failure BufferCalls::run(const py::object& owner, const py::object& ep, size_t buffer,
                         const std::function<CallEnd()>& call) {
  const CallEnd end = call();
  if (end.result >= 0) return {};
  const py::object told = owner.attr("failed")(ep, buffer, end.result, end.text);
  const auto [exception, has_begun] = told.cast<std::pair<py::object, bool>>();
  return {exception, has_begun};
}

void add_buffer_streams(py::module_& module) {
  py::class_<BufferStreams, std::shared_ptr<BufferStreams>>(module, "BufferStreams")
      .def(py::init([](int64_t id, int64_t index, int64_t type) {
             return std::make_shared<BufferStreams>(c10::Stream::unpack3(
                 id, static_cast<c10::DeviceIndex>(index), static_cast<c10::DeviceType>(type)));
           }),
           py::arg("stream_id"), py::arg("device_index"), py::arg("device_type"))
      .def("synchronize", &BufferStreams::synchronize, py::call_guard<py::gil_scoped_release>());
}

}  // namespace mep_torch
