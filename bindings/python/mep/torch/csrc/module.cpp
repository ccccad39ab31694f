// What Python sees of the backend.
#include <pybind11/chrono.h>
#include <torch/extension.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "process_group.hpp"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  namespace py = pybind11;
  using mep_torch::ProcessGroupMep;
  // Of c10d::Backend and c10d::Store.
  py::module_::import("torch._C._distributed_c10d");
  const auto backend = py::module_::import("torch._C._distributed_c10d").attr("Backend");
  py::class_<ProcessGroupMep, c10::intrusive_ptr<ProcessGroupMep>>(m, "ProcessGroupMep", backend)
      .def(py::init([](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                       std::chrono::milliseconds timeout, const std::string& name,
                       const std::string& backend_name) {
             return c10::make_intrusive<ProcessGroupMep>(store, rank, size, timeout, name,
                                                         backend_name);
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("name"),
           py::arg("backend_name"), py::call_guard<py::gil_scoped_release>());
}
